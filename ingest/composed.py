"""A GGUF file that is composed of bytes that lie elsewhere, is never written, and reads like a plain file."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from organs.ingest.files import Origin
from organs.registry.digest import Digest
from organs.registry.errors import BadSource


class Bytes(Protocol):
    """Bytes that are read at offsets from several threads: of a plain file, of a blob, or at hand."""

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset`; raises BadSource when they are not there."""
        ...

    def check_unchanged(self) -> None:
        """Raise BadSource when they are no longer what they were when they were opened."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class BytesAtHand:
    """Bytes in memory."""

    data: bytes

    def read_into(self, buffer: memoryview, offset: int) -> None:
        buffer[:] = self.data[offset : offset + len(buffer)]

    def check_unchanged(self) -> None:
        """Nothing: nobody can."""


@dataclass(frozen=True, slots=True)
class Section:
    """`size_bytes` of `source`, from `source_offset_bytes` on, at `offset_bytes` of the composed file."""

    offset_bytes: int
    size_bytes: int
    source: Bytes
    source_offset_bytes: int = 0


class ComposedFile:
    """`sections` in rising order without overlap, zeros everywhere else (`ingest.files.OpenFile`). What they are read
    from stays open, and is closed by whoever opened it.
    """

    def __init__(self, path: Path, size_bytes: int, sections: Sequence[Section], sha256: Digest | None = None) -> None:
        self.path = path
        """Where it would be."""
        self.name = str(path)
        self.size_bytes = size_bytes
        self.sha256 = sha256
        """What somebody says that the whole has."""
        self._sections = tuple(section for section in sections if section.size_bytes)
        self._ends = [section.offset_bytes + section.size_bytes for section in self._sections]

    def placed_at(self, path: Path) -> ComposedFile:
        """The same bytes, as a file that would be at `path`."""
        return ComposedFile(path, self.size_bytes, self._sections, self.sha256)

    def read_at(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`; raises BadSource when they are not there."""
        self._check(offset, size)
        data = bytearray(size)
        self.read_into(memoryview(data), offset)
        return bytes(data)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset`; raises BadSource, and StoreError when a blob does not give its bytes."""
        end = offset + len(buffer)
        self._check(offset, len(buffer))
        position = offset
        for index in range(bisect_right(self._ends, offset), len(self._sections)):
            section = self._sections[index]
            if section.offset_bytes >= end:
                break
            begin, last = max(offset, section.offset_bytes), min(end, self._ends[index])
            _zero(buffer[position - offset : begin - offset])
            skipped = begin - section.offset_bytes
            section.source.read_into(buffer[begin - offset : last - offset], section.source_offset_bytes + skipped)
            position = last
        _zero(buffer[position - offset :])

    def check_unchanged(self) -> None:
        """Raise BadSource when something that it is made of was written to or replaced."""
        for source in dict.fromkeys(section.source for section in self._sections):
            source.check_unchanged()

    def notes(self, sha256: Digest, organs: Mapping[int, Digest]) -> Iterable[str]:
        """Nothing: a file is what it is."""
        return ()

    def origin(self, organs: Mapping[int, Digest]) -> Origin | None:
        """None: it is no edited file."""
        return None

    def _check(self, offset: int, size: int) -> None:
        if offset + size > self.size_bytes:
            raise BadSource(f"{self.name}: ends at byte {self.size_bytes}, {offset + size} are wanted")


def _zero(buffer: memoryview) -> None:
    if len(buffer):
        buffer[:] = bytes(len(buffer))
