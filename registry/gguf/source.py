"""Where bytes come from: anything with a name, a size and reads at an offset."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from organs.registry.errors import BadGguf


class ByteSource(Protocol):
    """Random access to the bytes of one file. Reads must be safe from several threads."""

    @property
    def name(self) -> str:
        """What a person calls it, for error texts."""
        ...

    @property
    def size_bytes(self) -> int:
        """The whole size, fixed for the life of the source."""
        ...

    def read_at(self, offset: int, size: int) -> bytes:
        """Exactly `size` bytes from `offset`; raises BadInput when they are not there."""
        ...


@dataclass(frozen=True, slots=True)
class MemorySource:
    """Bytes in memory."""

    data: bytes
    name: str = "memory"

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def read_at(self, offset: int, size: int) -> bytes:
        chunk = self.data[offset : offset + size]
        if len(chunk) != size:
            raise BadGguf(self.name, "data", offset, f"{size} bytes wanted, {len(chunk)} there")
        return chunk


@dataclass(frozen=True, slots=True)
class HeaderSource:
    """A header in memory that stands for a file of `size_bytes`, of which nothing but the header may be read."""

    header: bytes
    size_bytes: int
    name: str = "header"

    def read_at(self, offset: int, size: int) -> bytes:
        end = min(offset + size, self.size_bytes)
        return self.header[offset:end].ljust(end - offset, b"\0")
