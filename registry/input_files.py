"""Files from outside, checked for changes while they are read; and files that are composed of parts."""

from __future__ import annotations

import os
import stat
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Protocol

from organs.registry.digest import Digest, digest_of
from organs.registry.errors import BadSource

BUFFER_BYTES = 4 * 1024 * 1024
SETTLED_NS = 50_000_000
"""Systems write times of changes in steps of up to 10 ms, some file systems in steps of more."""

SAMPLES, SAMPLE_BYTES = 16, 4096


def sample_spans(size_bytes: int) -> list[tuple[int, int]]:
    """Return the ranges (offset and size) by which files are compared without reading all of their bytes."""
    end = max(0, size_bytes - SAMPLE_BYTES)
    offsets = sorted({end * index // (SAMPLES - 1) for index in range(SAMPLES)})
    return [(offset, min(SAMPLE_BYTES, size_bytes - offset)) for offset in offsets]


class ReadableFile(ABC):
    """A file that several threads read at offsets: on the disk, composed, or on a server."""

    path: PurePath
    """The path of the file; of a composed file, its future path; of a file on a server, that in its address."""
    name: str
    """The name for messages."""
    size_bytes: int
    version: str
    """A text that changes when the file is written; empty if this is unknown."""
    stated_sha256: Digest | None = None
    """The SHA-256 that the Hugging Face hub states for the file; None for other files. It is not checked."""

    @abstractmethod
    def read_at(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`; raises BadSource if the file is shorter."""

    def read_ranges(self, spans: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of each of `spans` (offset and size in bytes); raises as `read_at` does."""
        return [self.read_at(offset, size) for offset, size in spans]

    @abstractmethod
    def check_unchanged(self) -> None:
        """Raise BadSource if the file has changed since it was opened."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The original file of an organ directory, and the organs that differ from it. Other content can differ too."""

    name: str
    sha256: Digest
    edited: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """Values that change when a file is written or replaced."""

    device: int
    inode: int
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileIdentity:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def stamp_text(status: os.stat_result) -> str:
    """Return a digest of the values that change when a file is written or replaced.

    Programs cannot set the time of the last change of attributes. The device is left out, because its number changes
    when a disk is connected again.
    """
    values = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return digest_of(":".join(map(str, values)).encode())


class OpenFile(ReadableFile):
    """One GGUF file to ingest: a file on the disk, or a composed one."""

    path: Path

    @abstractmethod
    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset`; raises BadSource if the file is shorter."""

    def read_at(self, offset: int, size: int) -> bytes:
        data = bytearray(size)
        self.read_into(memoryview(data), offset)
        return bytes(data)

    def notes(self, sha256: Digest, organs: Mapping[int, Digest]) -> Iterable[str]:
        """Return notes for people, from the digest of the file and those of its organs by offset."""
        return ()

    def origin(self, organs: Mapping[int, Digest]) -> Origin | None:
        """Return the original file, if it is known; `organs` as for `notes`."""
        return None


class FileSource(OpenFile):
    """A regular file, open for reads at an offset from several threads. A context manager."""

    def __init__(self, path: Path, copy_of: tuple[Path, str] | None = None) -> None:
        """Open `path`; raises BadSource for anything but a regular file (links are followed).

        `copy_of` has the path and the name of the file on a server of which it is a copy.
        """
        self.location = path
        """Where the file is."""
        self.path, self.name = copy_of or (path, str(path))
        self.descriptor = -1
        try:
            _refuse_irregular(path, os.stat(path))  # before opening: opening a FIFO blocks, opening a device may act
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            status = os.fstat(self.descriptor)
            _refuse_irregular(path, status)
        except BadSource:  # it was replaced between the two calls
            self.close()
            raise
        except OSError as error:
            raise BadSource(f"{path}: {error.strerror}") from error
        self._opened_ns = time.time_ns()
        self.identity = FileIdentity.of(status)
        self.size_bytes = status.st_size
        self.version = f"modified {status.st_mtime_ns}"
        """Changes when the file is written."""

    @property
    def stamp(self) -> str | None:
        """A text that changes when the file is written or replaced.

        None for a copy of a file on a server, and for a file that was written just before it was opened: a later change
        could have the same time.
        """
        status = os.fstat(self.descriptor)
        is_settled = max(status.st_mtime_ns, status.st_ctime_ns) < self._opened_ns - SETTLED_NS
        return stamp_text(status) if is_settled and self.path == self.location else None

    def __enter__(self) -> FileSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read_at(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`; raises BadSource if the file is shorter."""
        try:
            data = os.pread(self.descriptor, size, offset)
        except OSError as error:
            raise BadSource(f"{self.name}: {error.strerror} at byte {offset}") from error
        if len(data) == size:
            return data
        # One read returns at most 2 GiB, and less if a signal interrupts it.
        rest = bytearray(size - len(data))
        fill(memoryview(rest), self.descriptor, offset + len(data), self.name)
        return data + rest

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset`; raises BadSource if the file is shorter."""
        fill(buffer, self.descriptor, offset, self.name)

    def check_unchanged(self) -> None:
        """Raise BadSource if the file was written or replaced since it was opened."""
        try:
            now, on_disk = FileIdentity.of(os.fstat(self.descriptor)), FileIdentity.of(os.stat(self.location))
        except OSError as error:
            raise BadSource(f"{self.name}: it disappeared while it was read: {error.strerror}") from error
        if now != self.identity or on_disk != self.identity:
            raise BadSource(f"{self.name}: changed while it was read; nothing was registered")

    def close(self) -> None:
        """Close the descriptor; safe to call twice."""
        if self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)


def fill(buffer: memoryview, descriptor: int, offset: int, name: str) -> None:
    """Fill `buffer` from `offset` of an open file; raises BadSource if the file is shorter."""
    done = 0
    while done < len(buffer):
        try:
            read = os.preadv(descriptor, [buffer[done:]], offset + done)
        except OSError as error:
            raise BadSource(f"{name}: {error.strerror} at byte {offset + done}") from error
        if not read:
            raise BadSource(f"{name}: ends at byte {offset + done}, shorter than when it was opened")
        done += read


def _refuse_irregular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise BadSource(f"{path}: not a regular file")


class Bytes(Protocol):
    """Bytes that several threads read at offsets: of a file, of a blob, or in memory."""

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset`; raises BadSource if there are not enough bytes."""
        ...

    def check_unchanged(self) -> None:
        """Raise BadSource if the bytes have changed since they were opened."""
        ...


def read_pieces(source: Bytes, offset: int, size_bytes: int) -> Iterator[memoryview]:
    """Read a range of bytes, at most 4 MiB at a time. Each piece is valid until the next piece is read."""
    buffer = memoryview(bytearray(min(BUFFER_BYTES, size_bytes)))
    end = offset + size_bytes
    for begin in range(offset, end, BUFFER_BYTES):
        piece = buffer[: min(BUFFER_BYTES, end - begin)]
        source.read_into(piece, begin)
        yield piece


@dataclass(frozen=True, slots=True, eq=False)
class BytesInMemory:
    """Bytes in memory."""

    data: bytes

    def read_into(self, buffer: memoryview, offset: int) -> None:
        buffer[:] = self.data[offset : offset + len(buffer)]

    def check_unchanged(self) -> None:
        """Do nothing: bytes in memory do not change."""


@dataclass(frozen=True, slots=True)
class Section:
    """`size_bytes` of `source`, from `source_offset_bytes` on, at `offset_bytes` of the composed file."""

    offset_bytes: int
    size_bytes: int
    source: Bytes
    source_offset_bytes: int = 0


class ComposedFile(OpenFile):
    """A file of `sections` in rising order without overlap, with zeros elsewhere.

    The sources of the sections are closed by their owner.
    """

    def __init__(self, path: Path, size_bytes: int, sections: Sequence[Section], sha256: Digest | None = None) -> None:
        self.path = path
        """The future path of the file."""
        self.name = str(path)
        self.size_bytes = size_bytes
        self.sha256 = sha256
        """The SHA-256 that the whole file should have; None if it is unknown."""
        self.version = ""
        self._sections = tuple(section for section in sections if section.size_bytes)
        self._ends = [section.offset_bytes + section.size_bytes for section in self._sections]

    def placed_at(self, path: Path) -> ComposedFile:
        """Return the same bytes as a file for `path`."""
        return ComposedFile(path, self.size_bytes, self._sections, self.sha256)

    def read_at(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`; raises BadSource if the file is shorter."""
        self._check(offset + size)  # before memory is allocated
        return super().read_at(offset, size)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset`; raises BadSource, and StoreError for a bad blob."""
        end = offset + len(buffer)
        self._check(end)
        position = offset
        for index in range(bisect_right(self._ends, offset), len(self._sections)):
            section = self._sections[index]
            if section.offset_bytes >= end:
                break
            begin, stop = max(offset, section.offset_bytes), min(end, self._ends[index])
            _zero(buffer[position - offset : begin - offset])
            skipped = begin - section.offset_bytes
            section.source.read_into(buffer[begin - offset : stop - offset], section.source_offset_bytes + skipped)
            position = stop
        _zero(buffer[position - offset :])

    def check_unchanged(self) -> None:
        """Raise BadSource if a source of a section was written or replaced."""
        for source in dict.fromkeys(section.source for section in self._sections):
            source.check_unchanged()

    def _check(self, end: int) -> None:
        if end > self.size_bytes:
            raise BadSource(f"{self.name}: it ends at byte {self.size_bytes}, but {end} are needed")


def _zero(buffer: memoryview) -> None:
    if len(buffer):
        buffer[:] = bytes(len(buffer))
