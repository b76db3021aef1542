"""A validated header into pieces: which spans of the file become which blobs, and what is odd about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ingest.files import OpenFile
from registry.anatomy import Place, place_of
from registry.compose.lock import lock_of
from registry.errors import BadGguf
from registry.gguf import Header, TensorInfo, ValueType, padded, read_header
from registry.gguf.pieces import Span, around, large_values
from registry.gguf.tokenizer import tokenizer_reasons
from registry.gguf.types import UNQUANTISED

ODD_PADDING_MAX_BYTES = 16 * 1024 * 1024
"""Padding that is not zero is kept in memory and in one blob."""


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
        return around(self.arrays, self.header.end)

    def literal_bytes(self) -> bytes:
        """What is kept word for word: the literals, then the odd paddings, one after another."""
        runs = [self.source.read_at(span.offset, span.size_bytes) for span in self.literals()]
        return b"".join([*runs, *(data for _, data in self.paddings)])


def dissect(source: OpenFile) -> DissectedFile:
    """Read the header of `source` and look at its paddings; raises BadGguf, BadSource."""
    header = read_header(source)
    arrays = large_values(header)
    paddings = tuple(_paddings(source, header))
    flags = (*_flags(header, bool(paddings)), *_chimera_flags(source, header))
    return DissectedFile(source, header, arrays, paddings, flags, tuple(tokenizer_reasons(source, header)))


def places(header: Header) -> list[Place]:
    """The place of every tensor, in listing order."""
    return [place_of(tensor.name) for tensor in header.tensors]


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


def _chimera_flags(source: OpenFile, header: Header) -> Iterator[str]:
    lock = lock_of(header, source)
    if lock is not None:
        yield f"it carries the lock sha256:{lock.id} of a chimera"


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
