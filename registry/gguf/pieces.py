"""A header in pieces: which of its values are large enough to be kept by themselves, and all as text for reading."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from organs.registry.gguf.header import Field, Header
from organs.registry.gguf.read import read_array
from organs.registry.gguf.source import ByteSource
from organs.registry.gguf.types import ValueType

TAGS_KEY = "general.tags"
TAGS_MAX_BYTES = 16 * 1024
STRING_BLOB_MIN_BYTES = 64 * 1024
ARRAY_BLOB_MIN_BYTES = 4096
"""Metadata arrays above this (vocabularies, merges) are blobs of their own, shared by every relative of the model."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a file."""

    offset: int
    size_bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.size_bytes


def large_values(header: Header) -> tuple[Span, ...]:
    """The arrays, and the rare long strings, that become blobs of their own, in file order."""
    return tuple(
        Span(field.offset, field.size_bytes)
        for field in header.fields
        if field.size_bytes > (ARRAY_BLOB_MIN_BYTES if field.is_array else STRING_BLOB_MIN_BYTES)
    )


def around(spans: Sequence[Span], end: int) -> Iterator[Span]:
    """What lies between `spans`, in file order, from the beginning of the file to `end`."""
    position = 0
    for span in spans:
        yield Span(position, span.offset - position)
        position = span.end
    yield Span(position, end - position)


def shown_value(field: Field) -> str:
    """A metadata value as text for reading: arrays and long strings by their size."""
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


def shown_type(field: Field) -> str:
    """A metadata type as text: `string`, `array of int32`."""
    if field.element_type is not None:
        return f"array of {field.element_type.name.lower()}"
    return field.type.name.lower()


def tags_of(source: ByteSource, header: Header) -> Iterator[str]:
    """What `general.tags` holds, as far as it is text of a bearable length."""
    field = header.field(TAGS_KEY)
    if field is None or field.element_type is not ValueType.STRING or field.size_bytes > TAGS_MAX_BYTES:
        return
    for tag in read_array(source, field):
        yield bytes(tag).decode("utf-8", errors="replace")
