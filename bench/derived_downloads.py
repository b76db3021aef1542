"""Measure downloads of a Q4_K_M that is stored by its difference to the BF16 model that it was made of.

    python -m bench.derived_downloads --work FOLDER                   2.1 GB of files and homes for each billion weights
    python -m bench.derived_downloads --work FOLDER --size small --runs 3
    python -m bench.derived_downloads --work FOLDER --python WITH/bin/python WITHOUT/bin/python

It generates a model with the shapes of a real one, quantises it by llama.cpp's own code, ingests both, and downloads
the quantisation from `organ serve --no-jobs` over the loopback. Files and the home stay in the working folder, so a
second run only measures. With several interpreters, for example one with numba and one without, servers take turns.
Each server sends the whole file once before it is measured; this download is compared with the SHA-256 of the file.

The client reads into the same memory and drops the bytes; it shares the machine with the server. Ranges are requested
on one connection. Needs the packages of `bench.families`.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import os
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from bench.families import quantise
from bench.generated import MEDIUM, SMALL, write_model
from bench.load import Server, served

SHAPES = {"small": SMALL, "medium": MEDIUM}
ENCODING = "Q4_K_M"
BUFFER_BYTES = 1 << 20
FIRSTS, RANGES = 50, 1000
RANGE_MAX_BYTES = 2 << 20
SPEED_MIN, SPEED_AIM, FIRST_MAX_MS, MEMORY_MAX_BYTES = 150, 300, 100, 300_000_000


@dataclass(slots=True)
class Figures:
    """What was measured of the server of one interpreter. Times are in milliseconds."""

    python: str
    speeds: list[float] = field(default_factory=list)
    """Megabytes per second of each download."""
    server_seconds: list[float] = field(default_factory=list)
    """Processor seconds of the server for each gigabyte, by download."""
    first_of_file: list[float] = field(default_factory=list)
    first_of_range: list[float] = field(default_factory=list)
    right_ranges: int = 0
    peaks: list[int] = field(default_factory=list)
    """The largest resident size of each process, in bytes."""


def main() -> None:
    """Make the files and the home, measure with each interpreter in turns, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a folder for the files and the home, to keep them")
    parser.add_argument("--size", choices=SHAPES, default="medium")
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters that run the server")
    parser.add_argument("--turns", type=int, default=3, help="servers that each interpreter runs")
    parser.add_argument("--runs", type=int, default=3, help="downloads from each server")
    parser.add_argument("--ranges", type=int, default=RANGES, help="random ranges that are compared, in all turns")
    options = parser.parse_args()
    folder = options.work / options.size
    source, target = made(folder, options.size)
    home = ingested(folder, source, target)
    show_stored(home, target)
    figures = [Figures(python) for python in options.python]
    for turn in range(options.turns):
        for each in figures:
            measure(each, home, target, options.runs, -(-options.ranges // options.turns), seed=turn)
            load = "  ".join(f"{share:.1f}" for share in os.getloadavg())
            print(
                f"turn {turn + 1}, {each.python}: {_listed(each.speeds[-options.runs :])} MB/s; load {load}", flush=True
            )
    for each in figures:
        show(each, -(-options.ranges // options.turns) * options.turns)


def made(folder: Path, size: str) -> tuple[Path, Path]:
    """Return the model in BF16 and its quantisation; make what is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    source, target = (folder / f"Generated-{encoding}.gguf" for encoding in ("BF16", ENCODING))
    if not source.exists():
        write_model(source, SHAPES[size])
    if not target.exists():
        quantise(source, target, ENCODING)
    return source, target


def ingested(folder: Path, source: Path, target: Path) -> Path:
    """Return the home of a registry with both files."""
    home = folder / "home"
    if not home.exists():
        for path in (source, target):
            begun = time.perf_counter()
            command = [sys.executable, "-m", "organs.cli", "--home", str(home), "ingest", "--quiet", str(path)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            print(f"ingest of {path.name}: {time.perf_counter() - begun:.1f} s", flush=True)
    return home


def show_stored(home: Path, target: Path) -> None:
    """Print how the organs are stored."""
    query = "SELECT codec, count(*), sum(size_bytes), sum(stored_bytes) FROM blobs GROUP BY codec ORDER BY 3 DESC"
    with closing(sqlite3.connect(home / "registry.sqlite3")) as database:
        rows = database.execute(query).fetchall()
    print(f"{target.name}: {target.stat().st_size:,} bytes\n")
    print("| stored as | blobs | plain bytes | stored bytes |\n|---|---:|---:|---:|")
    for codec, count, plain, stored in rows:
        print(f"| {codec} | {count} | {plain:,} | {stored:,} |")
    if not any("-from-" in codec for codec, *_ in rows):
        raise SystemExit("the quantisation is not stored by its difference")


def measure(figures: Figures, home: Path, target: Path, runs: int, ranges: int, *, seed: int) -> None:
    """Start a server, and add what it does to `figures`."""
    random = Random(seed)
    size = target.stat().st_size
    with served(home, figures.python, "--no-jobs") as server:
        download = Download(server, f"/models/local/{target.stem}.gguf", size)
        digest = hashlib.sha256()
        for piece in download.whole():
            digest.update(piece)
        with target.open("rb") as stream:
            if digest.digest() != hashlib.file_digest(stream, "sha256").digest():
                raise SystemExit("the download is not the file that was ingested")
        for _ in range(runs):
            before, begun = server.processor_seconds(), time.perf_counter()
            for _ in download.whole():
                pass
            figures.speeds.append(size / (time.perf_counter() - begun) / 1e6)
            figures.server_seconds.append((server.processor_seconds() - before) / size * 1e9)
        for _ in range(FIRSTS):
            figures.first_of_file.append(download.first(0))
            figures.first_of_range.append(download.first(random.randrange(size - BUFFER_BYTES)))
        figures.right_ranges += right_ranges(download, target, random, ranges)
        figures.peaks = sorted(map(max, zip(figures.peaks or [0] * 9, peaks(server), strict=False)), reverse=True)


class Download:
    """A file on a server, requested whole or in part."""

    def __init__(self, server: Server, path: str, size_bytes: int) -> None:
        self._port = server.port
        self._path = path
        self._size = size_bytes
        self._buffer = bytearray(BUFFER_BYTES)
        self._kept = self._connection()

    def whole(self) -> Iterator[memoryview]:
        """Yield the bytes of the file in views of memory that is used again."""
        with closing(self._connection()) as connection:
            connection.request("GET", self._path)
            received = 0
            with connection.getresponse() as answer:
                while count := answer.readinto(self._buffer):
                    received += count
                    yield memoryview(self._buffer)[:count]
        assert received == self._size, f"{received} bytes instead of {self._size}"

    def first(self, begin: int) -> float:
        """Return the milliseconds from before the connection is opened to the first byte of a range, or of the file."""
        begun = time.perf_counter()
        headers = {"Range": f"bytes={begin}-"} if begin else {}
        with closing(self._connection()) as connection:
            connection.request("GET", self._path, headers=headers)
            with connection.getresponse() as answer:
                assert answer.status == (206 if begin else 200)
                answer.read(1)
            return 1000 * (time.perf_counter() - begun)

    def part(self, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` to `end`."""
        self._kept.request("GET", self._path, headers={"Range": f"bytes={begin}-{end - 1}"})
        return self._kept.getresponse().read()

    def _connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)


def right_ranges(download: Download, target: Path, random: Random, count: int) -> int:
    """Return how many of `count` random ranges are as in the file; sizes are spread over all orders of magnitude."""
    right = 0
    with target.open("rb") as stream:
        for _ in range(count):
            size = int(RANGE_MAX_BYTES ** random.random())
            begin = random.randrange(target.stat().st_size - size)
            stream.seek(begin)
            right += download.part(begin, begin + size) == stream.read(size)
    return right


def peaks(server: Server) -> list[int]:
    """Return the largest resident size so far of each process of the server, in bytes, the largest first."""
    sizes = []
    for member in server.members():
        status = Path(f"/proc/{member.pid}/status").read_text()
        sizes.append(1024 * int(status.partition("VmHWM:")[2].split()[0]))
    return sorted(sizes, reverse=True)


def show(figures: Figures, ranges: int) -> None:
    """Print the figures of one interpreter, and whether they meet the aims."""
    has_numba = subprocess.run([figures.python, "-c", "import numba"], capture_output=True, check=False).returncode == 0
    speed, first = statistics.median(figures.speeds), statistics.median(figures.first_of_file)
    print(f"\n{figures.python}, {'with' if has_numba else 'without'} numba")
    print(
        f"  {speed:.0f} MB/s (median of {_listed(figures.speeds)}; at least {SPEED_MIN}, aim {SPEED_AIM}), "
        f"{statistics.median(figures.server_seconds):.1f} processor seconds of the server for a gigabyte"
    )
    for name, times in (("the file", figures.first_of_file), ("a range", figures.first_of_range)):
        print(f"  first byte of {name}: median {statistics.median(times):.1f} ms, worst {max(times):.1f} ms")
    print(f"  {figures.right_ranges} of {ranges} random ranges are right")
    sizes = "  ".join(f"{size / 1e6:.0f}" for size in figures.peaks)
    print(f"  peak memory of the processes: {sizes} MB, together {sum(figures.peaks) / 1e6:.0f} MB")
    met = {
        **({"speed": speed >= SPEED_MIN} if has_numba else {}),
        "first byte": first < FIRST_MAX_MS,
        "ranges": figures.right_ranges == ranges,
        "memory of each process": max(figures.peaks) < MEMORY_MAX_BYTES,
    }
    print("  " + ", ".join(f"{name}: {'met' if is_met else 'NOT MET'}" for name, is_met in met.items()))


def _listed(numbers: Sequence[float]) -> str:
    return " ".join(f"{number:.0f}" for number in sorted(numbers))


if __name__ == "__main__":
    main()
