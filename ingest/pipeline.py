"""The ingest of one model's files: threads read, encode, write and measure; the caller's thread reads the catalog."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from organs.ingest.dissect import DissectedFile, TensorCount
from organs.ingest.hashing import (
    HELD_CHUNKS_MAX,
    WAIT_SECONDS,
    BufferPool,
    FilePass,
    HashedPiece,
    Piece,
    RunCancelled,
    Stages,
    hash_literal,
)
from organs.ingest.writing import PieceWriter, is_intact
from organs.registry.anatomy import Slot, place_of
from organs.registry.catalog.queries.blobs import KnownBlob, blobs_by_digest
from organs.registry.catalog.queries.organs import measured_organs
from organs.registry.catalog.records import OrganKey
from organs.registry.catalog.register.organs import (
    lease_blobs,
    mark_corrupt,
    record_blobs,
    record_stacks,
    shape_text,
)
from organs.registry.catalog.vocabulary import STACK_CODEC
from organs.registry.digest import Digest
from organs.registry.errors import OrganError
from organs.registry.experts import expert_shape
from organs.registry.gguf import TensorInfo
from organs.registry.local import LocalRegistry
from organs.registry.measure import MEASURED_TOGETHER, Measurable, Measurement, measure_together, read_fingerprint
from organs.registry.progress import Progress
from organs.registry.references import ParentSearch, probe_places, search_parents
from organs.registry.relatives.declared import Identity, declared_parents, models_meant
from organs.registry.similarity import ComparableOrgan
from organs.registry.store import StoredBlob
from organs.registry.store.codec import BYTES_CODEC, codec_for

if TYPE_CHECKING:
    from organs.ingest.contributions.inspection import Inspection

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
CHUNKS_MAX = 2 * WORKERS + 2
"""Limit of chunks that wait for a worker or for the chunks before them."""

BATCH_BYTES = 64 * 1024 * 1024
"""Rows are committed after this many plain bytes. A kill loses at most one batch: half a second of work."""
BATCH_BLOBS = 256
ADMITTED_MIN = min(12, 3 * WORKERS)
"""While fewer tasks are pending, hashed pieces are looked up in the catalog at once, and otherwise together."""
LOOKUP_MAX = 16
"""The most hashed pieces that wait for the others of their query."""
IDLE_COMMIT_SECONDS = 60.0
"""When nothing has happened for so long, the rows of stored blobs are committed."""
PARENTS_MAX = 4
"""Declared parents whose organs may become parents of the new ones."""


@dataclass(frozen=True, slots=True)
class FileDigests:
    """The SHA-256 of a file and of its parts."""

    file: Digest
    header: Digest
    """Of the header without padding."""
    literal: Digest
    """Of the bytes that are stored unchanged (`DissectedFile.literal_bytes`)."""
    pieces: dict[int, Digest]
    """Of the tensors and the metadata arrays, by offset."""


@dataclass(slots=True)
class Gathered:
    """The results of a run, for the registration."""

    files: list[FileDigests] = field(default_factory=list)
    """In the order of the files."""
    measurements: dict[OrganKey, Measurement] = field(default_factory=dict)
    stacks: dict[Digest, tuple[Digest, ...]] = field(default_factory=dict)
    """The digests of the experts in each stack, by the digest of the stack."""
    experts: set[OrganKey] = field(default_factory=set)
    """The experts that were measured in this run."""
    nonfinite: dict[OrganKey, int] = field(default_factory=dict)
    """Number of NaN or infinite values by tensor or expert."""
    new_blobs: int = 0
    new_bytes: int = 0
    stored_bytes: int = 0
    known_bytes: int = 0
    healed_blobs: int = 0
    """New blobs that replace damaged ones in the store."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of `Threads.check`."""

    hashed: HashedPiece
    row: KnownBlob
    is_intact: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of `Threads.measure`."""

    hashed: HashedPiece
    measurement: Measurement


Event = HashedPiece | FileDigests | Checked | Measured | StoredBlob | BaseException
"""A result of a thread: a hashed piece, a file that was read, a compared piece, a measured tensor, a durable blob, or
the error that ended the thread."""


class Threads:
    """The threads of one ingest, which never use the catalog. After `stop` none runs.

    Each result becomes an event, which the coordinator takes.
    """

    def __init__(
        self, registry: LocalRegistry, stages: Stages, progress: Progress, measurer: Inspection | None, buffers: int
    ) -> None:
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._store = registry.blobs
        self._stages = stages
        self._progress = progress
        self._measurer = measurer
        self.is_local = measurer is None
        """Whether this process measures."""
        self._cancelled = threading.Event()
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="ingest")
        self._syncers = ThreadPoolExecutor(SYNCERS, thread_name_prefix="sync")
        # Threads that wait for another process must not occupy the workers.
        self._measurers = self._workers if measurer is None else ThreadPoolExecutor(measurer.threads, "measure")
        self._chunk_slots = threading.Semaphore(CHUNKS_MAX)
        self._writer_slots = threading.Semaphore(WRITERS_MAX)
        self._piece_slots = threading.Semaphore(PIECES_AHEAD)
        self._pool = BufferPool(buffers, self._cancelled)
        self._to_measure: deque[tuple[HashedPiece, Measurable]] = deque()
        self._to_store: queue.SimpleQueue[PieceWriter | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self, files: Sequence[DissectedFile]) -> None:
        """Read and hash `files` in order: an event for each piece, and one for each file after its pieces."""
        self._threads = [
            threading.Thread(target=self._read, args=(files,), name="reader", daemon=True),
            threading.Thread(target=self._feed, name="feeder", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def piece_done(self) -> None:
        """Note that a piece was processed, so that the reader can continue."""
        self._piece_slots.release()

    def store(self, writer: PieceWriter) -> None:
        """Encode, write and sync a piece."""
        self._to_store.put(writer)

    def check(self, hashed: HashedPiece, row: KnownBlob) -> None:
        """Compare a piece with the stored blob of `row`."""

        def check() -> None:
            self.events.put(Checked(hashed, row, is_intact(self._store, row, hashed, self._stages)))

        self._submit(self._workers, check)

    def measure(self, hashed: HashedPiece, tensor: TensorInfo) -> None:
        """Measure a tensor whose chunks are held."""
        self._to_measure.append((hashed, Measurable(hashed.read, tensor.shape, tensor.dtype)))
        self._submit(self._measurers, self._measure_waiting)

    def _measure_waiting(self) -> None:
        """Measure the tensors that wait, at most as many as are measured together; perhaps another thread took all."""
        waiting: list[tuple[HashedPiece, Measurable]] = []
        together = MEASURED_TOGETHER if self.is_local else 1
        with suppress(IndexError):
            while len(waiting) < together and not any(tensor.is_stack for _, tensor in waiting):
                waiting.append(self._to_measure.popleft())
        with self._stages.timed("measure"):
            tensors = [tensor for _, tensor in waiting]
            if self._measurer is None:
                measurements = measure_together(tensors)
            else:
                measurements = [self._measurer.measure(one.read, one.shape, one.dtype) for one in tensors]
        for (hashed, _), measurement in zip(waiting, measurements, strict=True):
            hashed.release()
            self.events.put(Measured(hashed, measurement))

    def stop(self, *, cancel: bool) -> None:
        """Wait for all threads; with `cancel`, cancel them first."""
        if cancel:
            self._cancelled.set()
            if self._measurer is not None:
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
        def emit(digests: dict[int, Digest], hashed: HashedPiece) -> None:
            self._wait_for(self._piece_slots)
            self.events.put(hashed)
            if not hashed.piece.is_expert:
                digests[hashed.piece.span.offset] = hashed.digest

        try:
            for file in files:
                digests: dict[int, Digest] = {}
                file_pass = FilePass(file, self._pool, self._stages, self._cancelled)
                whole, header = file_pass.run(_pieces(file), partial(emit, digests))
                literal = hash_literal(file)
                emit({}, literal)
                self.events.put(FileDigests(whole, header, literal.digest, digests))
        except RunCancelled:
            return
        except BaseException as error:  # noqa: BLE001  # the coordinator raises it
            self.events.put(error)

    def _feed(self) -> None:
        """Give chunks to the workers when a slot is free, so that the coordinator does not wait."""
        try:
            while (writer := self._to_store.get()) is not None:
                finish = partial(self._finish, writer)
                self._wait_for(self._writer_slots)
                if not writer.chunk_count:
                    self._submit(self._syncers, finish)
                for index in range(writer.chunk_count):
                    self._wait_for(self._chunk_slots)
                    self._submit(self._workers, partial(self._store_chunk, writer, index, finish))
        except RunCancelled:
            return
        except BaseException as error:  # noqa: BLE001  # without a feeder the coordinator would wait forever
            self.events.put(error)

    def _wait_for(self, slots: threading.Semaphore) -> None:
        while not slots.acquire(timeout=WAIT_SECONDS):
            if self._cancelled.is_set():
                raise RunCancelled

    def _store_chunk(self, writer: PieceWriter, index: int, finish: Callable[[], None]) -> None:
        if self._cancelled.is_set():
            self._chunk_slots.release()
            return
        try:
            written, is_last = writer.store_chunk(index)
        except BaseException:
            # From now on every chunk fails and frees its own slot, so no thread waits forever.
            self._cancelled.set()
            self._chunk_slots.release()
            raise
        if written:
            self._chunk_slots.release(written)
        self._progress(writer.chunk_size_bytes(index))
        if is_last:
            self._submit(self._syncers, finish)

    def _finish(self, writer: PieceWriter) -> None:
        if self._cancelled.is_set():
            return
        blob = writer.finish()
        self._writer_slots.release()
        self.events.put(blob)

    def _submit(self, pool: ThreadPoolExecutor, task: Callable[[], None]) -> None:
        def fail_with(done: Future[None]) -> None:
            if not done.cancelled() and (error := done.exception()) is not None:
                self.events.put(error)

        pool.submit(task).add_done_callback(fail_with)


def _pieces(file: DissectedFile) -> list[Piece]:
    """Return the metadata arrays and the tensors; before a stack of experts, its experts."""
    pieces = [Piece(file.source, span, BYTES_CODEC, None) for span in file.arrays]
    for tensor in file.header.tensors:
        codec, experts = codec_for(tensor.dtype.name), file.expert_spans(tensor)
        for number, span in enumerate(experts):
            offset = span.offset - file.header.data_offset
            expert = TensorInfo(tensor.name, expert_shape(tensor.shape), tensor.dtype, offset)
            pieces.append(Piece(file.source, span, codec, expert, number))
        pieces.append(Piece(file.source, file.tensor_span(tensor), codec, tensor, experts=len(experts)))
    return pieces


@dataclass(slots=True)
class Pipeline:
    """Stores and measures the pieces of one model's files. It coordinates the threads in that of the caller."""

    registry: LocalRegistry
    ingest_id: int
    files: Sequence[DissectedFile]
    stages: Stages
    progress: Progress
    threads: Threads
    gathered: Gathered = field(default_factory=Gathered)
    parents: ParentSearch | None = None
    writers: dict[Digest, PieceWriter] = field(default_factory=dict)
    seen: set[Digest] = field(default_factory=set)
    damaged: dict[Digest, KnownBlob] = field(default_factory=dict)
    """Damaged blobs in the store, which are replaced when their bytes are stored again."""
    measuring: set[OrganKey] = field(default_factory=set)
    hashed: list[HashedPiece] = field(default_factory=list)
    """Pieces that are looked up in the catalog together."""
    batch: list[StoredBlob] = field(default_factory=list)
    batch_bytes: int = 0
    pending: int = 0
    """Number of tasks whose event was not handled."""
    tensors: TensorCount = field(init=False)

    def __post_init__(self) -> None:
        self.tensors = TensorCount(self.files[0].source.name)

    def run(self) -> Gathered:
        """Store and measure everything; raises the error of the first failing thread. All threads end before."""
        with notified_of_interrupts(lambda: self.threads.events.put(KeyboardInterrupt())):
            try:
                # The threads of the ingest use all processors. BLAS is not limited if another process measures.
                with threadpool_limits(1, "blas") if self.threads.is_local else nullcontext():
                    self.parents = self._search_parents()
                    self.threads.start(self.files)
                    while len(self.gathered.files) < len(self.files) or self.pending:
                        try:
                            self._handle(self.threads.events.get(timeout=IDLE_COMMIT_SECONDS))
                        except queue.Empty:
                            self._commit()
                        else:
                            self._admit_waiting()
                self._commit()
                if self.gathered.stacks:  # their experts have rows by now
                    with self.stages.timed("catalog"), self.registry.catalog.writing() as session:
                        record_stacks(session, self.ingest_id, self.gathered.stacks)
            except BaseException as error:
                self._abandon(keep=isinstance(error, KeyboardInterrupt))
                raise
            self.threads.stop(cancel=False)
            while not self.threads.events.empty():  # Ctrl-C during the last commit
                self._handle(self.threads.events.get())
            return self.gathered

    def _search_parents(self) -> ParentSearch | None:
        """Find organs of similar models, and lease them: new organs may be stored by their difference to them."""
        if not self.registry.settings.references:
            return None
        with self.stages.timed("search parents"):
            probed = _probed_organs(self.files)
            header = self.files[0].header
            title, architecture = (header.text(f"general.{key}") or "" for key in ("name", "architecture"))
            identity = Identity("", title, title, architecture)
            with self.registry.catalog.reading() as session:
                meant = [models_meant(session, identity, parent) for parent in declared_parents(header)[:PARENTS_MAX]]
                parents = search_parents(session, probed, [models[0].id for models in meant if models])
            if not parents.blob_ids:
                return None
            with self.registry.catalog.writing() as session:
                parents = parents.refreshed(session)  # nothing changes between this and the lease
                lease_blobs(session, self.ingest_id, sorted(parents.blob_ids))
            return parents

    def _handle(self, event: Event) -> None:
        """Take the result of a thread; raise it if it is an error."""
        match event:
            case HashedPiece():
                self.hashed.append(event)
                return
            case FileDigests():
                self.gathered.files.append(event)
                return
            case BaseException():
                raise event
        self.pending -= 1
        match event:
            case Measured(hashed, measurement):
                key = organ_key(hashed.digest, hashed.piece.tensor)
                self.gathered.measurements[key] = measurement
                if hashed.piece.is_expert:
                    self.gathered.experts.add(key)
            case Checked(hashed, row, is_row_intact):
                if is_row_intact:
                    self._count_known(hashed)
                else:  # the damaged blob is not set aside yet: if the disk fails, this ingest fails too
                    self.damaged[row.digest] = row
                    self.gathered.healed_blobs += 1
                    self._store(hashed)
            case StoredBlob():
                self.threads.piece_done()
                self.writers.pop(event.digest, None)
                self.gathered.new_blobs += 1
                self.gathered.new_bytes += event.size_bytes
                self.gathered.stored_bytes += event.stored_bytes
                self.batch.append(event)
                self.batch_bytes += event.size_bytes
                if self.batch_bytes >= BATCH_BYTES or len(self.batch) >= BATCH_BLOBS:
                    self._commit()

    def _admit_waiting(self) -> None:
        """Admit the hashed pieces, unless the threads have enough work to wait for more pieces.

        A query of the catalog takes almost the same time for one piece as for many.
        """
        is_read = len(self.gathered.files) == len(self.files)
        if not self.hashed or (self.pending >= ADMITTED_MIN and len(self.hashed) < LOOKUP_MAX and not is_read):
            return
        pieces = list(self.hashed)
        self.hashed.clear()
        keys = [organ_key(hashed.digest, hashed.piece.tensor) for hashed in pieces]
        for hashed, key in zip(pieces, keys, strict=True):
            if hashed.piece.tensor is not None:
                self.gathered.nonfinite[key] = hashed.nonfinite
                if not hashed.piece.is_expert:
                    self.tensors.add(key, hashed.piece.span.size_bytes)
        with self.stages.timed("catalog"), self.registry.catalog.reading() as session:
            rows = blobs_by_digest(session, [hashed.digest for hashed in pieces])
            measured = measured_organs(session, rows.values())
        present = self._lease([row for row in rows.values() if row.state != "corrupt"])
        self.gathered.healed_blobs += sum(row.state == "corrupt" for row in rows.values())
        for hashed, key in zip(pieces, keys, strict=True):
            unmeasured = None if key in measured or key in self.measuring else hashed.piece.tensor
            if unmeasured is not None:
                hashed.hold()
            if hashed.parts:
                self.gathered.stacks[hashed.digest] = hashed.parts
                self.threads.piece_done()
            elif hashed.digest in self.seen:
                self._count_known(hashed)
            else:
                self.seen.add(hashed.digest)
                row = present.get(hashed.digest)
                if row is None or (hashed.piece.is_expert and row.codec == STACK_CODEC):
                    self._store(hashed, None if hashed.digest in rows else self.parents)
                else:
                    self.pending += 1
                    self.threads.check(hashed, row)
            if unmeasured is not None:
                self.measuring.add(key)
                self.pending += 1
                self.threads.measure(hashed, unmeasured)

    def _lease(self, rows: Sequence[KnownBlob]) -> dict[Digest, KnownBlob]:
        """Lease the blobs that still exist: a sweep may have removed some."""
        if not rows:
            return {}
        with self.stages.timed("catalog"), self.registry.catalog.writing() as session:
            rows_by_digest = blobs_by_digest(session, [row.digest for row in rows])
            leased = {digest: row for digest, row in rows_by_digest.items() if row.state != "corrupt"}
            lease_blobs(session, self.ingest_id, [row.id for row in leased.values()])
        return leased

    def _count_known(self, hashed: HashedPiece) -> None:
        hashed.release()
        self.threads.piece_done()
        self.gathered.known_bytes += hashed.piece.span.size_bytes
        self.progress(hashed.piece.span.size_bytes)

    def _store(self, hashed: HashedPiece, parents: ParentSearch | None = None) -> None:
        """Store a piece, alone if it has a row already: the row may have blobs that depend on it."""
        self.pending += 1
        writer = PieceWriter(self.registry.blobs, hashed, self.stages, parents)
        self.writers[hashed.digest] = writer  # before it writes, so that `_abandon` finds it
        self.threads.store(writer)

    def _commit(self) -> None:
        # Cleared before the commit: if its answer is lost, the rows may exist, and `_abandon` must keep their files.
        batch, self.batch, self.batch_bytes = self.batch, [], 0
        with self.stages.timed("catalog"), self.registry.catalog.writing() as session:
            for row in [self.damaged.pop(blob.digest) for blob in batch if blob.digest in self.damaged]:
                mark_corrupt(session, row)
            unused = record_blobs(session, self.ingest_id, batch)
        self._remove(unused)

    def _abandon(self, *, keep: bool) -> None:
        """Stop every thread and remove incomplete blobs. With `keep`, durable blobs are recorded for a later run."""
        self.threads.stop(cancel=True)
        for writer in self.writers.values():
            if writer.stored is None:
                writer.discard()
            else:
                self.batch.append(writer.stored)
        with suppress(OrganError):  # the first error matters more; a sweep removes the remaining files
            if keep:
                self._commit()
            else:
                self._remove([blob.file for blob in self.batch if blob.file is not None])

    def _remove(self, files: Sequence[str]) -> None:
        for file in files:
            self.registry.blobs.backend.remove(file)


