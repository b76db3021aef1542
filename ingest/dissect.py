"""The plan for splitting a file: the spans that become blobs, and the limits of the number of its tensors.

`read_front` is the only part that parses: submissions run it in a confined process
(`ingest.contributions.inspector`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from organs.registry.compose.lock import lock_of
from organs.registry.digest import Digest
from organs.registry.errors import BadGguf, TooManyTensors
from organs.registry.experts import split_stacks
from organs.registry.gguf import ByteSource, Header, TensorInfo, padded, read_header
from organs.registry.gguf.header import Span, around, large_values
from organs.registry.gguf.read import tags_of
from organs.registry.gguf.tokenizer import tokenizer_reasons
from organs.registry.input_files import OpenFile, ReadableFile, read_pieces

TENSORS_MAX = 65_536
TENSOR_MIN_BYTES = 4096
FREE_TENSORS = 4096
"""Limit of tensors of one model that are smaller than TENSOR_MIN_BYTES or repeat another of its tensors."""


class TensorCount:
    """Counts the tensors of one model while they are read; raises TooManyTensors at the first tensor over the limit."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: set[Hashable] = set()
        self._free = 0

    def add(self, key: Hashable, size_bytes: int) -> None:
        """Count a tensor of `size_bytes` bytes; `key` is equal for equal bytes of one type and shape."""
        if size_bytes < TENSOR_MIN_BYTES or key in self._seen:
            self._free += 1
            if self._free > FREE_TENSORS:
                raise _too_many_free(self._name)
        self._seen.add(key)


def check_tensor_sizes(name: str, sizes_bytes: Iterable[int]) -> None:
    """Check the sizes that the headers of a model declare, before any tensor is read; raises TooManyTensors."""
    sizes = list(sizes_bytes)
    if len(sizes) > TENSORS_MAX:
        raise TooManyTensors(f"{name}: it has {len(sizes):,} tensors; the limit is {TENSORS_MAX:,}")
    if sum(size < TENSOR_MIN_BYTES for size in sizes) > FREE_TENSORS:
        raise _too_many_free(name)


def _too_many_free(name: str) -> TooManyTensors:
    return TooManyTensors(
        f"{name}: more than {FREE_TENSORS:,} of its tensors are smaller than {TENSOR_MIN_BYTES:,} bytes or repeat "
        "another of its tensors: a model with so many tensors must have more bytes"
    )


ODD_PADDING_MAX_BYTES = 16 * 1024 * 1024
"""Limit of padding that is not zero; it is held in memory and stored in one blob."""


@dataclass(frozen=True, slots=True)
class Front:
    """The header of one GGUF file, and the metadata that an ingest uses."""

    header: Header
    tags: tuple[str, ...]
    unassemblable: tuple[str, ...]
    """Reasons why loaders cannot open the file."""
    lock: Digest | None
    """The id of the lock in its header."""


@dataclass(frozen=True, slots=True)
class OpenGguf:
    """One file of a model, of which only the header has been read."""

    source: ReadableFile
    header: Header

    def tensor_span(self, tensor: TensorInfo) -> Span:
        """Return the byte range of the tensor in the file."""
        return Span(self.header.data_offset + tensor.offset, tensor.size_bytes)

    def read_tensor(self, tensor: TensorInfo, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes from `offset` of the tensor."""
        return self.source.read_at(self.header.data_offset + tensor.offset + offset, size)


@dataclass(frozen=True, slots=True)
class DissectedFile(OpenGguf):
    """One file of a model with its planned pieces: only its header and its padding have been read."""

    source: OpenFile
    front: Front
    arrays: tuple[Span, ...]
    """Metadata arrays and long strings that become separate blobs, in file order."""
    paddings: tuple[tuple[int, bytes], ...]
    """Offsets and bytes of padding that is not all zeros."""
    stacks: Mapping[str, int]
    """The number of experts of each stack that is split, by name."""

    def expert_spans(self, tensor: TensorInfo) -> tuple[Span, ...]:
        """Return the byte range of each expert of a stack that is split; none for other tensors."""
        return tuple(self.expert_span(tensor, number) for number in range(self.stacks.get(tensor.name, 0)))

    def expert_span(self, tensor: TensorInfo, number: int) -> Span:
        """Return the byte range of one expert of a stack that is split."""
        span = self.tensor_span(tensor)
        size = span.size_bytes // self.stacks[tensor.name]
        return Span(span.offset + number * size, size)

    def pieces(self, span: Span) -> Iterator[memoryview]:
        """Read the bytes of `span` (`read_pieces`)."""
        return read_pieces(self.source, span.offset, span.size_bytes)

    def literals(self) -> Iterator[Span]:
        """Yield the spans of the header without its large arrays, in file order."""
        return around(self.arrays, self.header.end)

    def literal_bytes(self) -> bytes:
        """Return the bytes that are stored unchanged: the literals, then padding that is not zero."""
        runs = [self.source.read_at(span.offset, span.size_bytes) for span in self.literals()]
        return b"".join([*runs, *(data for _, data in self.paddings)])


def read_front(source: ByteSource) -> Front:
    """Parse the header of `source` and the metadata that an ingest uses.

    Raises BadGguf, BadSource, TooManyTensors.
    """
    header = read_header(source)
    check_tensor_sizes(source.name, (tensor.size_bytes for tensor in header.tensors))
    lock = lock_of(header, source)
    return Front(
        header=header,
        tags=tuple(tags_of(source, header)),
        unassemblable=tuple(tokenizer_reasons(source, header)),
        lock=None if lock is None else lock.id,
    )


def dissect(source: OpenFile, front: Front | None = None) -> DissectedFile:
    """Read the front of `source`, unless `front` is given, and its paddings.

    Raises BadGguf, BadSource, TooManyTensors.
    """
    front = front or read_front(source)
    header = front.header
    # `read_front` checked this too, but `front` may come from a process that is not trusted.
    check_tensor_sizes(source.name, (tensor.size_bytes for tensor in header.tensors))
    paddings = tuple(odd_paddings(source, header))
    return DissectedFile(
        source=source,
        header=header,
        front=front,
        arrays=large_values(header),
        paddings=paddings,
        stacks=split_stacks(header.tensors),
    )


def odd_paddings(source: ByteSource, header: Header) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and the bytes of each padding that is not all zeros; raises BadGguf if they are too many."""
    spans = [Span(header.end, min(header.data_offset, header.file_size_bytes) - header.end)]
    for tensor in header.tensors:
        end = header.data_offset + tensor.offset + tensor.size_bytes
        size_bytes = padded(tensor.size_bytes, header.alignment) - tensor.size_bytes
        spans.append(Span(end, min(size_bytes, header.file_size_bytes - end)))
    nonzero_bytes = 0
    for span in spans:
        data = source.read_at(span.offset, span.size_bytes) if span.size_bytes > 0 else b""
        if not data.strip(b"\0"):
            continue
        nonzero_bytes += len(data)
        if nonzero_bytes > ODD_PADDING_MAX_BYTES:
            reason = f"more than {ODD_PADDING_MAX_BYTES} bytes of padding are not zero: they may hide data"
            raise BadGguf(source.name, "padding", span.offset, reason)
        yield span.offset, data
