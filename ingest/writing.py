"""Pieces of files as blobs: written chunk by chunk by several threads, or compared with a stored blob."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import xxhash

from organs.ingest.hashing import HashedPiece, Stages
from organs.registry.anatomy import place_of
from organs.registry.catalog.queries.blobs import KnownBlob
from organs.registry.errors import BadSource, StoreError
from organs.registry.measure import read_fingerprint
from organs.registry.references import ORGAN_MIN_BYTES, ParentSearch
from organs.registry.store import BlobStore, BlobWriter, OrganEncoder, ParentCandidate, StoredBlob, smallest_encoder
from organs.registry.store.codec import EncodedChunk


@dataclass(slots=True)
class PieceWriter:
    """Writes one piece as a blob: `store_chunk` for each chunk, from any thread, in any order; then `finish`."""

    store: BlobStore
    hashed: HashedPiece
    stages: Stages
    parents: ParentSearch | None
    stored: StoredBlob | None = None
    """The blob, when it is durable."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    choosing: threading.Lock = field(default_factory=threading.Lock)
    encoder: OrganEncoder | None = None
    waiting: dict[int, list[EncodedChunk]] = field(default_factory=dict)
    next: int = 0
    writer: BlobWriter | None = None

    @property
    def chunk_count(self) -> int:
        return len(self.hashed.checksums)

    def store_chunk(self, index: int) -> tuple[int, bool]:
        """Encode chunk `index` and write all chunks that are next in order.

        Return the number of written chunks, and whether the last chunk is among them, which is true for exactly one
        call. Raises BadSource, StoreError.
        """
        plain = self._plain(index)
        encoder = self._chosen_encoder(plain if index == 0 else None)
        try:
            chunks = self._encoded(encoder, index, plain)
        except StoreError:
            if encoder.parent is None:
                raise
            chunks = []  # the parent is faulty, or another thread has closed it: the piece is stored alone
        with self.lock:
            if not chunks:
                self._store_alone(encoder)
            if encoder is not self.encoder:
                assert self.encoder is not None
                chunks = self._encoded(self.encoder, index, plain)
            self.waiting[index] = chunks
            before = self.next
            while self.next in self.waiting:
                self._write(self.waiting.pop(self.next))
                self.next += 1
            written = self.next - before
            is_last = written > 0 and self.next == self.chunk_count
            if is_last:  # free the chunks and the parent now: the piece may wait long for the disk
                self.hashed.release()
                self._close_encoder()
            return written, is_last

    def finish(self) -> StoredBlob:
        """Make the blob durable."""
        if self.writer is None:  # no chunks: no bytes
            self.writer = self._open(OrganEncoder(self.hashed.piece.codec))
        with self.stages.timed("sync"):
            self.stored = self.writer.finish()
        return self.stored

    def discard(self) -> None:
        """Remove the incomplete blob."""
        with self.lock:
            if self.writer is not None:
                self.writer.discard()
            self._close_encoder()

    def chunk_size_bytes(self, index: int) -> int:
        """Return the number of plain bytes of chunk `index`."""
        chunk_bytes = self.hashed.piece.codec.chunk_bytes
        return min(chunk_bytes, self.hashed.piece.span.size_bytes - index * chunk_bytes)

    def _close_encoder(self) -> None:
        if self.encoder is not None:
            self.encoder.close()

    def _plain(self, index: int) -> bytes | memoryview:
        if self.hashed.buffers:
            return self.hashed.buffers[index].data
        piece = self.hashed.piece
        begin, size = index * piece.codec.chunk_bytes, self.chunk_size_bytes(index)
        with self.stages.timed("read again", size):
            # New bytes, not a reused buffer: a chunk that waits for its turn refers to them.
            plain = piece.source.read_at(piece.span.offset + begin, size)
        if xxhash.xxh3_64_intdigest(plain) != self.hashed.checksums[index]:
            raise BadSource(f"{piece.source.name}: changed while it was read; nothing was registered")
        return plain

    def _encoded(self, encoder: OrganEncoder, index: int, plain: bytes | memoryview) -> list[EncodedChunk]:
        with self.stages.timed("encode", len(plain)):
            return encoder.encode(index * self.hashed.piece.codec.chunk_bytes, memoryview(plain))

    def _store_alone(self, failed: OrganEncoder) -> None:
        """Begin again without the parent of `failed`, unless another thread has done this. The lock is held."""
        if failed is not self.encoder:
            return
        failed.close()
        if self.writer is not None:
            self.writer.discard()
            self.writer = None
        self.encoder = OrganEncoder.alone(self.hashed.piece.codec, self._plain(0))
        for index in range(self.next):
            self._write(self._encoded(self.encoder, index, self._plain(index)))
        for index in self.waiting:
            self.waiting[index] = self._encoded(self.encoder, index, self._plain(index))

    def _chosen_encoder(self, first: bytes | memoryview | None) -> OrganEncoder:
        """Return the encoder of all chunks, which the bytes of the first chunk decide."""
        with self.choosing:  # other threads wait for the choice
            if self.encoder is None:
                sample = memoryview(self._plain(0) if first is None else first)
                with self.stages.timed("choose encoding", len(sample)):
                    piece = self.hashed.piece
                    self.encoder = smallest_encoder(
                        self.store, piece.codec, piece.span.size_bytes, sample, self._candidates()
                    )
            return self.encoder

    def _candidates(self) -> list[ParentCandidate]:
        """Return the stored organs by their difference to which the piece could be stored."""
        tensor, piece = self.hashed.piece.tensor, self.hashed.piece
        if tensor is None or self.parents is None or piece.span.size_bytes < ORGAN_MIN_BYTES:
            return []
        place = place_of(tensor.name).key, piece.expert
        if not self.parents.has_candidates_at(place):
            return []
        fingerprint = read_fingerprint(self.hashed.read, tensor.shape, tensor.dtype)
        return self.parents.candidates(place, tensor.shape, tensor.dtype, fingerprint)

    def _write(self, chunks: list[EncodedChunk]) -> None:
        if self.writer is None:
            assert self.encoder is not None
            self.writer = self._open(self.encoder)
        for chunk in chunks:
            with self.stages.timed("write", chunk.stored_size_bytes):
                self.writer.append(chunk)

    def _open(self, encoder: OrganEncoder) -> BlobWriter:
        size_bytes = self.hashed.piece.span.size_bytes
        return BlobWriter(self.store, self.hashed.digest, size_bytes, encoder.codec, encoder.parent)


def is_intact(store: BlobStore, row: KnownBlob, hashed: HashedPiece, stages: Stages) -> bool:
    """Return whether the stored bytes of a row still match their digest.

    A new file with the same bytes can repair a damaged blob, so the stored one is read again.
    """
    try:
        with stages.timed("check known", row.size_bytes), store.open(row) as reader:
            sizes = [chunk.plain_size_bytes for chunk in reader.chunks]
            if sizes != hashed.piece.codec.chunk_sizes_bytes(row.size_bytes):
                reader.verify()  # stored as another dtype, by its difference, or by an older version: other chunks
                return True
            for _ in reader.stream():
                pass
            return tuple(chunk.checksum for chunk in reader.chunks) == hashed.checksums
    except StoreError:
        return False