def organ_key(digest: Digest, tensor: TensorInfo | None) -> OrganKey:
    """Return the key of the organ with these bytes; an empty one for bytes that are no tensor."""
    return ("", "", "") if tensor is None else (digest, tensor.dtype.name, shape_text(tensor.shape))


def _probed_organs(files: Sequence[DissectedFile]) -> dict[Slot, ComparableOrgan]:
    """Return organs with fingerprints at some places of a model, by which models with similar weights are found."""
    tensors = {place_of(tensor.name).key: (file, tensor) for file in files for tensor in file.header.tensors}
    known = {
        place: ComparableOrgan(place_of(tensor.name).type.value, tensor.shape, tensor.dtype.name, None, place)
        for place, (_, tensor) in tensors.items()
    }
    probed = {}
    for place in probe_places(known):
        file, tensor = tensors[place]
        read = partial(file.read_tensor, tensor)
        probed[place] = replace(known[place], fingerprint=read_fingerprint(read, tensor.shape, tensor.dtype))
    return probed


@contextmanager
def notified_of_interrupts(notify: Callable[[], None]) -> Iterator[None]:
    """Call `notify` at the first Ctrl-C inside the block; it must be safe in a signal handler.

    Do nothing outside of the main thread, or if another handler is installed.
    """
    is_main_thread = threading.current_thread() is threading.main_thread()
    if not is_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def handle_first(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        notify()

    signal.signal(signal.SIGINT, handle_first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
