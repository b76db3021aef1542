"""A file that is still being fetched: beside its place, under a name that the next attempt finds again."""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from organs.registry.digest import Digest
from organs.registry.errors import Busy, StoreUnwritable
from organs.registry.store.files import (
    Files,
    check_room,
    placing_error,
)

READ_BYTES = 1024 * 1024


class PartialFile:
    """The bytes that have come so far, hashed; they are always the first ones of the file."""

    def __init__(self, path: Path, descriptor: int, files: Files) -> None:
        self.path = path
        self.size_bytes = 0
        self.is_kept = False
        """Whether it stays for the next attempt when this one fails."""
        self._descriptor = descriptor
        self._files = files
        self._digest = hashlib.sha256()

    def take_up(self, most_bytes: int, progress: Callable[[int], None]) -> None:
        """Hash what an earlier attempt has left; more than `most_bytes` of it can only be something else."""
        if self._files.size(self._descriptor) > most_bytes:
            self.begin_again()
        while data := self._files.read_at(self._descriptor, self.size_bytes, READ_BYTES):
            self._digest.update(data)
            self.size_bytes += len(data)
            progress(len(data))

    def append(self, data: bytes) -> None:
        """Write the next bytes."""
        self._files.write_at(self._descriptor, [data], self.size_bytes)
        self._digest.update(data)
        self.size_bytes += len(data)

    def begin_again(self) -> None:
        """Throw away what has come."""
        self._files.truncate(self._descriptor, 0)
        self.size_bytes = 0
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> Digest:
        """Of all that has come."""
        return Digest(self._digest.hexdigest())

    def place(self, target: Path) -> None:
        """Bring it to its name, durable, instead of what is there."""
        self._files.sync(self._descriptor)
        self._files.rename(self.path, target)
        self._files.sync_folder(target.parent)

    def remove(self) -> None:
        """Away with it: it has served."""
        self._files.unlink(self.path)


def partial_path(target: Path, key: str) -> Path:
    """Where the beginning of the file that `key` tells from others waits to come to `target`."""
    name = hashlib.sha256(f"{key}\n{target.name}".encode()).hexdigest()[:16]
    return target.parent / f".organ-{name}.part"


@contextmanager
def partial_file(target: Path, key: str, size_bytes: int, files: Files | None = None) -> Iterator[PartialFile]:
    """The partial file for `target`; `key` tells the bytes of one file from those of another.

    A block that raises leaves it only where it said so by `is_kept`. Raises Busy when another process fetches the same,
    StoreUnwritable, DiskFull when `size_bytes` do not fit.
    """
    files = files or Files()
    path = partial_path(target, key)
    if target.is_dir():
        raise StoreUnwritable(f"{target}: a folder is there")
    try:
        descriptor = _opened(path)
        partial = PartialFile(path, descriptor, files)
        try:
            check_room(path.parent, size_bytes - files.size(descriptor), files)
            yield partial
        except BaseException:
            if not partial.is_kept or not partial.size_bytes:
                with suppress(OSError):  # the first error tells what happened
                    files.unlink(path)
            raise
        finally:
            os.close(descriptor)
    except OSError as error:
        raise placing_error(error, target) from error


def _opened(path: Path) -> int:
    """The file, new or as it was left, for this process alone."""
    flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        descriptor = os.open(path, flags, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise StoreUnwritable(f"{path}: something else is there; move it away")
            # Whoever had the lock may have brought the file to its place meanwhile: then this is not ours to write.
            if status.st_nlink and os.path.samestat(status, path.stat()):
                return descriptor
        except BlockingIOError as error:
            os.close(descriptor)
            raise Busy(f"another process fetches {path.parent} already: wait until it is done") from error
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
