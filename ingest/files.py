"""Open files from outside: what all have in common, and a plain file that stays the same while it is read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from organs.registry.digest import Digest
from organs.registry.errors import BadSource


class OpenFile(Protocol):
    """One GGUF file that is read at offsets from several threads: a file on the disk, or one that is put together."""

    @property
    def path(self) -> Path:
        """Where it is, or would be."""
        ...

    @property
    def name(self) -> str:
        """What a person calls it."""
        ...

    @property
    def size_bytes(self) -> int: ...

    def read_at(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`; raises BadSource when they are not there."""
        ...

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset`; raises BadSource when the file ends before."""
        ...

    def check_unchanged(self) -> None:
        """Raise BadSource when it is no longer what it was when it was opened."""
        ...

    def notes(self, sha256: Digest, organs: Mapping[int, Digest]) -> Iterable[str]:
        """What a person should know, now that the digest of the whole and those of its organs, by offset, are known."""
        ...

    def origin(self, organs: Mapping[int, Digest]) -> Origin | None:
        """The file that it says it was made from; `organs` as for `notes`."""
        ...


@dataclass(frozen=True, slots=True)
class Origin:
    """A file that was taken apart, and the organs that are not as they were in it. Nothing else need be either."""

    name: str
    sha256: Digest
    edited: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """What changes when somebody writes to a file or puts another one in its place."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class FileSource:
    """A regular file, open for reads at an offset from several threads. A context manager."""

    def __init__(self, path: Path) -> None:
        """Open `path`; raises BadSource for anything that is no regular file (links to one are followed)."""
        self.path = path
        self.name = str(path)
        try:
            _refuse_irregular(path, os.stat(path))  # before opening: a FIFO would block, a device would act
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            status = os.fstat(self._descriptor)
            _refuse_irregular(path, status)
        except OSError as error:
            raise BadSource(f"{path}: {error.strerror}") from error
        self.identity = FileIdentity.of(status)
        self.size_bytes = status.st_size

    def __enter__(self) -> FileSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read_at(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`; raises BadSource when they are not there."""
        try:
            data = os.pread(self._descriptor, size, offset)
        except OSError as error:
            raise BadSource(f"{self.path}: {error.strerror} at byte {offset}") from error
        if len(data) != size:
            # One read gives at most 2 GiB, and less when a signal comes in between.
            data += self.read_at(offset + len(data), size - len(data)) if data else self._shrunk(offset)
        return data

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset`; raises BadSource when the file ends before."""
        done = 0
        while done < len(buffer):
            try:
                read = os.preadv(self._descriptor, [buffer[done:]], offset + done)
            except OSError as error:
                raise BadSource(f"{self.path}: {error.strerror} at byte {offset + done}") from error
            if not read:
                self._shrunk(offset + done)
            done += read

    def check_unchanged(self) -> None:
        """Raise BadSource when the file was written to, or another put in its place, since it was opened."""
        try:
            now, there = FileIdentity.of(os.fstat(self._descriptor)), FileIdentity.of(os.stat(self.path))
        except OSError as error:
            raise BadSource(f"{self.path}: gone while it was read: {error.strerror}") from error
        if now != self.identity or there != self.identity:
            raise BadSource(f"{self.path}: changed while it was read; nothing was registered")

    def notes(self, sha256: Digest, organs: Mapping[int, Digest]) -> Iterable[str]:
        """Nothing: a file is what it is."""
        return ()

    def origin(self, organs: Mapping[int, Digest]) -> Origin | None:
        """None: what made it is not known."""
        return None

    def close(self) -> None:
        """Give the descriptor back; safe to call twice."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def _shrunk(self, offset: int) -> bytes:
        raise BadSource(f"{self.path}: ends at byte {offset}, shorter than when it was opened")


def _refuse_irregular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BadSource(f"{path}: not a regular file")
