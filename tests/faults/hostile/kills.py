"""Very many kills in minutes: a loaded process forks children, which ingest or sweep until SIGKILL. `make kill`.

The moment of each kill is drawn evenly from the duration of an undisturbed run, which is measured and then adjusted as
the machine gets busier or quieter; a kill after the end is not counted. After each one the rows are compared with the
files; after every tenth everything is read and every model is assembled and compared. When all models of a registry are
ingested, or after enough kills, the missing ones are ingested and swept, nothing may be left over, and a new registry
is begun. `test_killed_ingest.py` does the same to the real command, more slowly.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median

from sqlalchemy.orm import Session

from bench.generated import Architecture, write_model
from organs.registry.catalog.engine import Catalog
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.store import BlobStore
from organs.registry.upkeep import sweep, verify
from tests.faults.failing import (
    CALLS,
    SteppedFiles,
    assert_comes_back,
    assert_sweeps_leave_no_rest,
    current_blob,
    ingest_path,
    let_leases_expire,
    model_names,
    verify_all,
)
from tests.faults.hostile.harness import Arena, Case, Open, Options, Suite

SHAPE = Architecture(2, 256, 512, 256, 768, 4000, 64)
"""5.9 MB in 24 tensors."""
SHARED = 0.4
"""The part of each file, from its beginning, that all models have in common except for their names."""
SWEEPS_SHARE = 0.2
"""The share of kills that hit a sweep; an ingest runs beside every second one."""
KILLS_OF_A_HOME = 40
FULL_CHECK_EVERY = 10
PATIENCE_SECONDS = 120.0

MOMENTS = ("starting", *CALLS, "reading", "transaction", "commit", "between", "after the end")


@dataclass(slots=True)
class Tally:
    """Counts of kills and results."""

    kills: int = 0
    """The kills that were not too late."""
    committed: int = 0
    full_checks: int = 0
    homes: int = 0


class Moment:
    """One byte that parent and child share: the last action of the child."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)

    def mark(self, name: str) -> None:
        self._shared[0] = MOMENTS.index(name)

    @property
    def name(self) -> str:
        return MOMENTS[self._shared[0]]


class MarkedCatalog(Catalog):
    """The catalog of a registry that marks transactions and commits."""

    def __init__(self, catalog: Catalog, moment: Moment) -> None:
        super().__init__(catalog.reader, catalog.writer)
        object.__setattr__(self, "moment", moment)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        self.moment.mark("reading")
        with super().reading() as session:
            yield session
        self.moment.mark("between")

    @contextmanager
    def writing(self) -> Iterator[Session]:
        self.moment.mark("transaction")
        with super().writing() as session:
            yield session
            session.flush()
            self.moment.mark("commit")
        self.moment.mark("between")


