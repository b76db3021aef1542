"""A fleet with the scheduler of Dask, of which every part is killed: the ledger must still end with all units done.

    python -m tests.faults.hostile fleet-kills                             # 200 models
    python -m tests.faults.hostile fleet-kills --units 10000 --every 20    # tiny models; a worker is killed every 20 s
    python -m tests.faults.hostile fleet-kills --poison                    # one of the files kills its workers

A worker, the driver and the scheduler are killed once each, and started again as a service manager does it. The
registry is an SQLite database and a folder. Work counts as done twice if a second ingest of the same file was finished.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from sqlalchemy import func, select

from organs.ingest.fleet import worker
from organs.registry.catalog.queries.fleet import fleet_run, run_id_of
from organs.registry.catalog.tables import FleetUnit, Ingest
from organs.registry.entities.fleet import FleetRun
from organs.registry.local import LocalRegistry
from tests.faults.hostile.harness import Arena, Case, Options, Suite
from tests.gguf_files import file_bytes
from tests.small_models import block_metadata, block_tensors, weight_tensor
from tests.web.live_server import ROOT, free_port

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
    return file_bytes(block_metadata(f"Tiny {seed}", 1), [weight_tensor("token_embd.weight", (32, 16), seed)])


def medium_model(seed: int) -> bytes:
    """Return a model of about 2 MB."""
    return file_bytes(block_metadata(f"Medium {seed}", 4), block_tensors(4, 192, seed))


@dataclass(slots=True)
class Cluster:
    """A scheduler, workers and a driver, each a process of its own."""

    arena: Arena
    workers: int
    address: str = field(default_factory=lambda: f"tcp://127.0.0.1:{free_port()}")
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def commands(self) -> dict[str, tuple[str, ...]]:
        port = self.address.rpartition(":")[2]
        kept = ("--nthreads", "1", "--no-dashboard", "--preload", __name__)
        commands: dict[str, tuple[str, ...]] = {
            "scheduler": ("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard")
        }
        for number in range(self.workers):
            commands[f"worker-{number}"] = ("distributed.cli.dask_worker", self.address, *kept)
        plan = str(self.arena.folder / "plan.toml")
        commands["driver"] = ("organs.cli", "fleet", "run", plan, "--scheduler", self.address)
        return commands

    def look_after(self) -> int | None:
        """Start what does not run; return the exit status of a driver that has ended by itself."""
        environment = self.arena.environment(PYTHONPATH=f"{ROOT / 'src'}:{ROOT}", ORGAN_HOME=str(self.arena.home))
        for name, words in self.commands().items():
            process = self.processes.get(name)
            if process is None or process.poll() is not None:
                if name == "driver" and process is not None and process.returncode >= 0:
                    return process.returncode
                command = [sys.executable, "-P", "-m", *words]
                self.processes[name] = self.arena.start(command, environment, self.arena.folder / f"{name}.log")
        return None

    def kill(self, name: str) -> None:
        """Kill the process, of a worker the one that does the work and not the nanny that starts it again."""
        process = psutil.Process(self.processes[name].pid)
        children = [child for child in process.children(recursive=True) if "spawn" in " ".join(child.cmdline())]
        victim = children[-1] if name.startswith("worker") and children else process
        victim.kill()
        print(f"{time.strftime('%H:%M:%S')} killed {name}", flush=True)


@contextmanager
def opened(arena: Arena, options: Options) -> Iterator[list[Case]]:
    """Write the models and the plan of the fleet."""
    models = arena.folder / "models"
    models.mkdir()
    make: Callable[[int], bytes] = tiny_model if options.every else medium_model
    for number in range(options.units):
        (models / f"m{number:05d}.gguf").write_bytes(make(number))
    if options.poison:
        (models / POISON).write_bytes(make(options.units))
    (arena.folder / "plan.toml").write_text('name = "kills"\n[[work]]\ndo = "ingest"\nfrom = ["models"]\n')
    with LocalRegistry.open(arena.home) as registry:
        yield [Case("fleet", f"{options.units} units", lambda: run(registry, arena, options))]
    if arena.report.faults:
        for log in sorted(arena.folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}")


def run(registry: LocalRegistry, arena: Arena, options: Options) -> str:
    """Kill parts of the cluster until the driver has ended; the ledger must have all units as done."""
    cluster, choose = Cluster(arena, options.workers), random.Random(options.seed)
    victims = [] if options.every else [(0.15, "worker-0"), (0.4, "driver"), (0.65, "scheduler")]
    begun = last_kill = time.monotonic()
    while (status := cluster.look_after()) is None:
        time.sleep(0.5)
        assert time.monotonic() - begun < TIMEOUT_SECONDS, "the fleet hangs"
        state = state_of(registry)
        if state is None or not state.done:
            last_kill = time.monotonic()
            continue
        if victims and state.done >= victims[0][0] * state.units:
            cluster.kill(victims.pop(0)[1])
        if options.every and time.monotonic() - last_kill > options.every:
            cluster.kill(f"worker-{choose.randrange(options.workers)}")
            last_kill = time.monotonic()
    for process in cluster.processes.values():
        arena.kill(process)
    check(registry, arena, options)
    return f"done, the driver ended with {status}"


def state_of(registry: LocalRegistry) -> FleetRun | None:
    with registry.catalog.reading() as session:
        if session.scalar(select(func.count()).select_from(FleetUnit)) == 0:
            return None
        return fleet_run(session, run_id_of(session, None))


def check(registry: LocalRegistry, arena: Arena, options: Options) -> None:
    """Check that each unit is done, few of them twice, and that only the poison is set aside."""
    state = state_of(registry)
    assert state is not None
    with registry.catalog.reading() as session:
        finished = select(func.count()).select_from(Ingest).where(Ingest.state == "finished").group_by(Ingest.source)
        twice = sum(count > 1 for count in session.scalars(finished))
        attempts, deaths = session.execute(select(func.sum(FleetUnit.attempts), func.sum(FleetUnit.deaths))).one()
    workers = len(state.workers) + state.workers_left_out
    arena.report.figures += [
        f"{state.done} done, {state.failed} failed, {state.set_aside} set aside",
        f"{attempts} attempts by {workers} workers, of which {deaths} died with a unit",
        f"{twice} units done twice ({twice / state.units:.1%})",
        *(f"{failure.state} {Path(failure.source).name}: {failure.note}" for failure in state.failures[:5]),
    ]
    aside = [Path(failure.source).name for failure in state.failures if failure.state == "set_aside"]
    assert state.is_over
    assert state.done == options.units, f"{state.done} of {options.units} are done"
    assert aside == ([POISON] if options.poison else []), f"set aside: {aside}"
    assert twice <= TWICE_MAX * state.units, f"{twice} units were done twice"


SUITE = Suite(opened, {"units": 200, "workers": 2, "every": 0.0, "poison": False, "seed": 1})
"""`every` is the number of seconds between two kills of a random worker; `poison` adds a file that kills its worker."""
