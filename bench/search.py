"""Measure the milliseconds of searches over a million placements, in a warm process and as a command.

    python -m bench.search                      fills a catalog first, which takes some minutes
    python -m bench.search --home FOLDER        keeps it there, or uses the catalog that is there
    python -m bench.search --placements 100000 --rounds 5
    python -m bench.search --database URL       uses the catalog in another database, filled if it is empty

Queries run in alternation: the first page of each, then the next pages. Median and maximum of twenty rounds are shown.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.populated import environment_with, populated
from organs.registry.local import LocalRegistry

QUERIES = {
    "one filter, its own order": ["type:organ theta>=40 sort:-theta"],
    "four filters, another order": [
        "type:organ slot:ffn_up,ffn_down dtype:Q4_K theta>=45 sort:-spectral",
        "type:organ block:5-20 signal>0.6 arch:qwen2 sort:rank",
        "type:skeleton slot:attn_q license:mit spectral>=0.3 sort:-z",
        "arch:rare license:mit dtype:F16 theta:40-60 sort:-size",
    ],
    "words, models, contributors": [
        "coder type:organ sort:-theta",
        "by:contributor-7 spectral>=0.3 sort:-spectral",
        "model:lab-3/* type:norm sort:theta",
    ],
    "what hardly anything or nothing is": [
        "type:norm theta<50 sort:-theta",
        "spectral>=0.85 sort:-theta",
        "type:organ slot:attn_norm sort:-rank",
        "type:organ dtype:F32 sort:-z",
        "block:77 sort:-theta",
        "-type:norm spectral:none sort:-theta",
    ],
    "each organ once": ["unique:organ type:organ theta>=40 sort:-theta", "unique:organ arch:gemma2 sort:-spectral"],
    "no filter": ["", "sort:z"],
}
COUNTED = ["type:organ theta>=40", "", "arch:qwen2 dtype:Q8_0 slot:ffn_up,ffn_down", "coder farmer", "model:lab-3/*"]
PAGE = 50
PAGES = 10


def main() -> None:
    """Fill or open the catalog, run the queries, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="a folder for the catalog, to keep it")
    parser.add_argument("--placements", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--database", help="the URL of another database")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = options.home or Path(folder)
        with populated(home, options.placements, options.database) as registry:
            _pages(registry, options.rounds)
            _facets(registry, options.rounds)
            _alike(registry, options.rounds)
        _command(home, options.rounds, options.database)


def _pages(registry: LocalRegistry, rounds: int) -> None:
    firsts: dict[str, list[float]] = {}
    others: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    texts = [text for group in QUERIES.values() for text in group]
    for _ in range(rounds):
        for text in texts:
            times, counts[text] = _walk(registry, text)
            firsts.setdefault(text, []).append(times[0])
            others.setdefault(text, []).extend(times[1:])
    print(f"{'pages of 50, ms':72} first       next (median, slowest)")
    for group, members in QUERIES.items():
        print(group)
        for text in members:
            print(f"  {text or '(everything)':70} {_shown(firsts[text])} {_shown(others[text])}  {counts[text]} seen")


def _walk(registry: LocalRegistry, text: str) -> tuple[list[float], int]:
    """Return the milliseconds of the first pages of a query, and the number of organs on them."""
    times, seen, after = [], 0, None
    for _ in range(PAGES):
        begun = time.perf_counter()
        page = registry.search(text, limit=PAGE, after=after)
        times.append(1000 * (time.perf_counter() - begun))
        seen += len(page)
        after = page.next
        if after is None:
            break
    return times, seen


def _facets(registry: LocalRegistry, rounds: int) -> None:
    print("five facets and the histogram of θ, ms")
    for text in COUNTED:
        times = _timed(lambda text=text: registry.count(text), rounds)
        counts = registry.count(text)
        about = "" if counts.exact else f", left out: {', '.join(counts.uncounted)}"
        print(f"  {text or '(everything)':70} {_shown(times)}  {counts.total} found{about}")


def _alike(registry: LocalRegistry, rounds: int) -> None:
    print("organs similar to one organ, ms")
    digest = registry.search("type:organ sort:-theta", limit=1).items[0].digest
    for more in ("", " arch:qwen2"):
        text = f"like:{digest[:16]}{more}"
        print(f"  {text:70} {_shown(_timed(lambda text=text: registry.search(text), rounds))}")


def _command(home: Path, rounds: int, database: str | None) -> None:
    words = [sys.executable, "-m", "organs.cli", "--home", str(home), "search", "type:organ theta>=40 sort:-theta"]
    environment = environment_with(database)
    times = _timed(lambda: subprocess.run(words, check=True, capture_output=True, env=environment), min(rounds, 10))
    print(f"organ search as a command, ms {'':43} {_shown(times)}")


def _timed(act: Callable[[], object], rounds: int) -> list[float]:
    return list(_times(act, rounds))


def _times(act: Callable[[], object], rounds: int) -> Iterator[float]:
    for _ in range(rounds):
        begun = time.perf_counter()
        act()
        yield 1000 * (time.perf_counter() - begun)


def _shown(times: list[float]) -> str:
    return f"{statistics.median(times):6.1f} {max(times):6.1f}" if times else f"{'–':>6} {'–':>6}"


if __name__ == "__main__":
    main()
