"""A fleet with the scheduler of Dask, of which every part is killed: the ledger must still end with all units done.

    python -m tests.faults.fleet_kills                           # 200 models
    python -m tests.faults.fleet_kills --units 10000 --every 20  # tiny models; a random worker is killed every 20 s
    python -m tests.faults.fleet_kills --poison                  # one of the files kills every worker that reads it

A worker, the driver and the scheduler are killed once each, and started again as a service manager does it. The
registry is an SQLite database and a folder. Work counts as done twice if a second ingest of the same file was finished.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
from sqlalchemy import func, select

from organs.ingest.fleet import worker
from organs.registry.catalog.queries.fleet import fleet_run, run_id_of
from organs.registry.catalog.tables import FleetUnit, Ingest
from organs.registry.entities.fleet import FleetRun
from organs.registry.gguf import TensorSpec, dtype_by_name
from organs.registry.local import LocalRegistry
from tests.gguf_files import file_bytes
from tests.small_models import block_metadata, block_tensors

ROOT = Path(__file__).resolve().parents[2]
POISON = "poison.gguf"
TIMEOUT_SECONDS = 7200.0
TWICE_MAX = 0.05
"""The largest share of units that may be done twice."""


def dask_setup(_worker: object) -> None:
    """Let a file called POISON kill this worker. `dask worker --preload` calls it."""
    ingest = worker.WORK["ingest"]

    def poisoned(registry: LocalRegistry, source: str, *rest: object) -> worker.Result:
        if source.endswith(POISON):
            os.kill(os.getpid(), signal.SIGKILL)
        return ingest(registry, source, *rest)  # type: ignore[arg-type]

    worker.WORK = {**worker.WORK, "ingest": poisoned}


def tiny_model(seed: int) -> bytes:
    """Return a model with a single matrix."""
    values = np.random.default_rng(seed).standard_normal(32 * 16).astype(np.float16).tobytes()
    tensor = TensorSpec("token_embd.weight", (32, 16), dtype_by_name("F16"))
    return file_bytes(block_metadata(f"Tiny {seed}", 1), [(tensor, values)])


def medium_model(seed: int) -> bytes:
    """Return a model of about 2 MB."""
    return file_bytes(block_metadata(f"Medium {seed}", 4), block_tensors(4, 192, seed))


class Cluster:
    """A scheduler, workers and a driver, each a process of its own."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder, self._workers = folder, workers
        self._environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "ORGAN_HOME": str(folder / "home")}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def _start(self, name: str, *words: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            command = [sys.executable, "-P", "-m", *words]
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)

    def _commands(self) -> dict[str, tuple[str, ...]]:
        port = self.address.rpartition(":")[2]
        kept = ("--nthreads", "1", "--no-dashboard", "--preload", "tests.faults.fleet_kills")
        commands: dict[str, tuple[str, ...]] = {
            "scheduler": ("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard")
        }
        for number in range(self._workers):
            commands[f"worker-{number}"] = ("distributed.cli.dask_worker", self.address, *kept)
        plan = str(self._folder / "plan.toml")
        commands["driver"] = ("organs.cli", "fleet", "run", plan, "--scheduler", self.address)
        return commands

    def look_after(self) -> int | None:
        """Start what does not run; return the exit status of a driver that has ended by itself."""
        for name, words in self._commands().items():
            process = self._processes.get(name)
            if process is None or process.poll() is not None:
                if name == "driver" and process is not None and process.returncode >= 0:
                    return process.returncode
                self._start(name, *words)
        return None

    def kill(self, name: str) -> None:
        """Kill the process, of a worker the one that does the work and not the nanny that starts it again."""
        process = psutil.Process(self._processes[name].pid)
        children = [child for child in process.children(recursive=True) if "spawn" in " ".join(child.cmdline())]
        victim = children[-1] if name.startswith("worker") and children else process
        victim.kill()
        print(f"{time.strftime('%H:%M:%S')} killed {name}", flush=True)

    def end(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
                process.kill()
            process.wait()


def run(arguments: argparse.Namespace, folder: Path) -> bool:
    """Run the fleet with its kills; print the figures; return whether the result is right."""
    models = folder / "models"
    models.mkdir()
    make: Callable[[int], bytes] = tiny_model if arguments.every else medium_model
    for number in range(arguments.units):
        (models / f"m{number:05d}.gguf").write_bytes(make(number))
    if arguments.poison:
        (models / POISON).write_bytes(make(arguments.units))
    (folder / "plan.toml").write_text('name = "kills"\n[[work]]\ndo = "ingest"\nfrom = ["models"]\n')
    cluster = Cluster(folder, arguments.workers)
    begun = time.monotonic()
    with LocalRegistry.open(folder / "home") as registry:
        try:
            status = _watch(registry, cluster, arguments)
        finally:
            cluster.end()
        return _is_right(registry, arguments, status, time.monotonic() - begun)


def _watch(registry: LocalRegistry, cluster: Cluster, arguments: argparse.Namespace) -> int:
    """Kill parts of the cluster until the driver has ended; return its status."""
    choose = random.Random(arguments.seed)
    victims = [] if arguments.every else [(0.15, "worker-0"), (0.4, "driver"), (0.65, "scheduler")]
    begun = last_kill = time.monotonic()
    while (status := cluster.look_after()) is None:
        time.sleep(0.5)
        assert time.monotonic() - begun < TIMEOUT_SECONDS, "the fleet hangs"
        state = _state(registry)
        if state is None or not state.done:
            last_kill = time.monotonic()
            continue
        if victims and state.done >= victims[0][0] * state.units:
            cluster.kill(victims.pop(0)[1])
        if arguments.every and time.monotonic() - last_kill > arguments.every:
            cluster.kill(f"worker-{choose.randrange(arguments.workers)}")
            last_kill = time.monotonic()
    return status


def _state(registry: LocalRegistry) -> FleetRun | None:
    with registry.catalog.reading() as session:
        if session.scalar(select(func.count()).select_from(FleetUnit)) == 0:
            return None
        return fleet_run(session, run_id_of(session, None))


def _is_right(registry: LocalRegistry, arguments: argparse.Namespace, status: int, seconds: float) -> bool:
    state = _state(registry)
    assert state is not None
    with registry.catalog.reading() as session:
        finished = select(func.count()).select_from(Ingest).where(Ingest.state == "finished").group_by(Ingest.source)
        twice = sum(count > 1 for count in session.scalars(finished))
        attempts, deaths = session.execute(select(func.sum(FleetUnit.attempts), func.sum(FleetUnit.deaths))).one()
    workers = len(state.workers) + state.workers_left_out
    print(f"{state.units} units in {seconds:.0f} s; the driver ended with {status}")
    print(f"{state.done} done, {state.failed} failed, {state.set_aside} set aside")
    print(f"{attempts} attempts by {workers} workers, of which {deaths} died with a unit")
    print(f"{twice} units done twice ({twice / state.units:.1%})")
    for failure in state.failures[:5]:
        print(f"  {failure.state} {Path(failure.source).name}: {failure.note}")
    aside = [Path(failure.source).name for failure in state.failures if failure.state == "set_aside"]
    return (
        state.is_over
        and state.done == arguments.units
        and aside == ([POISON] if arguments.poison else [])
        and twice <= TWICE_MAX * state.units
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--every", type=float, default=0.0, help="seconds between two kills of a random worker")
    parser.add_argument("--poison", action="store_true", help="add a file that kills its worker")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fleet-kills-") as folder:
        is_right = run(arguments, Path(folder))
        if not is_right:
            for log in sorted(Path(folder).glob("*.log")):
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}")
    sys.exit(0 if is_right else 1)


if __name__ == "__main__":
    main()
