"""Measure searches for single experts among a million, and the comparison of two models with 384 experts in a stack.

    python -m bench.experts                     fills a catalog first, which takes some minutes
    python -m bench.experts --home FOLDER       keeps it there, or uses the catalog that is there
    python -m bench.experts --models 3 --rounds 5

Each model has 60 blocks, three stacks in a block, and 384 experts in a stack: 69,120 experts. All models but the first
have two other experts in each stack; blobs have no bytes. Median and maximum of twenty rounds are shown.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import func, insert, select

from bench.populated import NOW, blob_row, count_facets, digest_of, drawn_fingerprint, drawn_measures
from organs.registry.anatomy import place_of
from organs.registry.catalog.queries.relatives import Edge
from organs.registry.catalog.register.counts import FacetKey, facet_ids, repair_totals
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.register.lineage import record_measured
from organs.registry.catalog.tables import Blob, Expert, Fingerprint, ModelFileRow, ModelRow, OrganRow, Placement
from organs.registry.catalog.vocabulary import theta_bin
from organs.registry.local import LocalRegistry

BLOCKS, EXPERTS, SLOTS = 60, 384, ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
REPLACED = (5, 17)
ROW, ROWS = 7168, 2048
QUERIES = (
    "expert:17 type:organ sort:-spectral",
    "expert:17 type:organ sort:-spectral block:3",
    "expert:17 slot:ffn_up_exps theta>=45 sort:-theta",
    "expert>=0 sort:-spectral",
    "expert:0-9 theta:40-45 sort:-spectral",
    "expert:17 model:lab/giant-3 sort:-theta",
    "expert>=0 model:lab/giant-3 block:59 sort:theta",
    "expert:383 unique:organ sort:-theta",
    "expert:999 sort:-theta",
    "kin:lab/giant-0 model:lab/giant-1 expert:0-20 sort:likeness",
)


def main() -> None:
    """Fill or open the catalog, run the queries, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="a folder for the catalog, to keep it")
    parser.add_argument("--models", type=int, default=15)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = options.home or Path(folder)
        fresh = not (home / "registry.sqlite3").exists()
        with LocalRegistry.open(home) as registry:
            if fresh:
                _fill(registry, options.models)
            with registry.catalog.reading() as session:
                print(f"{session.scalar(select(func.count()).select_from(Expert)):,} experts; milliseconds")
            for text in QUERIES:
                found = len(registry.search(text, limit=50))
                times = _timed(lambda text=text: registry.search(text, limit=50), options.rounds)
                print(f"  {text:66} {statistics.median(times):7.1f} {max(times):7.1f}  {found} on the first page")
            result = registry.compare("lab/giant-0", "lab/giant-1")
            times = _timed(lambda: registry.compare("lab/giant-0", "lab/giant-1"), min(options.rounds, 5))
            print(f"compare: {statistics.median(times):,.0f} {max(times):,.0f}  {result.experts_sentence}")


def _timed(act: Callable[[], object], rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        act()
        times.append(1000 * (time.perf_counter() - begun))
    return times


def _fill(registry: LocalRegistry, models: int) -> None:
    with closing(registry.catalog.writer.raw_connection()) as connection:
        connection.driver_connection.execute("PRAGMA synchronous = OFF")
    random = np.random.default_rng(1)
    base: dict[tuple[str, int], tuple[int, dict[str, Any]]] = {}
    numbers = iter(range(1, 1 << 30))
    for number in range(models):
        with registry.catalog.writing() as session:
            owner = contributor_id(session, "lab")
            model = ModelRow(
                namespace="lab", name=f"giant-{number}", version=1, digest=digest_of("model", number), state="visible",
                kind="model", complete=True, contributor_id=owner, architecture="deepseek2", license="mit", tags=(),
                parameters=10**12, tensors=BLOCKS * len(SLOTS), size_bytes=10**12, flags=(), unassemblable=(),
                created_at=NOW,
            )  # fmt: skip
            session.add(model)
            session.flush()
            file = ModelFileRow(
                model_id=model.id, position=0, name="giant.gguf", size_bytes=10**12, sha256=model.digest,
                header_sha256=model.digest, header_bytes=1000,
            )  # fmt: skip
            session.add(file)
            session.flush()
            for position, name in enumerate(f"blk.{block}.{slot}.weight" for block in range(BLOCKS) for slot in SLOTS):
                _add_stack(session, model, file.id, position, name, random, base, numbers)
        print(f"model {number + 1} of {models}")
    with registry.catalog.writing() as session:
        edges = [
            Edge(child_id=child, parent_id=1, relation="relative", score=0.99, compared=180)
            for child in range(2, models + 1)
        ]
        record_measured(session, edges)
        repair_totals(session)


def _add_stack(
    session: Any, model: ModelRow, file_id: int, position: int, name: str, random: Any, base: Any, numbers: Any
) -> None:
    """Add a stack; experts that are not replaced are those of the first model, with small differences in none."""
    place = place_of(name)
    key = FacetKey("organ", "text", place.slot, "Q4_K", "deepseek2", "mit")
    facet = facet_ids(session, [key])[key]
    organs: dict[str, list[dict[str, Any]]] = {"blobs": [], "organs": [], "prints": []}

    def organ(shape: str) -> tuple[int, dict[str, Any]]:
        number, measures = next(numbers), drawn_measures(random, "organ")
        organs["blobs"].append(blob_row(number))
        organs["organs"].append(
            {"id": number, "blob_id": number, "dtype": "Q4_K", "shape": shape, "elements": ROW * ROWS}
        )
        organs["prints"].append({"organ_id": number, "values": drawn_fingerprint(random)})
        return number, measures

    common = {"model_id": model.id, "type": "organ", "tower": "text", "block": place.block, "slot": place.slot,
              "visible": True, "facet_id": facet, "dtype": "Q4_K"}  # fmt: skip
    stack_id, measures = organ(f"{ROW}x{ROWS}x{EXPERTS}")
    placement_id = (model.id - 1) * BLOCKS * len(SLOTS) + position + 1
    experts = []
    for expert in range(EXPERTS):
        if model.name == "giant-0" or expert in REPLACED:
            drawn = organ(f"{ROW}x{ROWS}")
            if model.name == "giant-0":
                base[name, expert] = drawn
        else:
            drawn = base[name, expert]
        row = {"placement_id": placement_id, "expert": expert, "organ_id": drawn[0], "size_bytes": ROW * ROWS // 2}
        experts.append(common | row | drawn[1])
    for table, rows in ((Blob, organs["blobs"]), (OrganRow, organs["organs"]), (Fingerprint, organs["prints"])):
        session.execute(insert(table.__table__), rows)
    placement = common | measures | {
        "id": placement_id, "position": position, "file_id": file_id, "offset_bytes": 32 * position, "name": name,
        "organ_id": stack_id, "size_bytes": EXPERTS * ROW * ROWS // 2,
    }  # fmt: skip
    session.execute(insert(Placement.__table__), [placement])
    count_facets(session, Counter([(facet, theta_bin(measures["theta"]))]))
    session.execute(insert(Expert.__table__), experts)


if __name__ == "__main__":
    main()
