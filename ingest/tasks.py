"""The tasks of an ingest's threads: read and hash, check, encode and write, sync, measure. No task uses the catalog."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import xxhash

from organs.ingest.dissect import DissectedFile
from organs.ingest.files import (
    WAIT_SECONDS,
    BufferPool,
    Cancelled,
)
from organs.ingest.hashing import HELD_CHUNKS_MAX, FileDigests, FilePass, HashedPiece, Piece, Stages, hash_literal
from organs.registry.anatomy import place_of
from organs.registry.catalog.queries.organs import BlobRow
from organs.registry.errors import BadSource, StoreError
from organs.registry.experts import expert_shape
from organs.registry.gguf import DType, TensorInfo
from organs.registry.measure import Measurement, Read, measure, read_fingerprint
from organs.registry.references import ORGAN_MIN_BYTES, ParentSearch
from organs.registry.store import BlobStore, BlobWriter, OrganEncoder, ParentCandidate, StoredBlob, smallest_encoder
from organs.registry.store.codec import BYTES_CODEC, EncodedChunk, codec_for


@dataclass(frozen=True, slots=True)
class Hashed:
    """A piece's digest is known."""

    file_index: int
    hashed: HashedPiece


@dataclass(frozen=True, slots=True)
class FileDone:
    """A file has been read to its end."""

    file_index: int
    digests: FileDigests


@dataclass(frozen=True, slots=True)
class Stored:
    """A blob is durable."""

    blob: StoredBlob


@dataclass(frozen=True, slots=True)
class Checked:
    """A stored blob was read and compared."""

    hashed: HashedPiece
    row: BlobRow
    intact: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """An organ has been measured."""

    hashed: HashedPiece
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class Failed:
    """A thread failed."""

    error: BaseException


Event = Hashed | FileDone | Stored | Checked | Measured | Failed


