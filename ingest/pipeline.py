"""The journey of one model from files to rows, over threads and in bounded memory.

    reader      reads each file once; hashes pieces, the file's hasher beside it        (hashing)
    workers     encode chunks, check what is known already, measure                     (storing, registry.measure)
    syncers     make finished blobs durable
    coordinator the caller's thread: asks the catalog, hands out work, commits in small batches

Only the coordinator touches the database. Pieces and chunks on their way are counted, so memory does not depend on sizes.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from threadpoolctl import threadpool_limits

from ingest.dissect import DissectedFile, Span
from ingest.events import Checked, Event, Failed, FileDone, Hashed, Measured, Stored
from ingest.hashing import Cancelled, FileDigests, HashedPiece, Piece, hash_file, hash_literal
from ingest.stages import Stages
from ingest.storing import PieceWriter, check_stored
from registry.catalog.queries.blobs import BlobRow, blobs_by_digest
from registry.catalog.queries.organs import measured_organs
from registry.catalog.register.blobs import lease_blobs, mark_corrupt, record_blobs
from registry.catalog.register.ingests import renew_lease
from registry.catalog.register.organs import OrganKey, shape_text
from registry.digest import Digest
from registry.measure import Measurement, measure
from registry.registry import Registry
from registry.store import StoredBlob
from registry.store.codec import BYTES_CODEC, codec_for

BATCH_BYTES = 64 * 1024 * 1024
"""Plain bytes whose rows are committed together: about what a kill costs."""
BATCH_BLOBS = 256
PIECES_AHEAD = 32
"""Pieces that are hashed and not yet stored."""
SYNCERS = 2
HEARTBEAT_SECONDS = 60.0

Progress = Callable[[int], None]


@dataclass(slots=True)
class Gathered:
    """What a run has found out, for the registration."""

    files: dict[int, FileDigests] = field(default_factory=dict)
    digests: dict[tuple[int, int], Digest] = field(default_factory=dict)
    """By file (index) and offset of the piece."""
    literals: dict[int, Digest] = field(default_factory=dict)
    """By file: what is kept word for word."""
    measurements: dict[OrganKey, Measurement] = field(default_factory=dict)
    new_blobs: int = 0
    new_bytes: int = 0
    stored_bytes: int = 0
    known_bytes: int = 0


class Pipeline:
    """Stores and measures the pieces of one model's files."""

    def __init__(
        self, registry: Registry, ingest_id: int, files: Sequence[DissectedFile], stages: Stages, progress: Progress
    ) -> None:
        self.gathered = Gathered()
        self._registry = registry
        self._ingest_id = ingest_id
        self._files = files
        self._stages = stages
        self._progress = progress
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._cancelled = threading.Event()
        workers = max(2, os.cpu_count() or 2)
        self._workers = ThreadPoolExecutor(workers, thread_name_prefix="ingest")
        self._syncers = ThreadPoolExecutor(SYNCERS, thread_name_prefix="sync")
        self._chunk_slots = threading.BoundedSemaphore(2 * workers + 2)
        self._piece_slots = threading.Semaphore(PIECES_AHEAD)
        self._writers: dict[Digest, PieceWriter] = {}
        self._seen: set[Digest] = set()
        self._measuring: set[OrganKey] = set()
        self._batch: list[StoredBlob] = []
        self._batch_bytes = 0
        self._open_tasks = 0

    def run(self) -> Gathered:
        """Do all of it; raises what the first failing thread raised. Threads have ended when this returns."""
        reader = threading.Thread(target=self._read_files, name="reader", daemon=True)
        try:
            with threadpool_limits(1, "blas"):  # our threads are the parallelism
                reader.start()
                while len(self.gathered.files) < len(self._files) or self._open_tasks:
                    self._handle(self._next_event())
            self._commit()
        except BaseException as error:
            self._abandon(reader, keep=isinstance(error, KeyboardInterrupt))
            raise
        reader.join()
        self._shut_down()
        return self.gathered

    # The reader's thread.

    def _read_files(self) -> None:
        try:
            for index, file in enumerate(self._files):
                pieces = _pieces(file)
                digests = hash_file(file, pieces, partial(self._emit_piece, index), self._stages, self._cancelled)
                literal = hash_literal(file)
                self.gathered.literals[index] = literal.digest
                self._emit(literal)
                self._events.put(FileDone(index, digests))
        except Cancelled:
            return
        except BaseException as error:  # noqa: BLE001  # carried over to the coordinator, which raises it
            self._events.put(Failed(error))

    def _emit_piece(self, index: int, hashed: HashedPiece) -> None:
        self.gathered.digests[index, hashed.piece.span.offset] = hashed.digest
        self._emit(hashed)

    def _emit(self, hashed: HashedPiece) -> None:
        while not self._piece_slots.acquire(timeout=0.5):
            if self._cancelled.is_set():
                raise Cancelled
        self._events.put(Hashed(hashed))

    # The coordinator's.

    def _next_event(self) -> Event:
        while True:
            try:
                return self._events.get(timeout=HEARTBEAT_SECONDS)
            except queue.Empty:
                self._commit()

    def _handle(self, event: Event) -> None:
        match event:
            case Failed():
                raise event.error
            case FileDone():
                self.gathered.files[event.index] = event.digests
            case Hashed():
                self._admit([event.hashed, *self._more_hashed()])
            case Checked():
                self._open_tasks -= 1
                self._after_check(event)
            case Stored():
                self._open_tasks -= 1
                self._after_store(event)
            case Measured():
                self._open_tasks -= 1
                self.gathered.measurements[_organ_key(event.hashed)] = event.measurement

    def _more_hashed(self) -> list[HashedPiece]:
        """Further pieces that wait already: they share one question to the catalog."""
        found: list[HashedPiece] = []
        rest: list[Event] = []
        while not self._events.empty():
            event = self._events.get()
            if isinstance(event, Hashed):
                found.append(event.hashed)
            else:
                rest.append(event)
        for event in rest:
            self._events.put(event)
        return found

    def _admit(self, pieces: Sequence[HashedPiece]) -> None:
        digests = [hashed.digest for hashed in pieces]
        with self._stages.timed("catalog"), self._registry.catalog.reading() as session:
            rows = blobs_by_digest(session, digests)
            measured = measured_organs(session, rows.values())
        present = [row for row in rows.values() if row.state != "corrupt"]
        if present:
            rows = self._lease(present)
        for hashed in pieces:
            key = _organ_key(hashed)
            if hashed.digest in self._seen:
                self._piece_slots.release()
                self._known(hashed)
            else:
                self._seen.add(hashed.digest)
                self._begin(hashed, rows.get(hashed.digest))
            if hashed.piece.tensor is not None and key not in measured and key not in self._measuring:
                self._measuring.add(key)
                self._submit(self._workers, partial(self._measure, hashed))

    def _lease(self, rows: Sequence[BlobRow]) -> dict[Digest, BlobRow]:
        """Lease what is still there: a sweep may have been faster."""
        with self._stages.timed("catalog"), self._registry.catalog.writing() as session:
            still = blobs_by_digest(session, [row.digest for row in rows])
            lease_blobs(session, self._ingest_id, [row.id for row in still.values()])
        return still

    def _begin(self, hashed: HashedPiece, row: BlobRow | None) -> None:
        if row is None or row.state == "corrupt":
            self._store(hashed)
        else:
            self._submit(self._workers, partial(self._check, hashed, row))

    def _after_check(self, event: Checked) -> None:
        if event.intact:
            self._piece_slots.release()
            self._known(event.hashed)
            return
        with self._registry.catalog.writing() as session:
            mark_corrupt(session, event.hashed.digest)
        self._store(event.hashed)

    def _known(self, hashed: HashedPiece) -> None:
        self.gathered.known_bytes += hashed.piece.span.size_bytes
        self._progress(hashed.piece.span.size_bytes)

    def _store(self, hashed: HashedPiece) -> None:
        writer = PieceWriter(self._registry.blobs, hashed, self._stages)
        self._writers[hashed.digest] = writer
        self._open_tasks += 1  # ends with Stored
        if not writer.chunk_count:
            self._finish_later(writer)
        for index in range(writer.chunk_count):
            self._chunk_slots.acquire()
            self._guarded(self._workers, partial(self._store_chunk, writer, index))

    def _after_store(self, event: Stored) -> None:
        blob = event.blob
        self._piece_slots.release()
        self._writers.pop(blob.digest, None)
        self.gathered.new_blobs += 1
        self.gathered.new_bytes += blob.size_bytes
        self.gathered.stored_bytes += blob.stored_bytes
        self._batch.append(blob)
        self._batch_bytes += blob.size_bytes
        if self._batch_bytes >= BATCH_BYTES or len(self._batch) >= BATCH_BLOBS:
            self._commit()

    def _commit(self) -> None:
        with self._stages.timed("catalog"), self._registry.catalog.writing() as session:
            renew_lease(session, self._ingest_id)
            unused = record_blobs(session, self._ingest_id, self._batch)
        self._batch, self._batch_bytes = [], 0
        self._remove(unused)

    # The workers' and syncers'.

    def _store_chunk(self, writer: PieceWriter, index: int) -> None:
        try:
            written, last = (0, False) if self._cancelled.is_set() else writer.store_chunk(index)
        except BaseException:
            self._cancelled.set()
            raise
        finally:
            if self._cancelled.is_set():
                self._chunk_slots.release()
        if self._cancelled.is_set():
            return
        for _ in range(written):
            self._chunk_slots.release()
        self._progress(min(writer.hashed.piece.codec.chunk_bytes, writer.hashed.piece.span.size_bytes))
        if last:
            self._finish_later(writer)

    def _finish_later(self, writer: PieceWriter) -> None:
        self._guarded(self._syncers, partial(self._finish, writer))

    def _finish(self, writer: PieceWriter) -> None:
        if not self._cancelled.is_set():
            self._events.put(Stored(writer.finish(), writer.hashed))

    def _check(self, hashed: HashedPiece, row: BlobRow) -> None:
        intact = check_stored(self._registry.blobs, row, hashed.checksums, self._stages)
        self._events.put(Checked(hashed, row, intact))

    def _measure(self, hashed: HashedPiece) -> None:
        tensor, piece = hashed.piece.tensor, hashed.piece
        assert tensor is not None
        with self._stages.timed("measure"):
            read = partial(_read_within, piece)
            result = measure(read, tensor.shape, tensor.dtype)
        self._events.put(Measured(hashed, result))

    def _submit(self, pool: ThreadPoolExecutor, task: Callable[[], None]) -> None:
        self._open_tasks += 1
        self._guarded(pool, task)

    def _guarded(self, pool: ThreadPoolExecutor, task: Callable[[], None]) -> None:
        pool.submit(task).add_done_callback(self._report)

    def _report(self, done: Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            self._events.put(Failed(error))

    # Ends.

    def _abandon(self, reader: threading.Thread, *, keep: bool) -> None:
        """Stop every thread and remove what is half written. What is durable is recorded when a re-run shall find it."""
        self._cancelled.set()
        self._workers.shutdown(cancel_futures=True)
        self._shut_down()
        reader.join()
        while not self._events.empty():
            event = self._events.get()
            if isinstance(event, Stored):
                self._writers.pop(event.blob.digest, None)
                self._batch.append(event.blob)
        for writer in self._writers.values():
            writer.discard()
        if keep:
            self._commit()
        else:
            self._remove([blob.file for blob in self._batch if blob.file is not None])

    def _shut_down(self) -> None:
        self._workers.shutdown()
        self._syncers.shutdown()

    def _remove(self, files: Sequence[str]) -> None:
        local = self._registry.blobs.local
        for file in files:
            local.remove(local.path(file))


def _pieces(file: DissectedFile) -> list[Piece]:
    arrays = [Piece(file.source, span, BYTES_CODEC, None) for span in file.arrays]
    tensors = [
        Piece(file.source, file.tensor_span(tensor), codec_for(tensor.dtype.name), tensor)
        for tensor in file.header.tensors
    ]
    return arrays + tensors


def _organ_key(hashed: HashedPiece) -> OrganKey:
    tensor = hashed.piece.tensor
    return ("", "", "") if tensor is None else (hashed.digest, tensor.dtype.name, shape_text(tensor.shape))


def _read_within(piece: Piece, offset: int, size: int) -> bytes:
    span: Span = piece.span
    assert 0 <= offset and offset + size <= span.size_bytes
    return piece.source.read_at(span.offset + offset, size)
