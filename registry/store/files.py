"""The system calls of the store, which tests can record and fail; and files that appear whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from organs.registry.digest import Digest
from organs.registry.errors import CorruptBlob, DiskFull, MissingBlob, OrganError, StoreError, StoreUnwritable

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_UNWRITABLE = {errno.EROFS, errno.EACCES, errno.EPERM}

Buffer = bytes | bytearray | memoryview

PRIVATE_FOLDER, PRIVATE_FILE, PRIVATE_BLOB = 0o700, 0o600, 0o400
"""Modes of what belongs to a registry: other users of the machine must not read what is in quarantine."""
PUBLIC_FOLDER, PUBLIC_FILE = 0o777, 0o644
"""Modes, less the umask, of what is written to a place that a person names."""


class Files:
    """Thin over `os`. Every method may raise OSError; `translated` turns that into our own errors."""

    def make_folder(self, path: Path, mode: int = PRIVATE_FOLDER) -> None:
        """Make `path`, and its parents where they are missing, which get the default mode."""
        path.mkdir(mode, parents=True, exist_ok=True)

    def create(self, path: Path, mode: int = PRIVATE_FILE) -> int:
        """A new file, open for writing and reading; it must not exist."""
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, mode)

    def create_direct(self, path: Path) -> int:
        """The same for writes past the page cache, where the file system offers them; a plain new file elsewhere."""
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(path, flags | getattr(os, "O_DIRECT", 0), PRIVATE_FILE)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        # The file may have been made before the flag was refused.
        with suppress(FileNotFoundError):
            os.unlink(path)
        return os.open(path, flags, PRIVATE_FILE)

    def write_direct(self, descriptor: int, block: Buffer, offset: int) -> None:
        """Write an aligned block to a file of `create_direct`; without O_DIRECT where the file system takes it back."""
        try:
            self.write_at(descriptor, [block], offset)
        except OSError as error:
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            if error.errno != errno.EINVAL or not flags & getattr(os, "O_DIRECT", 0):
                raise
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            self.write_at(descriptor, [block], offset)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut off, or fill with zeros, to `size` bytes."""
        os.ftruncate(descriptor, size)

    def write_at(self, descriptor: int, pieces: Sequence[Buffer], offset: int) -> int:
        """Write all `pieces` from `offset` on; the number of bytes written."""
        total = sum(len(piece) for piece in pieces)
        done = os.pwritev(descriptor, pieces, offset)
        while done < total:  # a signal or a nearly full disk cuts a write short
            rest = memoryview(b"".join(pieces))[done:]
            done += os.pwrite(descriptor, rest, offset + done)
        return total

    def make_read_only(self, descriptor: int) -> None:
        """Mode 0400: a blob never changes."""
        os.fchmod(descriptor, PRIVATE_BLOB)

    def sync(self, descriptor: int) -> None:
        """On disk when this returns."""
        os.fsync(descriptor)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def sync_folder(self, path: Path) -> None:
        """The names in `path` are on disk when this returns."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def open_to_read(self, path: Path) -> int:
        """A blob's file, which must be a plain file of its own: no link, no device, no second name."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            os.close(descriptor)
            raise CorruptBlob(path.name, "its place is taken by something that is no file of the store's own")
        return descriptor

    def size(self, descriptor: int) -> int:
        return os.fstat(descriptor).st_size

    def changed_at(self, descriptor: int) -> tuple[int, int]:
        """When the file's bytes and its status last changed, in nanoseconds since the epoch."""
        status = os.fstat(descriptor)
        return status.st_mtime_ns, status.st_ctime_ns

    def read_at(self, descriptor: int, offset: int, size: int) -> bytes:
        return os.pread(descriptor, size, offset)

    def free_bytes(self, path: Path) -> int:
        """Room that is left for this user."""
        return shutil.disk_usage(path).free


def make_durable_folder(files: Files, path: Path) -> None:
    """Make `path` and its parents, each on disk before the next is made; raises OSError.

    So of what somebody left who died on the way, only the last folder can be one that a power cut takes away: its name
    is brought to the disk too, unless it lies where we may not look, and so was not made by us.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
    found = missing[-1].parent if missing else path
    with suppress(PermissionError):
        files.sync_folder(found.parent)
    for folder in reversed(missing):
        files.make_folder(folder)
        files.sync_folder(folder.parent)


def translated(error: OSError, path: Path) -> OrganError:
    """Our error for what the operating system said about `path`."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return DiskFull(f"the disk of {path.parent} is full: {reason}")
    if error.errno in _UNWRITABLE:
        return StoreUnwritable(f"no access to {path}: {reason}")
    if error.errno == errno.ENOENT:
        return MissingBlob(f"{path.name} is missing from the store")
    if error.errno == errno.ELOOP:
        return CorruptBlob(path.name, "its place is taken by a symbolic link")
    return StoreError(f"{path}: {reason}")


