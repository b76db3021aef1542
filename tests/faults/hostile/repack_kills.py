"""Kills as in `kills`, in registries full of references: of repacks, ingests, removals of models and sweeps.

The models are families of a base, fine-tunes and quantisations, so that most organs are stored by their difference to
others. Beside the victim another of these may run, which must succeed. A sweep has no grace period. A model that was
removed is ingested again later, as its next version.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from organs.registry.catalog.queries.relatives import models_to_repack
from organs.registry.errors import Busy
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.references import store_alone
from organs.registry.upkeep import sweep
from tests.faults.failing import ingest_path
from tests.faults.families import (
    assert_models_come_back,
    assert_settles,
    assert_whole,
    remove,
    repack_all,
    visible_names,
)
from tests.faults.hostile.harness import Suite
from tests.faults.hostile.kills import Kills, opened_with, succeeds
from tests.related_models import FAMILY, LATER, family_files

REMOVALS_KEEP = 3
"""A removal leaves at least this number of models."""


class FamilyKills(Kills):
    """Runs the kills; each home takes in families, in another order each."""

    def _models(self, number: int) -> list[Path]:
        names = [*FAMILY, *LATER]
        paths = []
        for seed in range(-(-number // len(names))):
            for name, data in family_files(names[: number - len(paths)], seed).items():
                paths.append(self._scratch / f"{name}-{seed}.gguf")
                paths[-1].write_bytes(data)
        return paths

    def _new_home(self) -> None:
        super()._new_home()
        first = self._missing[: len(self._missing) // 2]
        succeeds(self._fork(self._ingest_all, first, unmarked=True))
        self._missing = self._missing[len(first) :]

    def _is_done(self) -> bool:
        return False

    def _kill_one(self) -> str:
        for what in ("repack", "remove"):
            self._seconds.setdefault(what, 1.5)
        succeeds(self._fork(self._expire))
        works: dict[str, Callable[[], None]] = {"repack": self._repack, "sweep": self._sweep}
        if self._missing:
            works["ingest"] = self._ingest_next
        if len(self._sources) - len(self._missing) > REMOVALS_KEEP:
            works["remove"] = self._remove
        victim = self._random.choice(["repack", *works])
        others = [self._sweep_once, self._repack_once, *([] if victim == "ingest" else [self._ingest_if_missing])]
        beside = self._fork(self._random.choice(others), unmarked=True) if self._random.random() < 0.5 else None
        child = self._fork(works[victim])
        self._wait_while("starting")
        how = self._kill(child, victim)
        if beside is not None:
            succeeds(beside)
        return how

    # Code of a child.

    def _ingest_all(self, paths: list[Path]) -> None:
        for path in paths:
            ingest_path(self._opened(), path, name=ModelName("local", path.stem))

    def _ingest_next(self) -> None:
        self._ingest(self._missing[0])

    def _ingest_if_missing(self) -> None:
        if self._missing:
            path = self._missing[0]
            ingest_path(self._opened(), path, name=ModelName("local", path.stem))

    def _repack(self) -> None:
        registry = self._opened()
        while True:
            repack_all(registry)
            with registry.catalog.reading() as session:
                models = models_to_repack(session, everything=True)
            store_alone(registry.catalog, registry.blobs, models)

    def _repack_once(self) -> None:
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

    def _sweep_once(self) -> None:
        self._sweep_at_once(self._opened())

    def _sweep_at_once(self, registry: LocalRegistry) -> None:
        try:
            sweep(registry.catalog, registry.blobs, grace=timedelta(0), dry_run=False)
        except Busy:
            return

    def _names(self, registry: LocalRegistry) -> list[str]:
        return visible_names(registry)

    def _check_fully(self) -> None:
        with LocalRegistry.open(self._home) as registry:
            assert_whole(registry, self._contents(), self._scratch / "back")

    def _complete(self) -> None:
        with LocalRegistry.open(self._home) as registry:
            there = visible_names(registry)
            for path in self._sources:
                if path.stem not in there:
                    ingest_path(registry, path, name=ModelName("local", path.stem))
            assert sorted(visible_names(registry)) == sorted(path.stem for path in self._sources)
            assert_models_come_back(registry, self._contents(), self._scratch / "back")
            assert_settles(registry, self._contents(), self._scratch / "back")

    def _contents(self) -> dict[str, bytes]:
        return {path.stem: path.read_bytes() for path in self._sources}


SUITE = Suite(opened_with(FamilyKills), {"kills": 300, "seed": 1, "models": 8})
