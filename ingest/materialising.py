"""Files of registered models that are kept while they are used: `organ run` writes a model once, and starts programs.

The files used longest ago are removed first. A file that a program of `organ run` uses is locked and stays.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from organs.ingest.tools.installing import outside_lock, remove_installed, unwritten_parts, write_layout
from organs.ingest.tools.layouts import cache_layout
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.queries.outside import outside_files
from organs.registry.catalog.tables import OutsideFile
from organs.registry.catalog.vocabulary import CACHE, INSTALLED
from organs.registry.errors import Busy
from organs.registry.local import LocalRegistry
from organs.registry.progress import Progress, no_progress
from organs.registry.store.files import Files, translating

FOLDER = "files"
LOCK = ".in-use"


@dataclass(frozen=True, slots=True)
class Materialised:
    """The file of a model that is kept while it is used."""

    path: Path
    """The file, or its first shard."""
    lock: int
    """A descriptor: no process removes the file while it is open, also in a program that inherits it."""


@contextmanager
def materialised(
    registry: LocalRegistry, model: str, keep_bytes: int, progress: Progress = no_progress
) -> Iterator[Materialised]:
    """Return a context manager with the file of a model, which is written if it is not there.

    In the block no other process removes it. Afterwards it stays, and the files used longest ago are removed until the
    others have at most `keep_bytes`. Raises the errors of `installing.install`.
    """
    folder = Path(registry.settings.home).absolute() / FOLDER
    with registry.catalog.reading() as session:
        layout = cache_layout(session, model_by_text(session, model), folder)
    lock = layout.main.parent / LOCK
    with outside_lock(registry):
        with translating(lock):
            Files().make_folder(lock.parent)
            descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # at once: others lock it only inside of `outside_lock`
        try:
            if missing := unwritten_parts(registry, layout.parts):  # else nothing is written, also not in the catalog
                write_layout(registry, layout, missing, progress)
            os.utime(lock)
            _remove_unused(registry, keep_bytes)
        except BaseException:
            os.close(descriptor)
            raise
    try:
        yield Materialised(layout.main, descriptor)
    finally:
        with suppress(OSError):
            os.utime(lock)
        os.close(descriptor)
    with suppress(Busy), outside_lock(registry, 0):
        _remove_unused(registry, keep_bytes)


def _remove_unused(registry: LocalRegistry, keep_bytes: int) -> None:
    """Remove the files that were used longest ago, and that no process uses, until the others fit `keep_bytes`.

    The file that was used last stays.
    """
    models: dict[Path, list[OutsideFile]] = {}
    with registry.catalog.reading() as session:
        for file in outside_files(session, INSTALLED, tool=CACHE):
            models.setdefault(Path(file.path).parent, []).append(file)
    total = sum(file.size_bytes for files in models.values() for file in files)
    for place in sorted(models, key=_used_at)[:-1]:
        if total <= keep_bytes:
            return
        with _unused(place) as is_unused:
            if is_unused:
                remove_installed(registry, models[place])
                total -= sum(file.size_bytes for file in models[place])


def _used_at(place: Path) -> float:
    try:
        return (place / LOCK).stat().st_mtime
    except OSError:
        return 0.0


@contextmanager
def _unused(place: Path) -> Iterator[bool]:
    """Return a context manager with whether no process uses the files in `place`; a folder without files is removed."""
    try:
        descriptor = os.open(place / LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        yield True
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
        with suppress(OSError):
            if os.listdir(place) == [LOCK]:
                os.unlink(place / LOCK)
                os.rmdir(place)
    finally:
        os.close(descriptor)
