"""The header of a GGUF file as values: fields (metadata), tensors, where the data begins."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol

from organs.registry.errors import BadGguf
from organs.registry.gguf.types import DType, ValueType


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


Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class Field:
    """One metadata entry. The value stays in the file unless it is a scalar or a short string.

    `offset` and `size_bytes` frame the encoded value: for a string its bytes without the length, for an array its
    elements without type and count.
    """

    key: str
    type: ValueType
    element_type: ValueType | None
    count: int
    offset: int
    size_bytes: int
    value: Scalar | bytes | None
    """The scalar or string; raw bytes where a string is not UTF-8; None for arrays and long strings."""

    @property
    def is_array(self) -> bool:
        return self.element_type is not None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to be written: its name, its shape (row length first, as GGUF stores it) and its dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.dtype.size_bytes(self.elements)


@dataclass(frozen=True, slots=True)
class TensorInfo(TensorSpec):
    """A tensor that stands in a file. `offset` counts from the beginning of the data section."""

    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """A validated GGUF header: every tensor lies inside the file, contiguous and in listing order."""

    version: int
    alignment: int
    fields: tuple[Field, ...]
    tensors: tuple[TensorInfo, ...]
    end: int
    """Offset just behind the last tensor info."""
    data_offset: int
    """Where the data section begins: `end`, rounded up to the alignment."""
    file_size_bytes: int

    def field(self, key: str) -> Field | None:
        """The entry named `key`, or None."""
        for field in self.fields:
            if field.key == key:
                return field
        return None

    def text(self, key: str) -> str | None:
        """The string stored under `key`, or None when it is absent, no string, or not UTF-8."""
        field = self.field(key)
        return field.value if field is not None and isinstance(field.value, str) else None

    def integer(self, key: str) -> int | None:
        """The whole number stored under `key`, or None."""
        field = self.field(key)
        if field is None or isinstance(field.value, bool) or not isinstance(field.value, int):
            return None
        return field.value

    @property
    def architecture(self) -> str | None:
        return self.text("general.architecture")

    @property
    def tail_size_bytes(self) -> int:
        """Bytes behind the last tensor (or behind the header of a file without tensors): its padding, if any."""
        return self.file_size_bytes - self.last_byte

    @property
    def last_byte(self) -> int:
        """Offset just behind the last tensor's own bytes."""
        if not self.tensors:
            return self.end
        last = self.tensors[-1]
        return self.data_offset + last.offset + last.size_bytes


def padded(size: int, alignment: int) -> int:
    """`size` rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment
