"""The coordinator of one model's ingest, in the caller's thread: reads the catalog and distributes tasks."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType

from threadpoolctl import threadpool_limits

from organs.ingest.dissect import DissectedFile, TensorCount
from organs.ingest.hashing import FileDigests, HashedPiece, Stages
from organs.ingest.tasks import (
    BUFFERS,
    Checked,
    Event,
    Failed,
    FileDone,
    Hashed,
    LocalMeasurer,
    Measured,
    Measurer,
    PieceWriter,
    Progress,
    Stored,
    Tasks,
)
from organs.registry.anatomy import Slot, place_of
from organs.registry.catalog.queries.organs import (
    BlobRow,
    blobs_by_digest,
    measured_organs,
)
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
from organs.registry.gguf import TensorInfo
from organs.registry.lineage import ComparableOrgan
from organs.registry.local import LocalRegistry
from organs.registry.measure import Measurement, read_fingerprint
from organs.registry.references import ParentSearch, probe_places, search_parents
from organs.registry.relatives.resolve import Identity, declared_parents, models_meant
from organs.registry.store import StoredBlob


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


BATCH_BYTES = 64 * 1024 * 1024
"""Rows are committed after this many plain bytes. A kill loses at most one batch: half a second of work."""
BATCH_BLOBS = 256
ADMITTED_MIN = 12
"""While fewer tasks are pending, hashed pieces are looked up in the catalog at once, and otherwise together."""
LOOKUP_MAX = 16
"""The most hashed pieces that wait for the others of their query."""
HEARTBEAT_SECONDS = 60.0
PARENTS_MAX = 4
"""Declared parents whose organs may become parents of the new ones."""


@dataclass(slots=True)
class Gathered:
    """The results of a run, for the registration."""

    files: dict[int, FileDigests] = field(default_factory=dict)
    digests: dict[tuple[int, int], Digest] = field(default_factory=dict)
    """By file (index) and offset: tensors and metadata arrays."""
    literals: dict[int, Digest] = field(default_factory=dict)
    """By file: the literal bytes."""
    measurements: dict[OrganKey, Measurement] = field(default_factory=dict)
    stacks: dict[Digest, tuple[Digest, ...]] = field(default_factory=dict)
    """The digests of the experts in each stack, by the digest of the stack."""
    experts: set[OrganKey] = field(default_factory=set)
    """The experts that were measured in this run."""
    nonfinite: dict[OrganKey, int] = field(default_factory=dict)
    """Number of NaN or infinite values by tensor."""
    new_blobs: int = 0
    new_bytes: int = 0
    stored_bytes: int = 0
    known_bytes: int = 0
    healed_blobs: int = 0
    """New blobs that replace damaged ones in the store."""


class Pipeline:
    """Stores and measures the pieces of one model's files."""

    def __init__(
        self,
        registry: LocalRegistry,
        ingest_id: int,
        files: Sequence[DissectedFile],
        stages: Stages,
        progress: Progress,
        measurer: Measurer | None = None,
        buffers: int = BUFFERS,
    ) -> None:
        self.gathered = Gathered()
        self._registry = registry
        self._ingest_id = ingest_id
        self._files = files
        self._stages = stages
        self._progress = progress
        self._tasks = Tasks(registry.blobs, stages, progress, measurer or LocalMeasurer(), buffers)
        self._is_local = measurer is None
        self._parents: ParentSearch | None = None
        self._writers: dict[Digest, PieceWriter] = {}
        self._seen: set[Digest] = set()
        self._damaged: dict[Digest, BlobRow] = {}
        """Damaged blobs in the store, which are replaced when their bytes are stored again."""
        self._tensors = TensorCount(files[0].source.name)
        self._measuring: set[OrganKey] = set()
        self._hashed: list[Hashed] = []
        """Pieces that are looked up in the catalog together."""
        self._batch: list[StoredBlob] = []
        self._batch_bytes = 0
        self._pending = 0
        """Number of tasks that have not emitted their event."""

    def run(self) -> Gathered:
        """Run all tasks; raises the error of the first failing thread. All threads have ended on return."""
        with notified_of_interrupts(self._tasks.interrupt):
            return self._run()

    def _run(self) -> Gathered:
        try:
            # The threads of the ingest use all processors. BLAS is not limited if another process measures.
            with threadpool_limits(1, "blas") if self._is_local else nullcontext():
                self._parents = self._search_parents()
                self._tasks.start(self._files)
                while len(self.gathered.files) < len(self._files) or self._pending:
                    self._handle(self._next_event())
                    self._admit_waiting()
            self._commit()
            self._record_stacks()
        except BaseException as error:
            self._abandon(keep=isinstance(error, KeyboardInterrupt))
            raise
        self._tasks.stop(cancel=False)
        while not self._tasks.events.empty():  # Ctrl-C during the last commit
            self._handle(self._tasks.events.get())
        return self.gathered

    def _search_parents(self) -> ParentSearch | None:
        """Find organs of similar models, and lease them: new organs may be stored by their difference to them."""
        if not self._registry.settings.references:
            return None
        with self._stages.timed("search parents"):
            probed = _probed_organs(self._files)
            header = self._files[0].header
            title, architecture = (header.text(f"general.{key}") or "" for key in ("name", "architecture"))
            identity = Identity("", title, title, architecture)
            with self._registry.catalog.reading() as session:
                meant = [models_meant(session, identity, parent) for parent in declared_parents(header)[:PARENTS_MAX]]
                parents = search_parents(session, probed, [models[0].id for models in meant if models])
            if not parents.blob_ids:
                return None
            with self._registry.catalog.writing() as session:
                parents = parents.refreshed(session)  # nothing changes between this and the lease
                lease_blobs(session, self._ingest_id, sorted(parents.blob_ids))
            return parents

    def _next_event(self) -> Event:
        while True:
            try:
                return self._tasks.events.get(timeout=HEARTBEAT_SECONDS)
            except queue.Empty:
                self._commit()

    def _handle(self, event: Event) -> None:
        match event:
            case Failed():
                raise event.error
            case FileDone():
                self.gathered.files[event.file_index] = event.digests
            case Hashed():
                self._hashed.append(event)
            case Checked():
                self._pending -= 1
                self._after_check(event)
            case Stored():
                self._pending -= 1
                self._after_store(event.blob)
            case Measured():
                self._pending -= 1
                key = _organ_key(event.hashed)
                self.gathered.measurements[key] = event.measurement
                if event.hashed.piece.is_expert:
                    self.gathered.experts.add(key)

    def _admit_waiting(self) -> None:
        """Admit the hashed pieces, unless the threads have enough work to wait for more pieces.

        A query of the catalog takes almost the same time for one piece as for many.
        """
        is_read = len(self.gathered.files) == len(self._files)
        if self._hashed and (self._pending < ADMITTED_MIN or len(self._hashed) >= LOOKUP_MAX or is_read):
            hashed, self._hashed = self._hashed, []
            self._admit(hashed)

    def _admit(self, events: Sequence[Hashed]) -> None:
        for event in events:
            self._record_digest(event)
        pieces = [event.hashed for event in events]
        with self._stages.timed("catalog"), self._registry.catalog.reading() as session:
            rows = blobs_by_digest(session, [hashed.digest for hashed in pieces])
            measured = measured_organs(session, rows.values())
        present = self._lease([row for row in rows.values() if row.state != "corrupt"])
        self.gathered.healed_blobs += sum(row.state == "corrupt" for row in rows.values())
        for hashed in pieces:
            key = _organ_key(hashed)
            must_measure = hashed.piece.tensor is not None and key not in measured and key not in self._measuring
            if must_measure:
                hashed.hold()
            if hashed.parts:
                self.gathered.stacks[hashed.digest] = hashed.parts
                self._tasks.piece_done()
            elif hashed.digest in self._seen:
                self._count_known(hashed)
            else:
                self._seen.add(hashed.digest)
                self._check_or_store(hashed, present.get(hashed.digest), is_recorded=hashed.digest in rows)
            if must_measure:
                self._measuring.add(key)
                self._pending += 1
                self._tasks.measure(hashed)

    def _record_digest(self, event: Hashed) -> None:
        piece, digest = event.hashed.piece, event.hashed.digest
        if piece.tensor is not None and not piece.is_expert:
            self._tensors.add(_organ_key(event.hashed), piece.span.size_bytes)
        if piece.is_expert:
            self.gathered.nonfinite[_organ_key(event.hashed)] = event.hashed.nonfinite
        elif piece.source is self._files[event.file_index].source:
            self.gathered.digests[event.file_index, piece.span.offset] = digest
            if piece.tensor is not None:
                self.gathered.nonfinite[_organ_key(event.hashed)] = event.hashed.nonfinite
        else:
            self.gathered.literals[event.file_index] = digest

    def _lease(self, rows: Sequence[BlobRow]) -> dict[Digest, BlobRow]:
        """Lease the blobs that still exist: a sweep may have removed some."""
        if not rows:
            return {}
        with self._stages.timed("catalog"), self._registry.catalog.writing() as session:
            rows_by_digest = blobs_by_digest(session, [row.digest for row in rows])
            leased = {digest: row for digest, row in rows_by_digest.items() if row.state != "corrupt"}
            lease_blobs(session, self._ingest_id, [row.id for row in leased.values()])
        return leased

    def _check_or_store(self, hashed: HashedPiece, row: BlobRow | None, *, is_recorded: bool) -> None:
        if row is None or (hashed.piece.is_expert and row.codec == STACK_CODEC):
            self._store(hashed, None if is_recorded else self._parents)
        else:
            self._pending += 1
            self._tasks.check(hashed, row)

    def _after_check(self, event: Checked) -> None:
        if event.intact:
            self._count_known(event.hashed)
            return
        # The damaged blob is not set aside yet: if the disk fails, this ingest fails too.
        self._damaged[event.row.digest] = event.row
        self.gathered.healed_blobs += 1
        self._store(event.hashed)

    def _count_known(self, hashed: HashedPiece) -> None:
        hashed.release()
        self._tasks.piece_done()
        self.gathered.known_bytes += hashed.piece.span.size_bytes
        self._progress(hashed.piece.span.size_bytes)

    def _store(self, hashed: HashedPiece, parents: ParentSearch | None = None) -> None:
        """Store a piece, alone if it has a row already: the row may have blobs that depend on it."""
        self._pending += 1
        writer = PieceWriter(self._registry.blobs, hashed, self._stages, parents)
        self._writers[hashed.digest] = writer  # before it writes, so that `_abandon` finds it
        self._tasks.store(writer)

    def _after_store(self, blob: StoredBlob) -> None:
        self._tasks.piece_done()
        self._writers.pop(blob.digest, None)
        self.gathered.new_blobs += 1
        self.gathered.new_bytes += blob.size_bytes
        self.gathered.stored_bytes += blob.stored_bytes
        self._batch.append(blob)
        self._batch_bytes += blob.size_bytes
        if self._batch_bytes >= BATCH_BYTES or len(self._batch) >= BATCH_BLOBS:
            self._commit()

    def _commit(self) -> None:
        # Cleared before the commit: if its answer is lost, the rows may exist, and `_abandon` must keep their files.
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        with self._stages.timed("catalog"), self._registry.catalog.writing() as session:
            for row in [self._damaged.pop(blob.digest) for blob in batch if blob.digest in self._damaged]:
                mark_corrupt(session, row)
            unused = record_blobs(session, self._ingest_id, batch)
        self._remove(unused)

    def _record_stacks(self) -> None:
        """Write the rows of the stacks. Their experts have rows by now."""
        if not self.gathered.stacks:
            return
        with self._stages.timed("catalog"), self._registry.catalog.writing() as session:
            record_stacks(session, self._ingest_id, self.gathered.stacks)

    def _abandon(self, *, keep: bool) -> None:
        """Stop every thread and remove incomplete blobs. With `keep`, durable blobs are recorded for a later run."""
        self._tasks.stop(cancel=True)
        while not self._tasks.events.empty():
            event = self._tasks.events.get()
            if isinstance(event, Stored):
                self._writers.pop(event.blob.digest, None)
                self._batch.append(event.blob)
        for writer in self._writers.values():
            writer.discard()
        with suppress(OrganError):  # the first error matters more; a sweep removes the remaining files
            if keep:
                self._commit()
            else:
                self._remove([blob.file for blob in self._batch if blob.file is not None])

    def _remove(self, files: Sequence[str]) -> None:
        folder = self._registry.blobs.backend
        for file in files:
            folder.remove(file)


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
        read = partial(_read_tensor, file, tensor)
        probed[place] = replace(known[place], fingerprint=read_fingerprint(read, tensor.shape, tensor.dtype))
    return probed


def _read_tensor(file: DissectedFile, tensor: TensorInfo, offset: int, size: int) -> bytes:
    return file.source.read_at(file.tensor_span(tensor).offset + offset, size)


def _organ_key(hashed: HashedPiece) -> OrganKey:
    tensor = hashed.piece.tensor
    return ("", "", "") if tensor is None else (hashed.digest, tensor.dtype.name, shape_text(tensor.shape))
