"""Move a registry with many placements to another database and another place for blobs, and back, and compare.

    python -m bench.relocation --database postgresql+psycopg://…/EMPTY --blobs s3://BUCKET/FOLDER
    python -m bench.relocation --home FOLDER --placements 100000 --database … --blobs …

The registry has generated placements and the shipped models. After each move, 200 queries and the bytes of the shipped
models are compared with those of the original.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from random import Random

from bench.populated import populated
from bench.questions import query
from organs.ingest.add import add_model
from organs.registry.assembly import FileStream, plan_model
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.local import LocalRegistry
from organs.registry.relocation import relocate
from organs.registry.settings import Settings, moved

ZOO = Path(__file__).parents[1] / "examples" / "zoo"
QUERIES = 200

Results = tuple[list[object], dict[str, str], list[float]]
"""The pages of all queries, the digests of the files of the shipped models, and the milliseconds of the queries."""


def main() -> None:
    """Fill the registry, move it twice, and print times and differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="a folder for the original, to keep it")
    parser.add_argument("--placements", type=int, default=1_000_000)
    parser.add_argument("--database", required=True, help="an empty database")
    parser.add_argument("--blobs", required=True, help="a folder or a bucket")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = options.home or Path(folder, "original")
        with populated(home, options.placements) as original:
            for path in sorted(ZOO.glob("*.gguf")):
                add_model(original, path)
            expected = _results(original)
            print(f"original: queries {_milliseconds(expected)}")
            there_settings = replace(
                moved(Settings.in_folder(Path(folder, "there")), options.database, options.blobs),
                bucket_allows_http=os.environ.get("AWS_ALLOW_HTTP") == "true",
            )
            with (
                LocalRegistry.from_settings(there_settings) as there,
                LocalRegistry.open(Path(folder, "back")) as back,
            ):
                _move(original, there)
                _compare("there", _results(there), expected)
                _move(there, back)
                _compare("and back", _results(back), expected)


def _move(source: LocalRegistry, target: LocalRegistry) -> None:
    begun = time.perf_counter()
    report = relocate(source.catalog, source.blobs, new_catalog=target.catalog, new_blobs=target.blobs)
    seconds = time.perf_counter() - begun
    print(f"moved {report.rows:,} rows and {report.files:,} files in {seconds:.1f} s; {len(report.faults)} faults")


def _results(registry: LocalRegistry) -> Results:
    random = Random(19)
    pages: list[object] = []
    times = []
    for _ in range(QUERIES):
        text = query(random)
        begun = time.perf_counter()
        page = registry.search(text, limit=50)
        times.append(1000 * (time.perf_counter() - begun))
        pages.append((text, page.items, registry.count(text)))
    digests = {}
    for path in sorted(ZOO.glob("*.gguf")):
        with registry.catalog.reading() as session:
            (plan,) = plan_model(session, model_by_text(session, path.stem))
        hashed = hashlib.sha256()
        with FileStream(registry.blobs, plan) as stream:
            for view in stream:
                hashed.update(view)
        digests[path.name] = hashed.hexdigest()
        assert digests[path.name] == hashlib.sha256(path.read_bytes()).hexdigest()
    return pages, digests, times


def _compare(place: str, found: Results, expected: Results) -> None:
    different = sum(one != other for one, other in zip(found[0], expected[0], strict=True))
    files = sum(found[1][name] != digest for name, digest in expected[1].items())
    print(
        f"{place}: {different} of {QUERIES} answers differ, {files} of {len(expected[1])} files differ; queries "
        f"{_milliseconds(found)}"
    )


def _milliseconds(results: Results) -> str:
    return f"{statistics.median(results[2]):.1f} ms (median), {max(results[2]):.0f} ms (slowest)"


if __name__ == "__main__":
    main()
