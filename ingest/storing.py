"""Pieces to blobs: chunks are read, checked against their hash, encoded in parallel and written in order."""

from __future__ import annotations

import threading

import xxhash

from organs.ingest.hashing import HashedPiece
from organs.ingest.stages import Stages
from organs.registry.catalog.queries.blobs import BlobRow
from organs.registry.errors import BadSource, StoreError
from organs.registry.store import BlobStore, BlobWriter, StoredBlob, codec_for_blob
from organs.registry.store.codec import Codec, EncodedChunk, encode_chunk


class PieceWriter:
    """Writes one piece as a blob: `store_chunk` once a chunk, from any thread, in any order; then `finish`."""

    def __init__(self, store: BlobStore, hashed: HashedPiece, stages: Stages) -> None:
        self.hashed = hashed
        self.chunk_count = len(hashed.checksums)
        self._store = store
        self._stages = stages
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Codec, EncodedChunk]] = {}
        self._next = 0
        self._writer: BlobWriter | None = None

    def store_chunk(self, index: int) -> tuple[int, bool]:
        """Encode chunk `index` and write every chunk whose turn it is.

        How many were written, and whether the last was among them, which is true for exactly one call. Raises
        BadSource, StoreError.
        """
        plain = self._plain(index)
        writer = self._writer
        codec = self.hashed.piece.codec if writer is None else writer.codec
        with self._stages.timed("encode", len(plain)):
            chunk = encode_chunk(codec, plain)
        with self._lock:
            self._waiting[index] = (codec, chunk)
            before = self._next
            while self._next in self._waiting:
                self._write(self._next, *self._waiting.pop(self._next))
                self._next += 1
            written = self._next - before
            return written, written > 0 and self._next == self.chunk_count

    def finish(self) -> StoredBlob:
        """Make the blob durable."""
        if self._writer is None:  # no chunks: no bytes
            self._writer = self._open(self.hashed.piece.codec)
        self.hashed.release()
        with self._stages.timed("sync"):
            return self._writer.finish()

    def discard(self) -> None:
        """Leave nothing behind."""
        with self._lock:
            if self._writer is not None:
                self._writer.discard()

    def chunk_size_bytes(self, index: int) -> int:
        """Plain bytes of chunk `index`."""
        chunk_bytes = self.hashed.piece.codec.chunk_bytes
        return min(chunk_bytes, self.hashed.piece.span.size_bytes - index * chunk_bytes)

    def _plain(self, index: int) -> bytes | memoryview:
        if self.hashed.kept:
            return self.hashed.kept[index].data
        piece = self.hashed.piece
        begin, size = index * piece.codec.chunk_bytes, self.chunk_size_bytes(index)
        with self._stages.timed("read again", size):
            # Not into a buffer of the thread's own: a chunk that waits for its turn keeps these bytes alive.
            plain = piece.source.read_at(piece.span.offset + begin, size)
        if xxhash.xxh3_64_intdigest(plain) != self.hashed.checksums[index]:
            raise BadSource(f"{piece.source.name}: changed while it was read; nothing was registered")
        return plain

    def _write(self, index: int, codec: Codec, chunk: EncodedChunk) -> None:
        if self._writer is None:
            own = codec_for_blob(codec, chunk)
            self._writer = self._open(own)
        if codec != self._writer.codec:  # encoded before the first chunk had shown that it does not pay
            chunk = encode_chunk(self._writer.codec, self._plain(index))
        with self._stages.timed("write", chunk.stored_size_bytes):
            self._writer.append(chunk)

    def _open(self, codec: Codec) -> BlobWriter:
        return BlobWriter(self._store, self.hashed.digest, self.hashed.piece.span.size_bytes, codec)


def check_stored(store: BlobStore, row: BlobRow, hashed: HashedPiece, stages: Stages) -> bool:
    """Whether the bytes that the store has under a row still give what their name promises.

    A newcomer that brings the same bytes is the chance to heal what has rotted, so what is there is read once more.
    """
    try:
        with stages.timed("check known", row.size_bytes), store.open(row) as reader:
            for _ in reader.stream():
                pass
            # Bytes that were first stored as another dtype are cut elsewhere: each chunk's own checksum must do.
            cut_alike = reader.head.codec.chunk_bytes == hashed.piece.codec.chunk_bytes
            found = tuple(chunk.entry.checksum for chunk in reader.chunks)
            return not cut_alike or found == hashed.checksums
    except StoreError:
        return False