class PieceWriter:
    """Writes one piece as a blob: `store_chunk` for each chunk, from any thread, in any order; then `finish`."""

    def __init__(
        self, store: BlobStore, hashed: HashedPiece, stages: Stages, parents: ParentSearch | None = None
    ) -> None:
        self.hashed = hashed
        self.chunk_count = len(hashed.checksums)
        self._store = store
        self._stages = stages
        self._parents = parents
        self._lock = threading.Lock()
        self._choosing = threading.Lock()
        self._encoder: OrganEncoder | None = None
        self._waiting: dict[int, list[EncodedChunk]] = {}
        self._next = 0
        self._writer: BlobWriter | None = None

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
        with self._lock:
            if not chunks:
                self._store_alone(encoder)
            if encoder is not self._encoder:
                assert self._encoder is not None
                chunks = self._encoded(self._encoder, index, plain)
            self._waiting[index] = chunks
            before = self._next
            while self._next in self._waiting:
                self._write(self._waiting.pop(self._next))
                self._next += 1
            written = self._next - before
            is_last = written > 0 and self._next == self.chunk_count
            if is_last:
                self._free()
            return written, is_last

    def finish(self) -> StoredBlob:
        """Make the blob durable."""
        if self._writer is None:  # no chunks: no bytes
            self._writer = self._open(OrganEncoder(self.hashed.piece.codec))
        with self._stages.timed("sync"):
            return self._writer.finish()

    def discard(self) -> None:
        """Remove the incomplete blob."""
        with self._lock:
            if self._writer is not None:
                self._writer.discard()
            if self._encoder is not None:
                self._encoder.close()

    def _free(self) -> None:
        """Free the chunks and the parent as soon as they are not needed: the piece may wait long for the disk."""
        self.hashed.release()
        if self._encoder is not None:
            self._encoder.close()

    def chunk_size_bytes(self, index: int) -> int:
        """Return the number of plain bytes of chunk `index`."""
        chunk_bytes = self.hashed.piece.codec.chunk_bytes
        return min(chunk_bytes, self.hashed.piece.span.size_bytes - index * chunk_bytes)

    def _plain(self, index: int) -> bytes | memoryview:
        if self.hashed.buffers:
            return self.hashed.buffers[index].data
        piece = self.hashed.piece
        begin, size = index * piece.codec.chunk_bytes, self.chunk_size_bytes(index)
        with self._stages.timed("read again", size):
            # New bytes, not a reused buffer: a chunk that waits for its turn refers to them.
            plain = piece.source.read_at(piece.span.offset + begin, size)
        if xxhash.xxh3_64_intdigest(plain) != self.hashed.checksums[index]:
            raise BadSource(f"{piece.source.name}: changed while it was read; nothing was registered")
        return plain

    def _encoded(self, encoder: OrganEncoder, index: int, plain: bytes | memoryview) -> list[EncodedChunk]:
        with self._stages.timed("encode", len(plain)):
            return encoder.encode(index * self.hashed.piece.codec.chunk_bytes, memoryview(plain))

    def _store_alone(self, failed: OrganEncoder) -> None:
        """Begin again without the parent of `failed`, unless another thread has done this. The lock is held."""
        if failed is not self._encoder:
            return
        failed.close()
        if self._writer is not None:
            self._writer.discard()
            self._writer = None
        self._encoder = OrganEncoder.alone(self.hashed.piece.codec, self._plain(0))
        for index in range(self._next):
            self._write(self._encoded(self._encoder, index, self._plain(index)))
        for index in self._waiting:
            self._waiting[index] = self._encoded(self._encoder, index, self._plain(index))

    def _chosen_encoder(self, first: bytes | memoryview | None) -> OrganEncoder:
        """Return the encoder of all chunks, which the bytes of the first chunk decide."""
        with self._choosing:  # other threads wait for the choice
            if self._encoder is None:
                sample = memoryview(self._plain(0) if first is None else first)
                with self._stages.timed("choose encoding", len(sample)):
                    piece = self.hashed.piece
                    self._encoder = smallest_encoder(
                        self._store, piece.codec, piece.span.size_bytes, sample, self._candidates()
                    )
            return self._encoder

    def _candidates(self) -> list[ParentCandidate]:
        tensor, piece = self.hashed.piece.tensor, self.hashed.piece
        if tensor is None or self._parents is None or piece.span.size_bytes < ORGAN_MIN_BYTES:
            return []
        place = place_of(tensor.name).key, piece.expert
        if not self._parents.has_candidates_at(place):
            return []
        fingerprint = read_fingerprint(reader_of(self.hashed), tensor.shape, tensor.dtype)
        return self._parents.candidates(place, tensor.shape, tensor.dtype, fingerprint)

    def _write(self, chunks: Sequence[EncodedChunk]) -> None:
        if self._writer is None:
            assert self._encoder is not None
            self._writer = self._open(self._encoder)
        for chunk in chunks:
            with self._stages.timed("write", chunk.stored_size_bytes):
                self._writer.append(chunk)

    def _open(self, encoder: OrganEncoder) -> BlobWriter:
        size_bytes = self.hashed.piece.span.size_bytes
        return BlobWriter(self._store, self.hashed.digest, size_bytes, encoder.codec, encoder.parent)


def check_stored(store: BlobStore, row: BlobRow, hashed: HashedPiece, stages: Stages) -> bool:
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


PIECES_AHEAD = 32
"""Limit of pieces that are hashed and not yet stored."""
WORKERS = max(2, os.cpu_count() or 2)
"""Number of threads that encode and measure."""
SYNCERS = 2
"""Number of threads that wait for the disk."""
BUFFERS = min(32, HELD_CHUNKS_MAX + 4 * WORKERS)
"""Number of buffers of 4 MiB, for reading and for pieces that are hashed and not yet stored."""
WRITERS_MAX = 2 * WORKERS + 2 * SYNCERS
"""Limit of pieces that are being encoded or wait for the disk: each has a buffer of 4 MiB, and may have a parent."""

Progress = Callable[[int], None]


