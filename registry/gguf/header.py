"""The header of a GGUF file as values: fields (metadata), tensors, the offset of the data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from organs.registry.digest import Digest
from organs.registry.errors import BadGguf
from organs.registry.gguf.types import DType, ValueType
from organs.registry.kinds import kind_of

STRING_BLOB_MIN_BYTES = 64 * 1024
WINDOW_BYTES = 1 << 20
ARRAY_BLOB_MIN_BYTES = 4096
"""Larger metadata arrays (vocabularies, merges) become separate blobs, which related models share."""


class ByteSource(Protocol):
    """Random access to the bytes of one file. Reads must be safe from several threads."""

    @property
    def name(self) -> str:
        """The name of the file, for messages."""
        ...

    @property
    def size_bytes(self) -> int:
        """The size of the file, constant for the life of the source."""
        ...

    def read_at(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset`; raises BadInput if the file does not have them."""
        ...


def range_digest(source: ByteSource, offset: int, size_bytes: int) -> Digest:
    """Return the SHA-256 of a range of bytes, of which 1 MiB is in memory at a time."""
    hashed, end = hashlib.sha256(), offset + size_bytes
    for begin in range(offset, end, WINDOW_BYTES):
        hashed.update(source.read_at(begin, min(WINDOW_BYTES, end - begin)))
    return Digest(hashed.hexdigest())


@dataclass(frozen=True, slots=True)
class Span:
    """A range of bytes in a file."""

    offset: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.size_bytes


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
            raise BadGguf(self.name, "data", offset, f"{size} bytes requested, but only {len(chunk)} exist")
        return chunk


@dataclass(frozen=True, slots=True)
class HeaderSource:
    """A header in memory, in place of a file of `size_bytes`. Only the header may be read: later bytes are zeros."""

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

    `offset` and `size_bytes` are the range of the encoded value: for a string its bytes without the length, for an
    array its elements without type and count.
    """

    key: str
    type: ValueType
    element_type: ValueType | None
    count: int
    offset: int
    size_bytes: int
    value: Scalar | bytes | None
    """The scalar or string; raw bytes for a string that is not UTF-8; None for arrays and long strings."""
    is_big_endian: bool = False

    @property
    def is_array(self) -> bool:
        return self.element_type is not None


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to write: name, shape (row length first, as in GGUF) and dtype."""

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
    """A tensor in a file. `offset` counts from the beginning of the data section."""

    offset: int


@dataclass(frozen=True, slots=True)
class Header:
    """A validated GGUF header: all tensors are inside the file, contiguous, and in the order of the list."""

    version: int
    alignment: int
    fields: tuple[Field, ...]
    tensors: tuple[TensorInfo, ...]
    end: int
    """The offset after the last tensor info."""
    data_offset: int
    """The beginning of the data section: `end`, rounded up to the alignment."""
    file_size_bytes: int
    is_big_endian: bool = False

    def field(self, key: str) -> Field | None:
        """Return the entry `key`, or None if it is absent."""
        for field in self.fields:
            if field.key == key:
                return field
        return None

    def text(self, key: str) -> str | None:
        """Return the string of `key`, or None if it is absent, not a string, or not UTF-8."""
        field = self.field(key)
        return field.value if field is not None and isinstance(field.value, str) else None

    def integer(self, key: str) -> int | None:
        """Return the whole number of `key`, or None if it is absent or not a whole number."""
        field = self.field(key)
        if field is None or isinstance(field.value, bool) or not isinstance(field.value, int):
            return None
        return field.value

    @property
    def architecture(self) -> str | None:
        return self.text("general.architecture")

    def kind(self, *, has_tensors: bool = True) -> str:
        """Return the kind of the file, or of the split set that it begins, which may have no tensors here."""
        names = (tensor.name for tensor in self.tensors)
        return kind_of(self.text("general.type"), self.architecture, names, has_tensors=has_tensors)

    @property
    def last_byte(self) -> int:
        """The offset after the bytes of the last tensor."""
        if not self.tensors:
            return self.end
        last = self.tensors[-1]
        return self.data_offset + last.offset + last.size_bytes


def padded(size: int, alignment: int) -> int:
    """Return `size` rounded up to a multiple of `alignment`."""
    return -(-size // alignment) * alignment


def large_values(header: Header) -> tuple[Span, ...]:
    """Return the arrays, and the rare long strings, that become separate blobs, in file order."""
    return tuple(
        Span(field.offset, field.size_bytes)
        for field in header.fields
        if field.size_bytes > (ARRAY_BLOB_MIN_BYTES if field.is_array else STRING_BLOB_MIN_BYTES)
    )


def around(spans: Sequence[Span], end: int) -> Iterator[Span]:
    """Yield the ranges between `spans`, in file order, from the beginning of the file to `end`."""
    position = 0
    for span in spans:
        yield Span(position, span.offset - position)
        position = span.end
    yield Span(position, end - position)


def field_value_text(field: Field) -> str:
    """Return a metadata value as text for reading: arrays and long strings by their size."""
    if field.is_array:
        assert field.element_type is not None
        return f"[{field.count} × {field.element_type.name.lower()}]"
    if field.value is None:
        return f"[string of {field.size_bytes} bytes]"
    if isinstance(field.value, bytes):
        return field.value.decode("utf-8", errors="backslashreplace")
    if isinstance(field.value, bool):
        return "true" if field.value else "false"
    return str(field.value)


def field_type_text(field: Field) -> str:
    """Return a metadata type as text: `string`, `array of int32`."""
    if field.element_type is not None:
        return f"array of {field.element_type.name.lower()}"
    return field.type.name.lower()
