"""Files cut into the pieces that a registry would keep as blobs, so that it knows those that it has already.

The runs of a header between its large values are pieces too: a registry keeps them joined to one blob, so they are
seldom known, and they are small.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from organs.ingest.buffers import BufferPool
from organs.ingest.dissect import DissectedFile
from organs.ingest.files import FileSource
from organs.ingest.hashing import FilePass, HashedPiece, Piece
from organs.ingest.pushing.remembering import Hashed, Memory
from organs.ingest.stages import Stages
from organs.registry.digest import Digest
from organs.registry.gguf.pieces import Span
from organs.registry.store.codec import BYTES_CODEC

BUFFERS = 12

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class CutFile:
    """A file with its digest, and those of its pieces in file order. Between the pieces there are only zeros."""

    file: DissectedFile
    sha256: Digest
    pieces: tuple[tuple[Span, Digest], ...]

    @property
    def name(self) -> str:
        return self.file.source.path.name

    @property
    def size_bytes(self) -> int:
        return self.file.header.file_size_bytes


def spans_of(file: DissectedFile) -> tuple[Span, ...]:
    """The stretches of `file` that are pieces, in file order; none is empty."""
    return tuple(sorted((span for span in _spans(file) if span.size_bytes), key=lambda span: span.offset))


def cut(files: Sequence[DissectedFile], memory: Memory, advance: Advance) -> list[CutFile]:
    """`files` with their digests: read once from front to back, unless `memory` has them.

    `advance` is told of the bytes that are dealt with. Raises BadSource.
    """
    return [_cut(file, memory, advance) for file in files]


def _spans(file: DissectedFile) -> Iterator[Span]:
    yield from file.literals()
    yield from file.arrays
    yield from (Span(offset, len(data)) for offset, data in file.paddings)
    yield from (file.tensor_span(tensor) for tensor in file.header.tensors)


def _cut(file: DissectedFile, memory: Memory, advance: Advance) -> CutFile:
    spans, size_bytes = spans_of(file), file.header.file_size_bytes
    identity = file.source.identity if isinstance(file.source, FileSource) else None
    hashed = None if identity is None else memory.hashed(file.source.path, identity, spans)
    if hashed is None:
        hashed = _hash(file, spans, advance)
        file.source.check_unchanged()
        if identity is not None:
            memory.keep_hashed(file.source.path, identity, spans, hashed)
    else:
        advance(size_bytes)
    return CutFile(file, hashed.file, tuple(zip(spans, hashed.pieces, strict=True)))


def _hash(file: DissectedFile, spans: Sequence[Span], advance: Advance) -> Hashed:
    cancelled = threading.Event()
    digests: list[Digest] = []
    position = 0

    def emit(hashed: HashedPiece) -> None:
        nonlocal position
        hashed.release()
        digests.append(hashed.digest)
        advance(hashed.piece.span.end - position)
        position = hashed.piece.span.end

    pieces = [Piece(file.source, span, BYTES_CODEC, None) for span in spans]
    whole = FilePass(file, BufferPool(BUFFERS, cancelled), Stages(), cancelled).run(pieces, emit)
    advance(file.header.file_size_bytes - position)
    return Hashed(whole.file, tuple(digests))
