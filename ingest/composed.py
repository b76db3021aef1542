"""A GGUF file that is composed of a header in memory and tensors in other files, and reads like a plain file."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ingest.files import OpenFile, Origin
from registry.digest import Digest
from registry.errors import BadSource


@dataclass(frozen=True, slots=True)
class Section:
    """`size_bytes` of another file, from `source_offset_bytes` on, at `offset_bytes` of the composed one."""

    offset_bytes: int
    size_bytes: int
    source: OpenFile
    source_offset_bytes: int


@dataclass(frozen=True, slots=True)
class ComposedFile:
    """`header`, then `sections` in rising order without overlap, zeros everywhere else. Their files stay open."""

    path: Path
    """Where it would be."""
    size_bytes: int
    header: bytes
    sections: tuple[Section, ...]

    @property
    def name(self) -> str:
        return str(self.path)

    def read_at(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`; raises BadSource when they are not there."""
        self._check(offset, size)
        data = bytearray(size)
        self.read_into(memoryview(data), offset)
        return bytes(data)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill `buffer` from `offset`; raises BadSource when a file does not give its bytes."""
        self._check(offset, len(buffer))
        end = offset + len(buffer)
        buffer[:] = bytes(len(buffer))
        head = self.header[offset:end]
        buffer[: len(head)] = head
        first = bisect_right(self.sections, offset, key=lambda one: one.offset_bytes + one.size_bytes)
        for section in self.sections[first:]:
            if section.offset_bytes >= end:
                return
            begin = max(offset, section.offset_bytes)
            last = min(end, section.offset_bytes + section.size_bytes)
            skipped = begin - section.offset_bytes
            section.source.read_into(buffer[begin - offset : last - offset], section.source_offset_bytes + skipped)

    def check_unchanged(self) -> None:
        """Raise BadSource when one of the files that it is made of was written to or replaced."""
        for source in {id(section.source): section.source for section in self.sections}.values():
            source.check_unchanged()

    def notes(self, sha256: Digest, organs: Mapping[int, Digest]) -> Iterable[str]:
        """Nothing: what it is stands in its lock."""
        return ()

    def origin(self, organs: Mapping[int, Digest]) -> Origin | None:
        """None: it is no edited file."""
        return None

    def _check(self, offset: int, size: int) -> None:
        if offset + size > self.size_bytes:
            raise BadSource(f"{self.name}: ends at byte {self.size_bytes}, {offset + size} are wanted")
