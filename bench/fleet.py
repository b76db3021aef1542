"""How much faster two workers of a fleet are than one: ingests of generated models, in turns.

    python -m bench.fleet
    python -m bench.fleet --models 100 --megabytes 8 --rounds 3

Each worker is a process that may use one core only, so that a single worker does not use both. The time is that from
the first claim to the last result in the ledger, without the start of the processes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from sqlalchemy import func, select

from organs.ingest.fleet.driver import LocalProcesses, drive
from organs.ingest.fleet.plan import expand_plan, read_plan
from organs.registry.catalog.register.fleet import start_run
from organs.registry.catalog.tables import FleetUnit
from organs.registry.local import LocalRegistry
from tests.gguf_files import file_bytes
from tests.small_models import block_metadata, block_tensors

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 256
BLOCK_BYTES = 2 * 5 * WIDTH * WIDTH
"""The approximate size of a block of the generated models."""


def main() -> None:
    """Ingest the same models with one and with two workers; print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=60)
    parser.add_argument("--megabytes", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-fleet-") as name:
        folder = Path(name)
        size = _write_models(folder / "models", options.models, options.megabytes)
        (folder / "plan.toml").write_text('name = "bench"\n[[work]]\ndo = "ingest"\nfrom = ["models"]\n')
        seconds: dict[int, list[float]] = {1: [], 2: []}
        for number in range(options.rounds):
            for workers in seconds:
                seconds[workers].append(_run(folder, folder / f"home-{number}-{workers}", workers))
                print(f"round {number + 1}: {workers} workers, {seconds[workers][-1]:.1f} s", flush=True)
    medians = {workers: statistics.median(times) for workers, times in seconds.items()}
    for workers, median in medians.items():
        print(f"{workers} workers: {options.models / median:.2f} models/s, {size / median / 1e6:.1f} MB/s")
    print(f"two workers are {medians[1] / medians[2]:.2f} times as fast as one")


def _write_models(folder: Path, count: int, megabytes: float) -> int:
    folder.mkdir()
    blocks = max(1, round(megabytes * 1e6 / BLOCK_BYTES))
    for number in range(count):
        data = file_bytes(block_metadata(f"Bench {number}", blocks), block_tensors(blocks, WIDTH, number))
        (folder / f"m{number:04d}.gguf").write_bytes(data)
    return sum(path.stat().st_size for path in folder.iterdir())


def _run(folder: Path, home: Path, workers: int) -> float:
    """Return the seconds that the fleet takes with this number of workers, in a new registry."""
    cores = sorted(os.sched_getaffinity(0))
    started = 0

    def start(name: str) -> subprocess.Popen[bytes]:
        nonlocal started
        core, started = cores[started % len(cores)], started + 1
        words = ("fleet", "work", "1", "--name", name, "--with-parent", str(os.getpid()))
        environment = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "ORGAN_HOME": str(home), "OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.Popen([sys.executable, "-P", "-m", "organs.cli", *words], env=os.environ | environment)
        os.sched_setaffinity(process.pid, {core})  # before it starts its threads, which inherit it
        return process

    with LocalRegistry.open(home) as registry:
        plan = expand_plan(registry, read_plan(folder / "plan.toml"), folder)
        with registry.catalog.writing() as session:
            run, _ = start_run(session, plan.name, plan.digest, plan.units)
        done = drive(registry, run, LocalProcesses(registry, run, workers, start), threading.Event(), lambda _: None)
        assert done.done == len(plan.units), done.failures
        with registry.catalog.reading() as session:
            begun, ended = session.execute(
                select(func.min(FleetUnit.started_at), func.max(FleetUnit.finished_at))
            ).one()
    return float((ended - begun).total_seconds())


if __name__ == "__main__":
    main()