_NO_FOLDER = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}


class UnplacedFile:
    """The file while it is written, under a name of its own beside its place."""

    def __init__(self, descriptor: int, files: Files) -> None:
        self._descriptor = descriptor
        self._files = files

    def truncate(self, size_bytes: int) -> None:
        """Zeros up to `size_bytes`, wherever nothing else is written."""
        self._files.truncate(self._descriptor, size_bytes)

    def write_at(self, data: Buffer, offset_bytes: int) -> None:
        """Write all of `data` from `offset_bytes` on."""
        self._files.write_at(self._descriptor, [data], offset_bytes)


@contextmanager
def placed(path: Path, size_bytes: int, files: Files | None = None) -> Iterator[UnplacedFile]:
    """A file for the block to write, which then replaces what is at `path`: written, synced, renamed, its name synced.

    A block that raises leaves `path` as it was and nothing beside it. Raises DiskFull, at once when `size_bytes` do
    not fit, StoreUnwritable, StoreError. After an error of the very last sync the file may be there already, whole.
    """
    files = files or Files()
    temporary = temporary_beside(path)
    try:
        check_room(path.parent, size_bytes, files)
        descriptor = files.create(temporary, PUBLIC_FILE)
        try:
            yield UnplacedFile(descriptor, files)
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        files.rename(temporary, path)
        files.sync_folder(path.parent)
    except OSError as error:
        _forget(files, temporary)
        raise placing_error(error, path) from error
    except BaseException:
        _forget(files, temporary)
        raise


@contextmanager
def folder_for_placing(path: Path, files: Files | None = None) -> Iterator[None]:
    """The folder `path` for the block to place files in: made, durable, if it is not there; its parent must be.

    One that was made here is gone again when the block raises and has placed nothing. Raises DiskFull,
    StoreUnwritable, StoreError.
    """
    files = files or Files()
    fresh = not path.is_dir()
    if not path.parent.is_dir():
        raise StoreUnwritable(f"{path.parent}: no such folder")
    try:
        if fresh:
            files.make_folder(path, PUBLIC_FOLDER)
            files.sync_folder(path.parent)
        yield
    except BaseException as error:
        if fresh:
            with suppress(OSError):  # files are in it, or it was never made
                path.rmdir()
        if isinstance(error, OSError):
            raise placing_error(error, path) from error
        raise


def temporary_beside(path: Path) -> Path:
    """A name for what will be at `path`; the name there may itself be as long as any can be."""
    return path.parent / f".organ-{secrets.token_hex(8)}.part"


def check_room(folder: Path, size_bytes: int, files: Files) -> None:
    """Raise DiskFull when `size_bytes` do not fit on the disk of `folder`; OSError when it cannot be looked at."""
    free = files.free_bytes(folder)
    if free < size_bytes:
        raise DiskFull(f"the disk of {folder} is full: {size_bytes} bytes wanted, {free} free")


def placing_error(error: OSError, path: Path) -> OrganError:
    """Our error for what the operating system said while something was brought to `path`."""
    if error.errno in _NO_FOLDER:
        return StoreUnwritable(f"{path.parent} is no folder that can be written to: {error.strerror}")
    return translated(error, path)


def _forget(files: Files, temporary: Path) -> None:
    with suppress(OSError):  # never made, placed already, or gone with the disk; the first error tells what happened
        files.unlink(temporary)


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file that can be written."""

    name: str
    size_bytes: int
    sha256: Digest | None
    """None if it is known only after the file was written."""


@dataclass(frozen=True, slots=True)
class SourceModel:
    """The registered model whose files are written."""

    name: str
    """The full name, with the version."""
    is_chimera: bool
    yanked: str | None
    """Why it was yanked; None for any other model."""


class OutputFiles(ABC):
    """Files that a registry can write: their names and sizes are known, no byte was read yet."""

    def __init__(self, files: Iterable[NamedFile], model: SourceModel | None = None) -> None:
        self.files = tuple(files)
        self.model = model
        """None for an organ, and for a file that belongs to no registered model."""

    @property
    def work_bytes(self) -> int:
        """The number of bytes that `place` reports to its progress callback."""
        return sum(file.size_bytes for file in self.files)

    @abstractmethod
    def place(
        self, targets: Sequence[Path | None], progress: Callable[[int], None] | None = None
    ) -> tuple[Digest | None, ...]:
        """Write each file to its target, replacing what is there, and return the SHA-256 of each.

        None as a target leaves a file out. Every byte is checked; a file gets its name only when it is complete. The
        folders of the targets must exist. Raises StoreError, DiskFull, and for a remote registry Unreachable and
        BadReply; then the target is unchanged.
        """