class Measurer(Protocol):
    """Measures tensors."""

    threads: int
    """Number of tensors that can be measured at the same time."""

    def measure(self, read: Read, shape: Sequence[int], dtype: DType) -> Measurement:
        """Measure a tensor whose bytes `read` returns. Called by several threads."""
        ...

    def cancel(self) -> None:
        """Make `measure` raise immediately in all waiting threads."""
        ...


class LocalMeasurer:
    """Measures tensors in this process."""

    threads = WORKERS

    def measure(self, read: Read, shape: Sequence[int], dtype: DType) -> Measurement:
        return measure(read, shape, dtype)

    def cancel(self) -> None:
        """Do nothing: a measurement takes milliseconds."""


class Tasks:
    """The threads of one ingest and their events. After `stop` no thread runs."""

    def __init__(self, store: BlobStore, stages: Stages, progress: Progress, measurer: Measurer, buffers: int) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self.stages = stages
        self._store = store
        self._progress = progress
        self._cancelled = threading.Event()
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="ingest")
        self._syncers = ThreadPoolExecutor(SYNCERS, thread_name_prefix="sync")
        self._measurer = measurer
        # Threads that wait for another process must not occupy the workers.
        is_local = isinstance(measurer, LocalMeasurer)
        self._measurers = self._workers if is_local else ThreadPoolExecutor(measurer.threads, "measure")
        self._chunk_slots = threading.Semaphore(2 * WORKERS + 2)
        self._writer_slots = threading.Semaphore(WRITERS_MAX)
        self._piece_slots = threading.Semaphore(PIECES_AHEAD)
        self._pool = BufferPool(buffers, self._cancelled)
        self._to_store: queue.SimpleQueue[PieceWriter | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self, files: Sequence[DissectedFile]) -> None:
        """Read and hash `files` in order: emits Hashed for every piece, FileDone for every file."""
        self._threads = [
            threading.Thread(target=self._read, args=(files,), name="reader", daemon=True),
            threading.Thread(target=self._feed, name="feeder", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def piece_done(self) -> None:
        """Note that a piece was processed, so that the reader can continue."""
        self._piece_slots.release()

    def interrupt(self) -> None:
        """Request the end: emits Failed with a KeyboardInterrupt. Safe in a signal handler."""
        self.events.put(Failed(KeyboardInterrupt()))

    def store(self, writer: PieceWriter) -> None:
        """Encode, write and sync a piece: emits Stored."""
        self._to_store.put(writer)

    def check(self, hashed: HashedPiece, row: BlobRow) -> None:
        """Read the stored blob of `row`: emits Checked."""
        self._submit(self._workers, partial(self._check, hashed, row))

    def measure(self, hashed: HashedPiece) -> None:
        """Measure a tensor whose chunks are held: emits Measured."""
        self._submit(self._measurers, partial(self._measure, hashed))

    def stop(self, *, cancel: bool) -> None:
        """Wait for all threads; with `cancel`, cancel them first."""
        if cancel:
            self._cancelled.set()
            self._measurer.cancel()
        self._to_store.put(None)
        for thread in self._threads:
            if thread.ident is not None:  # the system may have refused to start it
                thread.join()
        self._workers.shutdown(cancel_futures=cancel)
        self._measurers.shutdown(cancel_futures=cancel)
        self._syncers.shutdown()
        self._pool.clear()  # these objects refer to each other, and the collection of garbage can be far away

    def _read(self, files: Sequence[DissectedFile]) -> None:
        try:
            for index, file in enumerate(files):
                emit = partial(self._emit, index)
                digests = FilePass(file, self._pool, self.stages, self._cancelled).run(_pieces(file), emit)
                emit(hash_literal(file))
                self.events.put(FileDone(index, digests))
        except Cancelled:
            return
        except BaseException as error:  # noqa: BLE001  # the coordinator raises it
            self.events.put(Failed(error))

    def _emit(self, file_index: int, hashed: HashedPiece) -> None:
        self._wait_for(self._piece_slots)
        self.events.put(Hashed(file_index, hashed))

    def _feed(self) -> None:
        """Give chunks to the workers when a slot is free, so that the coordinator does not wait."""
        try:
            while (writer := self._to_store.get()) is not None:
                self._wait_for(self._writer_slots)
                if not writer.chunk_count:
                    self._submit(self._syncers, partial(self._finish, writer))
                for index in range(writer.chunk_count):
                    self._wait_for(self._chunk_slots)
                    self._submit(self._workers, partial(self._store_chunk, writer, index))
        except Cancelled:
            return
        except BaseException as error:  # noqa: BLE001  # without a feeder the coordinator would wait forever
            self.events.put(Failed(error))

    def _wait_for(self, slots: threading.Semaphore) -> None:
        while not slots.acquire(timeout=WAIT_SECONDS):
            if self._cancelled.is_set():
                raise Cancelled

    def _store_chunk(self, writer: PieceWriter, index: int) -> None:
        if self._cancelled.is_set():
            self._chunk_slots.release()
            return
        try:
            written, last = writer.store_chunk(index)
        except BaseException:
            # From now on every chunk fails and frees its own slot, so no thread waits forever.
            self._cancelled.set()
            self._chunk_slots.release()
            raise
        if written:
            self._chunk_slots.release(written)
        self._progress(writer.chunk_size_bytes(index))
        if last:
            self._submit(self._syncers, partial(self._finish, writer))

    def _finish(self, writer: PieceWriter) -> None:
        if self._cancelled.is_set():
            return
        blob = writer.finish()
        self._writer_slots.release()
        self.events.put(Stored(blob))

    def _check(self, hashed: HashedPiece, row: BlobRow) -> None:
        intact = check_stored(self._store, row, hashed, self.stages)
        self.events.put(Checked(hashed, row, intact))

    def _measure(self, hashed: HashedPiece) -> None:
        piece = hashed.piece
        assert piece.tensor is not None
        with self.stages.timed("measure"):
            result = self._measurer.measure(reader_of(hashed), piece.tensor.shape, piece.tensor.dtype)
        hashed.release()
        self.events.put(Measured(hashed, result))

    def _submit(self, pool: ThreadPoolExecutor, task: Callable[[], None]) -> None:
        pool.submit(task).add_done_callback(self._report)

    def _report(self, done: Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            self.events.put(Failed(error))


def _pieces(file: DissectedFile) -> list[Piece]:
    arrays = [Piece(file.source, span, BYTES_CODEC, None) for span in file.arrays]
    tensors = [piece for tensor in file.header.tensors for piece in _tensor_pieces(file, tensor)]
    return arrays + tensors


def _tensor_pieces(file: DissectedFile, tensor: TensorInfo) -> Iterator[Piece]:
    """Yield the piece of a tensor; for a stack of experts, those of its experts, then the stack."""
    codec, experts = codec_for(tensor.dtype.name), file.expert_spans(tensor)
    for number, span in enumerate(experts):
        offset = span.offset - file.header.data_offset
        expert = TensorInfo(tensor.name, expert_shape(tensor.shape), tensor.dtype, offset)
        yield Piece(file.source, span, codec, expert, number)
    yield Piece(file.source, file.tensor_span(tensor), codec, tensor, experts=len(experts))


def reader_of(hashed: HashedPiece) -> Callable[[int, int], bytes | memoryview]:
    """Return a function that reads at an offset of the tensor, from chunks in memory if possible."""
    span, source, chunk_bytes = hashed.piece.span, hashed.piece.source, hashed.piece.codec.chunk_bytes
    buffers = [buffer.data for buffer in hashed.buffers]

    def read_buffered(offset: int, size: int) -> bytes | memoryview:
        index, begin = divmod(offset, chunk_bytes)
        data = buffers[index][begin : begin + size]
        if len(data) == size:
            return data
        return bytes(data) + bytes(read_buffered(offset + len(data), size - len(data)))

    def read_again(offset: int, size: int) -> bytes:
        return source.read_at(span.offset + offset, size)

    return read_buffered if buffers else read_again