class Kills:
    """Runs the kills in the folder `scratch`."""

    def __init__(self, scratch: Path, seed: int, models: int) -> None:
        self.tally = Tally()
        self._scratch = scratch
        self._random = random.Random(seed)
        self._moment = Moment()
        self._waits_to_be_killed = True
        self._sources = self._models(models)
        self._home = scratch / "home"
        self._missing: list[Path] = []
        self._new_home()
        self._seconds = {"ingest": self._duration(), "sweep": 0.05}
        self.finish_home()

    def kill_and_check(self) -> str:
        """Kill one child, and check what is left; return who was killed, and what it did."""
        how = self._kill_one()
        self._look()
        if self._is_done() or self.tally.kills % KILLS_OF_A_HOME == 0:
            self.finish_home()
        return how

    def finish_home(self) -> None:
        """Complete this registry, check it, and begin a new one."""
        succeeds(self._fork(self._complete))
        self.tally.homes += 1
        self._new_home()

    def _is_done(self) -> bool:
        return not self._missing

    def _kill_one(self) -> str:
        return self._kill_a_sweep() if self._random.random() < SWEEPS_SHARE else self._kill_an_ingest()

    def _models(self, number: int) -> list[Path]:
        """Create models whose first organs are the same."""
        paths = [self._scratch / f"model-{place}.gguf" for place in range(10, 10 + number)]
        for place, path in enumerate(paths, 10):
            size = write_model(path, SHAPE, place)
            own = path.read_bytes()
            first, shared = paths[0].read_bytes(), range(size // 10, int(SHARED * size))
            path.write_bytes(own[: shared.start] + first[shared.start : shared.stop] + own[shared.stop :])
        return paths

    def _kill_an_ingest(self) -> str:
        return self._kill(self._fork(self._ingest, self._missing[0]), "ingest")

    def _kill_a_sweep(self) -> str:
        succeeds(self._fork(self._expire))
        beside = self._fork(self._ingest, self._missing[0], unmarked=True) if self._random.random() < 0.5 else None
        child = self._fork(self._sweep)
        if self._random.random() < 0.9:
            self._wait_while("starting")
        how = self._kill(child, "sweep")
        if beside is not None:
            succeeds(beside)
        return how

    def _kill(self, child: int, what: str) -> str:
        time.sleep(self._random.uniform(0, self._seconds[what]))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"the {what} failed by itself"
        if self._moment.name == "after the end":
            self._seconds[what] *= 0.9
            return "too late"
        self._seconds[what] *= 1.01 if what == "ingest" else 1
        self.tally.kills += 1
        return f"{what}: {self._moment.name}"

    def _wait_while(self, moment: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._moment.name == moment:
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def _look(self) -> None:
        full = self.tally.kills % FULL_CHECK_EVERY == 0
        succeeds(self._fork(self._check_fully if full else self._check))
        self.tally.full_checks += full
        registered = set(self._registered())
        self.tally.committed += sum(path.stem in registered for path in self._missing)
        removed = [path for path in self._sources if path not in self._missing and path.stem not in registered]
        self._missing = [*(path for path in self._missing if path.stem not in registered), *removed]

    def _new_home(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)
        self._missing = list(self._sources)
        self._random.shuffle(self._missing)
        succeeds(self._fork(lambda: LocalRegistry.open(self._home).close()))

    def _duration(self) -> float:
        """Return the seconds of an undisturbed ingest, the median of three."""
        seconds = []
        for path in self._missing[:3]:
            begun = time.monotonic()
            child = self._fork(self._ingest, path)
            while self._moment.name != "after the end":
                assert time.monotonic() - begun < PATIENCE_SECONDS
                time.sleep(0.001)
            seconds.append(time.monotonic() - begun)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return median(seconds)

    def _registered(self) -> list[str]:
        """Return the names of the registered models, read by a child: this process opens no database and starts no
        thread.
        """
        names = self._scratch / "names"

        def write() -> None:
            with LocalRegistry.open(self._home) as registry:
                names.write_text("\n".join(self._names(registry)))

        succeeds(self._fork(write))
        return names.read_text().split("\n")

    def _fork(self, work: Callable[..., None], *arguments: object, unmarked: bool = False) -> int:
        if not unmarked:
            self._moment.mark("starting")
        child = os.fork()
        if child:
            return child
        if unmarked:
            self._moment = Moment()
            self._waits_to_be_killed = False
        status = 1
        try:
            work(*arguments)
            status = 0
        except BaseException:  # after any exception, the child must not continue as the parent
            traceback.print_exc()
            raise
        finally:
            os._exit(status)

    # Code of a child.

    def _opened(self) -> LocalRegistry:
        registry = LocalRegistry.open(self._home)
        files = SteppedFiles(lambda _number, name: self._moment.mark(name))
        catalog = MarkedCatalog(registry.catalog, self._moment)
        blobs = BlobStore(registry.settings.blobs, files, current=partial(current_blob, registry))
        return LocalRegistry(registry.settings, catalog, blobs)

    def _ingest(self, path: Path) -> None:
        ingest_path(self._opened(), path, name=ModelName("local", path.stem))
        self._end()

    def _end(self) -> None:
        self._moment.mark("after the end")
        if self._waits_to_be_killed:
            signal.pause()

    def _names(self, registry: LocalRegistry) -> list[str]:
        return model_names(registry)

    def _sweep(self) -> None:
        registry = self._opened()
        while True:
            sweep(registry.catalog, registry.blobs, grace=timedelta(0), dry_run=False)

    def _expire(self) -> None:
        with LocalRegistry.open(self._home) as registry:
            let_leases_expire(registry)

    def _check(self) -> None:
        with LocalRegistry.open(self._home) as registry:
            assert verify(registry.catalog, registry.blobs).faults == []

    def _check_fully(self) -> None:
        with LocalRegistry.open(self._home) as registry:
            assert verify_all(registry).faults == []
            self._assert_models_come_back(registry)

    def _complete(self) -> None:
        with LocalRegistry.open(self._home) as registry:
            for path in self._sources:
                ingest_path(registry, path, name=ModelName("local", path.stem))
            assert len(model_names(registry)) == len(self._sources)
            assert_sweeps_leave_no_rest(registry)
            self._assert_models_come_back(registry)

    def _assert_models_come_back(self, registry: LocalRegistry) -> None:
        for name in model_names(registry):
            assert_comes_back(registry, self._scratch / f"{name}.gguf")


def succeeds(child: int) -> None:
    _, status = os.waitpid(child, 0)
    assert status == 0, "what a child has found stands above"


def opened_with(make: Callable[[Path, int, int], Kills]) -> Open:
    """Return how a suite of such kills is opened."""

    @contextmanager
    def opened(arena: Arena, options: Options) -> Iterator[Iterator[Case]]:
        kills = make(arena.folder, options.seed, options.models)

        def cases() -> Iterator[Case]:
            while kills.tally.kills < options.kills and not arena.report.faults:
                yield Case("kills", str(kills.tally.kills + 1), kills.kill_and_check)

        yield cases()
        if not arena.report.faults:
            kills.finish_home()
        tally = kills.tally
        arena.report.figures.append(
            f"{tally.kills} kills; {tally.committed} models committed meanwhile, "
            f"{tally.homes} registries completed and swept, {tally.full_checks} full checks"
        )

    return opened


SUITE = Suite(opened_with(Kills), {"kills": 1000, "seed": 1, "models": 8})
"""`models` is the number that a registry takes in."""
