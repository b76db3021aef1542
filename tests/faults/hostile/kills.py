"""Very many kills in minutes: a loaded process forks children, which work until SIGKILL. `make kill`.

The models share organs, or with `--families` they are families of a base, fine-tunes and quantisations, so that most
organs are stored by their difference to others. The victim is an ingest or a sweep, with families also a repack or the
removal of models; beside it another of these may run, which must succeed. A sweep has no grace period. A model that was
removed is ingested again later, as its next version.

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
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median

from bench.generated import Architecture, write_model
from organs.registry.catalog.queries.relatives import models_to_repack
from organs.registry.errors import Busy
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.references import store_alone
from organs.registry.store import BlobStore
from organs.registry.upkeep import sweep, verify
from tests.faults.failing import (
    CALLS,
    MomentCatalog,
    SteppedFiles,
    current_blob,
    ingest_path,
    let_leases_expire,
)
from tests.faults.families import (
    assert_models_come_back,
    assert_settles,
    assert_whole,
    remove,
    repack_all,
    visible_names,
)
from tests.faults.hostile.harness import Arena, Case, Options, Suite
from tests.related_models import FAMILY, LATER, family_files

SHAPE = Architecture(2, 256, 512, 256, 768, 4000, 64)
"""5.9 MB in 24 tensors."""
SHARED = 0.4
"""The part of each file, from its beginning, that all models have in common except for their names."""
VICTIMS = ("ingest", "ingest", "ingest", "ingest", "sweep")
FAMILY_VICTIMS = ("repack", "repack", "sweep", "ingest", "remove")
SECONDS = {"sweep": 0.05, "repack": 1.5, "remove": 1.5}
"""How long these take, at most."""
REMOVALS_KEEP = 3
"""A removal leaves at least this number of models."""
KILLS_OF_A_HOME = 40
FULL_CHECK_EVERY = 10
PATIENCE_SECONDS = 120.0

MOMENTS = ("starting", *CALLS, "reading", "read", "transaction", "commit", "committed", "after the end")


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


class Kills:
    """Runs the kills in the folder `scratch`."""

    def __init__(self, scratch: Path, options: Options) -> None:
        self.tally = Tally()
        self._scratch = scratch
        self._families: bool = options.families
        self._random = random.Random(options.seed)
        self._moment = Moment()
        self._waits_to_be_killed = True
        self._sources = (self._family_models if self._families else self._models)(options.models)
        self._contents = {path.stem: path.read_bytes() for path in self._sources}
        self._home = scratch / "home"
        self._missing: list[Path] = []
        self._new_home()
        self._seconds = SECONDS | {"ingest": self._duration()}
        self.finish_home()

    def kill_and_check(self) -> str:
        """Kill one child, and check what is left; return who was killed, and what it did."""
        how = self._kill_one()
        self._look()
        if not (self._missing or self._families) or self.tally.kills % KILLS_OF_A_HOME == 0:
            self.finish_home()
        return how

    def finish_home(self) -> None:
        """Complete this registry, check it, and begin a new one."""
        succeeds(self._fork(self._complete))
        self.tally.homes += 1
        self._new_home()

    def _kill_one(self) -> str:
        succeeds(self._fork(self._expire))
        works: dict[str, Callable[[], None]] = {"repack": self._repack, "sweep": self._sweep}
        if self._missing:
            works["ingest"] = self._ingest_next
        if len(self._sources) - len(self._missing) > REMOVALS_KEEP:
            works["remove"] = self._remove
        victims = FAMILY_VICTIMS if self._families else VICTIMS
        victim = self._random.choice([name for name in victims if name in works])
        others = [self._ingest_if_missing] if victim != "ingest" else []
        others += [self._sweep_at_once, self._repack_at_once] if self._families else []
        is_alone = not others or self._random.random() < 0.5
        beside = None if is_alone else self._fork(self._random.choice(others), unmarked=True)
        child = self._fork(works[victim])
        if victim != "ingest" or self._families:
            self._wait_while("starting")
        how = self._kill(child, victim)
        if beside is not None:
            succeeds(beside)
        return how

    def _models(self, number: int) -> list[Path]:
        """Create models whose first organs are the same."""
        paths = [self._scratch / f"model-{place}.gguf" for place in range(10, 10 + number)]
        for place, path in enumerate(paths, 10):
            size = write_model(path, SHAPE, place)
            own = path.read_bytes()
            first, shared = paths[0].read_bytes(), range(size // 10, int(SHARED * size))
            path.write_bytes(own[: shared.start] + first[shared.start : shared.stop] + own[shared.stop :])
        return paths

    def _family_models(self, number: int) -> list[Path]:
        """Write the models of as many families as are needed for this number."""
        names = [*FAMILY, *LATER]
        paths = []
        for seed in range(-(-number // len(names))):
            for name, data in family_files(names[: number - len(paths)], seed).items():
                paths.append(self._scratch / f"{name}-{seed}.gguf")
                paths[-1].write_bytes(data)
        return paths

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
        if self._families:
            first = len(self._missing) // 2
            succeeds(self._fork(self._ingest_all, self._missing[:first], unmarked=True))
            self._missing = self._missing[first:]

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
                names.write_text("\n".join(visible_names(registry)))

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
        catalog = MomentCatalog(registry.catalog, self._moment.mark)
        blobs = BlobStore(registry.settings.blobs, files, current=partial(current_blob, registry))
        return LocalRegistry(registry.settings, catalog, blobs)

    def _ingest(self, path: Path) -> None:
        ingest_path(self._opened(), path, name=ModelName("local", path.stem))
        self._end()

    def _end(self) -> None:
        self._moment.mark("after the end")
        if self._waits_to_be_killed:
            signal.pause()

    def _ingest_all(self, paths: list[Path]) -> None:
        for path in paths:
            ingest_path(self._opened(), path, name=ModelName("local", path.stem))

    def _ingest_next(self) -> None:
        self._ingest(self._missing[0])

    def _ingest_if_missing(self) -> None:
        self._ingest_all(self._missing[:1])

    def _repack(self) -> None:
        registry = self._opened()
        while True:
            repack_all(registry)
            with registry.catalog.reading() as session:
                models = models_to_repack(session, everything=True)
            store_alone(registry.catalog, registry.blobs, models)

    def _repack_at_once(self) -> None:
        repack_all(self._opened())

    def _remove(self) -> None:
        registry = self._opened()
        names = visible_names(registry)
        for name in self._random.sample(names, max(0, len(names) - REMOVALS_KEEP)):
            remove(registry, name)
            self._sweep_at_once(registry)
        self._end()

    def _sweep(self) -> None:
        registry = self._opened()
        while True:
            self._sweep_at_once(registry)

    def _sweep_at_once(self, registry: LocalRegistry | None = None) -> None:
        opened = registry or self._opened()
        with suppress(Busy):
            sweep(opened.catalog, opened.blobs, grace=timedelta(0), dry_run=False)

    def _expire(self) -> None:
        with LocalRegistry.open(self._home) as registry:
            let_leases_expire(registry)

    def _check(self) -> None:
        with LocalRegistry.open(self._home) as registry:
            assert verify(registry.catalog, registry.blobs).faults == []

    def _check_fully(self) -> None:
        with LocalRegistry.open(self._home) as registry:
            assert_whole(registry, self._contents, self._scratch / "back")

    def _complete(self) -> None:
        with LocalRegistry.open(self._home) as registry:
            there = visible_names(registry)
            for path in self._sources:
                if path.stem not in there:
                    ingest_path(registry, path, name=ModelName("local", path.stem))
            assert sorted(visible_names(registry)) == sorted(self._contents)
            assert_models_come_back(registry, self._contents, self._scratch / "back")
            assert_settles(registry, self._contents, self._scratch / "back")


def succeeds(child: int) -> None:
    _, status = os.waitpid(child, 0)
    assert status == 0, "what a child has found stands above"


@contextmanager
def opened(arena: Arena, options: Options) -> Iterator[Iterator[Case]]:
    """Prepare the models; afterwards complete the last registry."""
    kills = Kills(arena.folder, options)

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


SUITE = Suite(opened, {"kills": 1000, "seed": 1, "models": 8, "families": False})
"""`models` is the number that a registry takes in."""
