"""One pass over a file: its own SHA-256, its header's, and those of the pieces that will be blobs.

Two digests cover the same bytes, so they are computed side by side from one read: the file's in a thread of its own.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import xxhash

from ingest.dissect import DissectedFile, Span
from ingest.stages import Stages
from registry.digest import Digest, digest_of
from registry.gguf import ByteSource, MemorySource, TensorInfo
from registry.store.codec import BYTES_CODEC, Codec

READ_BYTES = 4 * 1024 * 1024
BUFFERS = 4
"""In turn with the reader and the file's hasher: 16 MiB in all."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of bytes that becomes a blob: a tensor; or a metadata array, or what is kept word for word (no `tensor`)."""

    source: ByteSource
    span: Span
    codec: Codec
    tensor: TensorInfo | None


@dataclass(frozen=True, slots=True)
class HashedPiece:
    """A piece with its digest, and the checksum of each of its chunks: what is stored later must be what was hashed."""

    piece: Piece
    digest: Digest
    checksums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FileDigests:
    """SHA-256 of a whole file and of its header without padding."""

    file: Digest
    header: Digest


class Cancelled(Exception):  # noqa: N818
    """The run was given up; raised inside its threads to end them."""


def hash_file(
    file: DissectedFile,
    pieces: Sequence[Piece],
    emit: Callable[[HashedPiece], None],
    stages: Stages,
    cancelled: threading.Event,
) -> FileDigests:
    """Read `file` once from front to back; `emit` each piece as soon as its digest is known. Pieces are in file order."""
    fan = _FanOut(file, stages, cancelled)
    try:
        position = 0
        for piece in pieces:
            fan.pass_over(position, piece.span.offset)
            emit(_hash_piece(fan, piece))
            position = piece.span.end
        fan.pass_over(position, file.header.file_size_bytes)
    except BaseException:
        fan.stop()
        raise
    return fan.finish()


def hash_literal(file: DissectedFile) -> HashedPiece:
    """The piece of what `file` keeps word for word, from memory."""
    source = MemorySource(file.literal_bytes(), file.source.name)
    piece = Piece(source, Span(0, source.size_bytes), BYTES_CODEC, None)
    size = BYTES_CODEC.chunk_bytes
    chunks = (source.data[begin : begin + size] for begin in range(0, source.size_bytes, size))
    return HashedPiece(piece, digest_of(source.data), tuple(map(xxhash.xxh3_64_intdigest, chunks)))


def _hash_piece(fan: _FanOut, piece: Piece) -> HashedPiece:
    digest = hashlib.sha256()
    checksums = []
    for begin in range(piece.span.offset, piece.span.end, piece.codec.chunk_bytes):
        size = min(piece.codec.chunk_bytes, piece.span.end - begin)
        data = fan.read(begin, size)
        with fan.stages.timed("hash organs", size):
            digest.update(data)
            checksums.append(xxhash.xxh3_64_intdigest(data))
        fan.release(data)
    return HashedPiece(piece, Digest(digest.hexdigest()), tuple(checksums))


class _FanOut:
    """Reads buffers of the file in order and shows each to the file's hasher as well as to the caller."""

    def __init__(self, file: DissectedFile, stages: Stages, cancelled: threading.Event) -> None:
        self.stages = stages
        self._file = file
        self._cancelled = cancelled
        self._free: queue.SimpleQueue[memoryview] = queue.SimpleQueue()
        for _ in range(BUFFERS):
            self._free.put(memoryview(bytearray(READ_BYTES)))
        self._shared: dict[int, int] = {}
        self._lock = threading.Lock()
        self._to_hash: queue.SimpleQueue[tuple[int, memoryview] | None] = queue.SimpleQueue()
        self._file_digest, self._header_digest = hashlib.sha256(), hashlib.sha256()
        self._hasher = threading.Thread(target=self._hash, name="file-hash", daemon=True)
        self._hasher.start()

    def read(self, offset: int, size: int) -> memoryview:
        """The next bytes; give them back with `release`."""
        if self._cancelled.is_set():
            raise Cancelled
        buffer = self._free.get()
        data = buffer[:size]
        with self.stages.timed("read", size):
            self._file.source.read_into(data, offset)
        self._to_hash.put((offset, data))
        return data

    def release(self, data: memoryview) -> None:
        """The caller, or the hasher, is done with `data`; after both it is read into again."""
        whole = data.obj
        with self._lock:
            first = self._shared.pop(id(whole), None) is None
            if first:
                self._shared[id(whole)] = 1
        if not first:
            assert isinstance(whole, bytearray)
            self._free.put(memoryview(whole))

    def pass_over(self, begin: int, end: int) -> None:
        """Hash what belongs to no piece: the header's small entries, padding."""
        while begin < end:
            size = min(READ_BYTES, end - begin)
            self.release(self.read(begin, size))
            begin += size

    def finish(self) -> FileDigests:
        """Wait for the file's hasher; the digests."""
        self.stop()
        return FileDigests(Digest(self._file_digest.hexdigest()), Digest(self._header_digest.hexdigest()))

    def stop(self) -> None:
        """End the hasher's thread."""
        self._to_hash.put(None)
        self._hasher.join()

    def _hash(self) -> None:
        header_end = self._file.header.end
        while (item := self._to_hash.get()) is not None:
            offset, data = item
            with self.stages.timed("hash file", len(data)):
                self._file_digest.update(data)
            if offset < header_end:
                self._header_digest.update(data[: header_end - offset])
            self.release(data)
