"""The files of uploads: plain bytes that grow at their end, one client at a time.

A file is called by the random id of its upload. Its lock is the operating system's, so a process that is killed lets go
of it. How many of its bytes count stands in the upload's row: what lies beyond was on its way when a process died, and
is written over.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from organs.registry.errors import Conflict, DiskFull, NotFound
from organs.registry.registry import Registry
from organs.registry.store.files import Files, make_durable_folder, translated

FREE_MARGIN_BYTES = 64 * 1024 * 1024
"""Left on the disk for the database and everybody else."""
READ_BYTES = 1024 * 1024

_NAME = re.compile(r"[0-9A-Za-z_-]{22}", re.ASCII)


class BytesLost(Conflict):
    """An upload whose file is gone: nobody but the upload's end can help."""

    def __init__(self) -> None:
        super().__init__("the bytes of this upload are lost: remove it and begin anew")


@dataclass(frozen=True, slots=True)
class LyingFile:
    """A file of the spool, for who tidies up."""

    name: str
    modified_at: float
    size_bytes: int


class Spool:
    """The files in one folder."""

    def __init__(self, root: Path, files: Files | None = None) -> None:
        self.root = root
        self._files = files or Files()

    def make(self, expected_bytes: int) -> str:
        """An empty file with a name that nobody has had; both are on the disk when this returns.

        Raises DiskFull when there is no room for `expected_bytes`, StoreUnwritable; then there is no file.
        """
        name = secrets.token_urlsafe(16)  # 128 random bits, 22 characters
        path = self.path(name)
        try:
            self._make_folder()
            free = self._files.free_bytes(self.root)
            if free < expected_bytes + FREE_MARGIN_BYTES:
                raise DiskFull(f"the disk of {self.root} has {free / 1e6:.1f} MB free")
            self._files.close(self._files.create(path))
            self._files.sync_folder(self.root)
        except OSError as error:
            with suppress(OSError):
                os.unlink(path)
            raise translated(error, path) from error
        return name

    @contextmanager
    def locked(self, name: str) -> Iterator[SpoolFile]:
        """The file of that name, for this client alone until the end of the block.

        Raises Conflict while another has it, BytesLost when it is gone, StoreError.
        """
        path = self.path(name)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError as error:
            raise BytesLost from error
        except OSError as error:
            raise translated(error, path) from error
        try:
            _lock(descriptor, path)
            yield SpoolFile(self._files, path, descriptor)
        finally:
            os.close(descriptor)  # and with it goes the lock

    def has(self, name: str, size_bytes: int) -> bool:
        """Whether the file is there, with at least so many bytes."""
        try:
            return self.path(name).stat().st_size >= size_bytes
        except OSError:
            return False

    def remove(self, name: str) -> None:
        """Remove the file, which may be gone already."""
        path = self.path(name)
        try:
            self._files.unlink(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise translated(error, path) from error

    def path(self, name: str) -> Path:
        """Where the file of that name lies; a name that is not one of ours never becomes a path (NotFound)."""
        if not _NAME.fullmatch(name):
            raise NotFound(f"there is no upload {name[:40]!r}")
        return self.root / name

    def walk(self) -> Iterator[LyingFile]:
        """Every file of ours. Files may come and go meanwhile."""
        try:
            entries = list(os.scandir(self.root))
        except FileNotFoundError:
            return
        for entry in entries:
            with suppress(FileNotFoundError):
                if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    yield LyingFile(entry.name, status.st_mtime, status.st_size)

    def _make_folder(self) -> None:
        if not self.root.is_dir():
            make_durable_folder(self._files, self.root)


class SpoolFile:
    """A file of the spool whose lock is held."""

    def __init__(self, files: Files, path: Path, descriptor: int) -> None:
        self._files = files
        self._path = path
        self._descriptor = descriptor

    def write(self, data: bytes, offset_bytes: int) -> None:
        """Write `data` there; raises DiskFull, StoreError. It is durable after `sync` alone."""
        try:
            self._files.write_at(self._descriptor, [data], offset_bytes)
        except OSError as error:
            raise translated(error, self._path) from error

    def sync(self) -> None:
        """All that was written is on the disk when this returns; raises DiskFull, StoreError."""
        try:
            self._files.sync(self._descriptor)
        except OSError as error:
            raise translated(error, self._path) from error

    def read(self, offset_bytes: int, size_bytes: int) -> Iterator[bytes]:
        """The bytes there, in order, at most READ_BYTES at once; fewer where the file ends. Raises StoreError."""
        end = offset_bytes + size_bytes
        while offset_bytes < end:
            try:
                data = self._files.read_at(self._descriptor, offset_bytes, min(READ_BYTES, end - offset_bytes))
            except OSError as error:
                raise translated(error, self._path) from error
            if not data:
                return
            yield data
            offset_bytes += len(data)


def _lock(descriptor: int, path: Path) -> None:
    """Take the lock of an open file. Every opening has a lock of its own, so threads shut each other out too."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Conflict("another client is at this upload just now") from error
    except OSError as error:
        raise translated(error, path) from error


def spool_of(registry: Registry) -> Spool:
    """Where the registry keeps what is sent to it."""
    return Spool(registry.settings.uploads, registry.blobs.local.files)
