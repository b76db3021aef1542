"""Measure the requests per second that the catalog answers over a million placements, and their latency in ms.

    python -m bench.load                        fills a catalog first, which takes some minutes
    python -m bench.load --home FOLDER          keeps it there, or uses the catalog that is there
    python -m bench.load --seconds 20 --only mixed
    python -m bench.load --database URL         uses the catalog in another database, filled if it is empty

The server is `organ serve` with its defaults; it shares the machine with this tool. Requests arrive at a steady rate
(an open loop: `bench.arrivals`). Four fifths request JSON, one fifth the page with its facets. The first run uses some
hundreds of queries with a Zipf distribution; the second has no query twice, so that no answer comes from the cache;
during the third the catalog changes all the time, which invalidates the cache.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import psutil

from bench.arrivals import Outcome, drive
from bench.populated import environment_with, populated
from bench.questions import all_different, asked_again, drawn
from organs.registry.catalog.register.events import contributor_id
from organs.registry.local import LocalRegistry

RATE, JSON_SHARE = 200.0, 0.8
P99_MAX_MS = 150.0
QUERIES = 400
COLD_SECONDS = 5.0
STEP, STEP_SECONDS, FIRST_RATE, RATE_MAX = 1.4, 8.0, 100.0, 5000.0
COMMIT_SECONDS = 2.0
PAGE_PATH, API_PATH = "/organs", "/api/v1/organs"


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    port: int
    process: psutil.Process

    def members(self) -> list[psutil.Process]:
        """Return the process of the server and those that it started."""
        return [self.process, *self.process.children(recursive=True)]

    def processor_seconds(self) -> float:
        """Return the processor seconds of the server and its workers."""
        return float(sum(sum(member.cpu_times()[:2]) for member in self.members()))


def main() -> None:
    """Fill or open the catalog, serve it, send requests, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="a folder for the catalog, to keep it")
    parser.add_argument("--placements", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of each mixed run")
    parser.add_argument("--rate", type=float, default=RATE, help="requests per second of the mixed runs")
    parser.add_argument("--only", choices=("mixed", "largest"), help="only this part")
    parser.add_argument("--database", help="the URL of another database")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = options.home or Path(folder)
        with populated(home, options.placements, options.database) as registry:
            serve = partial(served, home, database=options.database)
            again = asked_again(registry, QUERIES)
            print(f"{len(again[0])} addresses of {QUERIES} queries, {_HEAD}")
            if options.only != "largest":
                _mixed(registry, serve, again, options.rate, options.seconds)
            if options.only != "mixed":
                _largest(serve, again)


Again = tuple[list[str], list[float]]
Serve = Callable[[], AbstractContextManager[Server]]
_HEAD = "latencies in ms from when a request was due"


def _mixed(registry: LocalRegistry, serve: Serve, again: Again, rate: float, seconds: float) -> None:
    with serve() as server:
        _run(server, f"mixed, {rate:g}/s", _mix(server, drawn(*again)), rate, seconds)
    with serve() as server:
        _run(server, f"mixed, {rate:g}/s, no address twice", _mix(server, all_different()), rate, seconds)
    with serve() as server, committing(registry):
        name = f"mixed, {rate:g}/s, a commit every {COMMIT_SECONDS:g} s"
        _run(server, name, _mix(server, drawn(*again)), rate, seconds)


def _mix(server: Server, parameters: Iterator[str]) -> Iterator[str]:
    random = Random(4)
    for parameter in parameters:
        yield f"{API_PATH if random.random() < JSON_SHARE else PAGE_PATH}?{parameter}"


def _largest(serve: Serve, again: Again) -> None:
    for what in ("JSON", "pages"):
        for which in ("the popular queries", "no address twice"):
            with serve() as server:
                path = API_PATH if what == "JSON" else PAGE_PATH
                source = drawn(*again) if which == "the popular queries" else all_different()
                best = _step_up(server, f"{what}, {which}", (f"{path}?{item}" for item in source))
            print(f"{what}, {which}: {best:.0f} requests per second is the highest rate, p99 under {P99_MAX_MS:g} ms\n")


def _step_up(server: Server, name: str, addresses: Iterator[str]) -> float:
    drive(server.port, addresses, FIRST_RATE, COLD_SECONDS)
    best, rate = 0.0, FIRST_RATE
    while rate < RATE_MAX:
        outcome = _run(server, f"{name}, {rate:.0f}/s", addresses, rate, STEP_SECONDS, cold=False)
        if outcome.failed or _percentiles(outcome)[2] > P99_MAX_MS:
            break
        best, rate = rate, rate * STEP
    return best


def _run(
    server: Server, name: str, addresses: Iterator[str], rate: float, seconds: float, *, cold: bool = True
) -> Outcome:
    before = server.processor_seconds()
    outcome = drive(server.port, addresses, rate, seconds)
    used = server.processor_seconds() - before
    answered = len(outcome.milliseconds)
    print(f"{name}: {answered} answers in {outcome.seconds:.1f} s, {outcome.statuses[200]} of them 200")
    if outcome.failed:
        print(f"  failed: {outcome.failed} {dict(outcome.errors)} {dict(outcome.statuses)}")
    parts = {"all": (0.0, seconds)}
    if cold:
        parts |= {f"first {COLD_SECONDS:g} s": (0.0, COLD_SECONDS), "then": (COLD_SECONDS, seconds)}
    for part, (begin, end) in parts.items():
        p50, p95, p99, most = _percentiles(outcome, begin, end)
        print(f"  {part:10} p50 {p50:7.1f}   p95 {p95:7.1f}   p99 {p99:7.1f}   max {most:7.1f}")
    print(
        f"  {len(outcome.addresses)} different addresses, {_share(outcome.remembered, answered)} answered from memory, "
        f"{outcome.bytes / max(answered, 1) / 1000:.0f} kB an answer; processor: server "
        f"{_share(used, outcome.seconds)} of a core ({1000 * used / max(answered, 1):.2f} ms an answer), "
        f"tool {_share(outcome.processor_seconds, outcome.seconds)}",
        flush=True,
    )
    return outcome


def _percentiles(outcome: Outcome, begin: float = 0.0, end: float = 1e9) -> tuple[float, float, float, float]:
    times = sorted(took for due, took in outcome.milliseconds if begin <= due < end) or [0.0]
    p50, p95, p99 = (times[min(len(times) - 1, int(share * len(times)))] for share in (0.5, 0.95, 0.99))
    return p50, p95, p99, times[-1]


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "0%"


@contextmanager
def served(home: Path, python: str = sys.executable, *options: str, database: str | None = None) -> Iterator[Server]:
    """Run `organ serve` of `python` over the catalog in `home`, or in `database`, until the end of the block."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [python, "-m", "organs.cli", "--home", str(home), "serve", "--port", str(port), *options]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment_with(database))
    try:
        for _ in range(200):
            if _answers(port, "/healthz"):
                break
            time.sleep(0.1)
        yield Server(port, psutil.Process(server.pid))
    finally:
        server.terminate()
        server.wait(60)


def _answers(port: int, address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{address}", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@contextmanager
def committing(registry: LocalRegistry) -> Iterator[None]:
    """Commit a change every few seconds during the block."""
    ended = threading.Event()

    def commit() -> None:
        for number in count():
            if ended.wait(COMMIT_SECONDS):
                return
            with registry.catalog.writing() as session:
                contributor_id(session, f"passing by {number} {time.time():.0f}")

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


if __name__ == "__main__":
    main()
