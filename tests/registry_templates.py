"""Registries for many tests: prepared once in a run, by the first worker that needs one, then copied."""

from __future__ import annotations

import fcntl
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.accounts import KnownToken, token_account
from organs.registry.local import LocalRegistry
from organs.registry.tokens import SentToken
from tests import buckets, postgres
from tests.related_models import family_files, ingest_bytes, model_file, related_tensors
from tests.small_models import block_tensors, ingest_file

DATABASE = postgres.MARKER if postgres.is_used() else "registry.sqlite3"
"""The file in a home that is its database, or that names it."""
ZOO_FILES = sorted((Path(__file__).parents[1] / "examples" / "zoo").glob("*.gguf"))

FillRegistry = Callable[[LocalRegistry, Path], None]
"""Fills an empty registry; the folder is for temporary files."""


@dataclass(frozen=True, slots=True)
class RegistryTemplates:
    """Homes of registries in a folder that all workers of a run share, by the name of the preparing function."""

    folder: Path
    empty_database: Path

    def copy(self, furnish: FillRegistry, target: Path) -> Path:
        """Copy an empty registry prepared by `furnish` to the folder `target`, and return it."""
        return Path(shutil.copytree(self._kept(furnish), target))

    def fill(self, registry: LocalRegistry, furnish: FillRegistry) -> None:
        """Replace the content of `registry`, which is open and empty, by that of a prepared one."""
        kept, home = self._kept(furnish), registry.settings.home
        shutil.copytree(kept, home, dirs_exist_ok=True, ignore=lambda *_: [DATABASE, buckets.MARKER])
        if buckets.is_used():
            buckets.copy_objects(home, kept)
        if postgres.is_used():
            registry.catalog.close()
            postgres.replace_database(home, kept)
            return
        with (
            closing(sqlite3.connect(f"{(kept / DATABASE).as_uri()}?immutable=1", uri=True)) as source,
            closing(sqlite3.connect(home / DATABASE)) as target,
        ):
            source.backup(target)

    @contextmanager
    def open_copy(self, furnish: FillRegistry, target: Path) -> Iterator[LocalRegistry]:
        """Open the registry in a copy."""
        with LocalRegistry.open(self.copy(furnish, target)) as registry:
            yield registry

    def build_once(self, name: str, make: Callable[[Path], None]) -> Path:
        """Return the folder that `make` has filled, for all callers with `name` in this run."""
        kept, making = self.folder / name, self.folder / f"{name}.making"
        with (self.folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                shutil.rmtree(making, ignore_errors=True)  # of a worker that failed
                making.mkdir()
                make(making)
                postgres.keep_databases(making)
                making.rename(kept)
        return kept

    def _kept(self, furnish: FillRegistry) -> Path:
        def make(folder: Path) -> None:
            (folder / "home").mkdir()
            shutil.copy(self.empty_database, folder / "home")
            with LocalRegistry.open(folder / "home") as registry:
                furnish(registry, folder)

        return self.build_once(f"{furnish.__module__}.{furnish.__name__}", make) / "home"


def add_zoo_models(registry: LocalRegistry, _folder: Path) -> None:
    """Add the shipped models under their own names."""
    for path in ZOO_FILES:
        ingest_file(registry, path)


def add_three_models(registry: LocalRegistry, folder: Path) -> None:
    """Add `local/base`, a fine-tune of it (`tuned`) and an unrelated model (`stranger`)."""
    ingest_bytes(registry, folder, "base", model_file("Base", related_tensors()))
    ingest_bytes(registry, folder, "tuned", model_file("Tuned", related_tensors(correlation=0.995)))
    ingest_bytes(registry, folder, "stranger", model_file("Stranger", block_tensors(2, seed=9)))


def add_family(registry: LocalRegistry, folder: Path) -> None:
    """Add the models of `family_files`, so that organs are stored by their difference to others of both kinds."""
    for name, data in family_files().items():
        ingest_bytes(registry, folder, name, data)


def add_family_backwards(registry: LocalRegistry, folder: Path) -> None:
    """Add the models of `family_files` from the coarsest to the base: a repack stores most organs again."""
    for name, data in reversed(family_files().items()):
        ingest_bytes(registry, folder, name, data)


def valid_account(session: Session, token: SentToken, moment: datetime) -> KnownToken | None:
    """Return the account of a token; None if it is unknown, revoked or expired, or its contributor is suspended."""
    account = token_account(session, token, moment)
    return account if isinstance(account, KnownToken) else None
