"""A folder that appears under its name whole and durable, or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from organs.ingest.directory.folder import says_its_format
from organs.registry.errors import BadSource
from organs.registry.store.files import PUBLIC_FILE, PUBLIC_FOLDER, Buffer, Files
from organs.registry.store.placing import check_room, placing_error, temporary_beside

SYNCERS = 4
WAITING_MAX = 64
"""Files that are written and wait for the disk, each an open descriptor."""


class Staging:
    """The folder while it is being written, under a name of its own beside its place."""

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._files = files
        self._syncers = ThreadPoolExecutor(SYNCERS, thread_name_prefix="sync")
        self._room = threading.Semaphore(WAITING_MAX)
        self._syncing: list[Future[None]] = []
        self._folders = [path]

    def make_folder(self, name: str) -> None:
        """A folder in it."""
        self._files.make_folder(self.path / name, PUBLIC_FOLDER)
        self._folders.append(self.path / name)

    @contextmanager
    def new_file(self, name: str) -> Iterator[StagedFile]:
        """A new file in it, written from front to back; its way to the disk goes on behind the block."""
        descriptor = self._files.create(self.path / name, PUBLIC_FILE)
        try:
            yield StagedFile(descriptor, self._files)
        except BaseException:
            self._files.close(descriptor)
            raise
        self._room.acquire()
        self._syncing.append(self._syncers.submit(self._sync, descriptor))

    def finish(self) -> None:
        """Everything in it is on the disk when this returns."""
        for future in self._syncing:
            future.result()
        for folder in reversed(self._folders):
            self._files.sync_folder(folder)

    def close(self) -> None:
        """Wait for the threads."""
        self._syncers.shutdown()

    def _sync(self, descriptor: int) -> None:
        try:
            try:
                self._files.sync(descriptor)
            finally:
                self._files.close(descriptor)
        finally:
            self._room.release()


class StagedFile:
    """A file that is written from front to back."""

    def __init__(self, descriptor: int, files: Files) -> None:
        self.size_bytes = 0
        self._descriptor = descriptor
        self._files = files

    def write(self, *pieces: Buffer) -> None:
        """Append `pieces`."""
        self.size_bytes += self._files.write_at(self._descriptor, pieces, self.size_bytes)


@contextmanager
def staged(target: Path, size_bytes: int, *, replace: bool, files: Files | None = None) -> Iterator[Staging]:
    """A folder to be filled, which becomes `target` when the block ends well; else nothing of it is left.

    With `replace` an organ directory of our format that is there gives way; an empty folder always does. Raises
    BadSource for anything else in the way, DiskFull when `size_bytes` do not fit, StoreUnwritable.
    """
    files = files or Files()
    check_target(target, replace=replace)
    temporary = temporary_beside(target)
    try:
        check_room(target.parent, size_bytes, files)
        files.make_folder(temporary, PUBLIC_FOLDER)
        staging = Staging(temporary, files)
        try:
            yield staging
            staging.finish()
        finally:
            staging.close()
        check_target(target, replace=replace)  # somebody may have put something there meanwhile
        _place(temporary, target, files)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise placing_error(error, target) from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def check_target(target: Path, *, replace: bool) -> None:
    """Raise BadSource for what is in the way, as `staged` does."""
    if not target.parent.is_dir():
        raise BadSource(f"{target.parent}: no such folder")
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir():
        raise BadSource(f"{target}: there already, and no folder")
    if any(target.iterdir()):
        if not says_its_format(target):  # stricter than for reading: what gives way is deleted
            raise BadSource(f"{target}: a folder with other things in it; choose a new one")
        if not replace:
            raise BadSource(f"{target}: there already; --force replaces it")


def _place(temporary: Path, target: Path, files: Files) -> None:
    old = None
    if target.is_dir() and any(target.iterdir()):
        old = target.parent / f".organ-{secrets.token_hex(8)}.old"
        files.rename(target, old)
    try:
        files.rename(temporary, target)
    except OSError:
        if old is not None:
            with suppress(OSError):  # what is in the way now is not ours; the old one is beside it
                files.rename(old, target)
        raise
    files.sync_folder(target.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def total(sizes: Sequence[int], block_bytes: int = 4096) -> int:
    """What files of these sizes take on a disk."""
    return sum(-(-size // block_bytes) * block_bytes for size in sizes)
