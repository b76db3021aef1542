"""A validated header into pieces: which spans of the file become which blobs, and what is odd about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ingest.files import OpenFile
from registry.anatomy import Place, place_of
from registry.errors import BadGguf
from registry.gguf import Field, Header, TensorInfo, ValueType, padded, read_header
from registry.gguf.tokenizer import tokenizer_reasons
from registry.gguf.types import UNQUANTISED

STRING_BLOB_MIN_BYTES = 64 * 1024
ODD_PADDING_MAX_BYTES = 16 * 1024 * 1024
"""Padding that is not zero is kept in memory and in one blob."""
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


@dataclass(frozen=True, slots=True)
class DissectedFile:
    """One file of a model, taken apart on paper: nothing but its header has been read."""

    source: OpenFile
    header: Header
    arrays: tuple[Span, ...]
    """Metadata arrays, and the rare long strings, that become blobs of their own, in file order."""
    paddings: tuple[tuple[int, bytes], ...]
    """Offsets and bytes of padding that is not all zeros."""
    flags: tuple[str, ...]
    unassemblable: tuple[str, ...]

    def tensor_span(self, tensor: TensorInfo) -> Span:
        """Where the tensor's bytes lie in the file."""
        return Span(self.header.data_offset + tensor.offset, tensor.size_bytes)

    def literals(self) -> Iterator[Span]:
        """The header without its large arrays, in file order."""
        position = 0
        for array in self.arrays:
            yield Span(position, array.offset - position)
            position = array.end
        yield Span(position, self.header.end - position)

    def literal_bytes(self) -> bytes:
        """What is kept word for word: the literals, then the odd paddings, one after another."""
        runs = [self.source.read_at(span.offset, span.size_bytes) for span in self.literals()]
        return b"".join([*runs, *(data for _, data in self.paddings)])


def dissect(source: OpenFile) -> DissectedFile:
    """Read the header of `source` and look at its paddings; raises BadGguf, BadSource."""
    header = read_header(source)
    arrays = tuple(
        Span(field.offset, field.size_bytes)
        for field in header.fields
        if field.size_bytes > (ARRAY_BLOB_MIN_BYTES if field.is_array else STRING_BLOB_MIN_BYTES)
    )
    paddings = tuple(_paddings(source, header))
    flags = tuple(_flags(header, bool(paddings)))
    return DissectedFile(source, header, arrays, paddings, flags, tuple(tokenizer_reasons(source, header)))


def places(header: Header) -> list[Place]:
    """The place of every tensor, in listing order."""
    return [place_of(tensor.name) for tensor in header.tensors]


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


def _paddings(source: OpenFile, header: Header) -> Iterator[tuple[int, bytes]]:
    spans = [Span(header.end, min(header.data_offset, header.file_size_bytes) - header.end)]
    for tensor in header.tensors:
        end = header.data_offset + tensor.offset + tensor.size_bytes
        due = padded(tensor.size_bytes, header.alignment) - tensor.size_bytes
        spans.append(Span(end, min(due, header.file_size_bytes - end)))
    kept_bytes = 0
    for span in spans:
        data = source.read_at(span.offset, span.size_bytes) if span.size_bytes > 0 else b""
        if not data.strip(b"\0"):
            continue
        kept_bytes += len(data)
        if kept_bytes > ODD_PADDING_MAX_BYTES:
            reason = f"more than {ODD_PADDING_MAX_BYTES} bytes of padding are not zero: something is hidden there"
            raise BadGguf(source.name, "padding", span.offset, reason)
        yield span.offset, data


def _flags(header: Header, odd_padding: bool) -> Iterator[str]:
    if odd_padding:
        yield "padding between tensors is not zero; it is kept"
    if header.tensors and header.last_byte == header.file_size_bytes and header.last_byte % header.alignment:
        yield "the last tensor has no padding behind it"
    first = not header.integer("split.no")  # the other shards of a set have no metadata of their own
    quantised = any(tensor.dtype.name not in UNQUANTISED for tensor in header.tensors)
    if first and quantised and header.field("general.quantization_version") is None:
        yield "general.quantization_version is absent although tensors are quantised"
    if first and header.architecture is None:
        yield "general.architecture is absent: no runtime can load it as it is"
    if header.version < 3:
        yield f"GGUF version {header.version}"
    for field in header.fields:
        if field.type is ValueType.STRING and isinstance(field.value, bytes):
            yield f"{field.key} is not UTF-8"
        if field.type is ValueType.BOOL and not isinstance(field.value, bool):
            yield f"{field.key} is a truth value other than 0 and 1"
