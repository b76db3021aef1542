"""Assembly of files from blobs: the plan of a file, the stream of its bytes, and writing it to the disk.

A plan refers to blobs and never has their bytes. Files are complete models, models split into shards, models merged
from shards, and single organs as NumPy arrays.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from threading import Lock
from time import thread_time

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.blobs import KnownBlob, blobs_by_id
from organs.registry.catalog.queries.model_contents import FileSegment, files_of, parts_of, tensor_blobs_of, tensors_of
from organs.registry.catalog.tables import ModelFileRow, ModelRow
from organs.registry.digest import Digest
from organs.registry.errors import CorruptBlob, FaultyParent, MissingBlob, NotAssemblable, UnsupportedDType
from organs.registry.gguf import DType, Header, HeaderSource, TensorSpec, encode_header, padded, read_header
from organs.registry.gguf.quants import can_dequantize, dequantize, whole_blocks
from organs.registry.gguf.split import cut, has_left_over_keys, whole_metadata
from organs.registry.output_files import NamedFile, OutputFiles, SourceModel
from organs.registry.progress import Progress, no_progress
from organs.registry.store import BlobStore, PlainChunk, PlainReader
from organs.registry.store.blobs import blaming_parent
from organs.registry.store.codec import CHUNK_TARGET_BYTES
from organs.registry.store.files import PUBLIC_FILE, Files, placed
from organs.registry.store.memory import own_memory


@dataclass(frozen=True, slots=True)
class PlannedSlice:
    """A part of a file at `offset_bytes`: `size_bytes` plain bytes of a blob from `blob_offset_bytes` on."""

    offset_bytes: int
    size_bytes: int
    blob: KnownBlob
    blob_offset_bytes: int
    label: str = "header"
    """The name of the tensor, or `header`, for error messages."""


@dataclass(frozen=True, slots=True)
class FilePlan:
    """The plan of a file: first `literal`, then `slices` in the order of their offsets, zeros everywhere else."""

    name: str
    size_bytes: int
    sha256: Digest | None
    """SHA-256 of the bytes; None if unknown."""
    literal: bytes
    slices: tuple[PlannedSlice, ...]


def plan_model(session: Session, model: ModelRow) -> list[FilePlan]:
    """Return plans of the original files of `model`. Raises NotAssemblable if loaders cannot open it, MissingBlob."""
    check_assemblable(model)
    return [plan_file(session, file) for file in files_of(session, model.id)]


def plan_file(session: Session, file: ModelFileRow, begin_bytes: int = 0, end_bytes: int | None = None) -> FilePlan:
    """Return the plan of an original file, or of its bytes from `begin_bytes` to `end_bytes` as a separate file.

    Only the blobs with these bytes are looked up. Raises MissingBlob.
    """
    end = file.size_bytes if end_bytes is None else end_bytes
    segments = [*parts_of(session, file.id), *tensors_of(session, file.id)]
    needed = [
        part for part in segments if part.offset_bytes < end and part.offset_bytes + part.size_bytes > begin_bytes
    ]
    slices = resolve(session, sorted(needed, key=lambda segment: segment.offset_bytes))
    return clipped(FilePlan(file.name, file.size_bytes, Digest(file.sha256), b"", slices), begin_bytes, end)


def clipped(plan: FilePlan, begin_bytes: int, end_bytes: int) -> FilePlan:
    """Return the plan of a separate file with the bytes of `plan` from `begin_bytes` to `end_bytes`."""
    assert 0 <= begin_bytes <= end_bytes <= plan.size_bytes
    if (begin_bytes, end_bytes) == (0, plan.size_bytes):
        return plan
    slices = []
    for piece in plan.slices:
        first = max(begin_bytes, piece.offset_bytes)
        last = min(end_bytes, piece.offset_bytes + piece.size_bytes)
        if first < last:
            start = piece.blob_offset_bytes + first - piece.offset_bytes
            cut = replace(piece, offset_bytes=first - begin_bytes, size_bytes=last - first, blob_offset_bytes=start)
            slices.append(cut)
    return FilePlan(plan.name, end_bytes - begin_bytes, None, plan.literal[begin_bytes:end_bytes], tuple(slices))


def plan_digest(plan: FilePlan) -> Digest:
    """Return the digest of a plan: two plans with the same digest describe the same bytes."""
    digest = hashlib.sha256(f"{plan.size_bytes} {len(plan.literal)}\n".encode())
    digest.update(plan.literal)
    for piece in plan.slices:
        numbers = f"{piece.offset_bytes} {piece.size_bytes} {piece.blob_offset_bytes}"
        digest.update(f"{piece.blob.digest} {numbers}\n".encode())
    return Digest(digest.hexdigest())


def check_assemblable(model: ModelRow) -> None:
    """Raise NotAssemblable if loaders cannot open this model."""
    reasons = model.unassemblable
    if reasons:
        raise NotAssemblable(f"{model.namespace}/{model.name}", reasons)


def resolve(session: Session, segments: Sequence[FileSegment]) -> tuple[PlannedSlice, ...]:
    """Return `segments` with the rows of their blobs, without empty segments. Raises MissingBlob for a missing row.

    Blobs that were set aside are included: they are checked again when they are read.
    """
    blobs = blobs_by_id(session, [segment.blob_id for segment in segments])
    slices: list[PlannedSlice] = []
    for segment in segments:
        blob = blobs.get(segment.blob_id)
        if blob is None:
            raise MissingBlob(f"blob {segment.blob_id} has no row any more")
        if segment.size_bytes:
            offset, begin = segment.offset_bytes, segment.blob_offset_bytes
            slices += slices_of(blob, offset, segment.content, begin, segment.size_bytes)
    return tuple(slices)


def slices_of(
    blob: KnownBlob, offset_bytes: int, label: str, blob_offset_bytes: int = 0, size_bytes: int | None = None
) -> Iterator[PlannedSlice]:
    """Yield the slices at `offset_bytes` with bytes of a blob, by default all; those of a stack come from its parts."""
    size = blob.size_bytes - blob_offset_bytes if size_bytes is None else size_bytes
    if not blob.parts:
        yield PlannedSlice(offset_bytes, size, blob, blob_offset_bytes, label)
        return
    begin = 0
    for number, part in enumerate(blob.parts):
        first = max(begin, blob_offset_bytes)
        last = min(begin + part.size_bytes, blob_offset_bytes + size)
        if first < last:
            place = offset_bytes + first - blob_offset_bytes
            yield PlannedSlice(place, last - first, part, first - begin, f"{label}, expert {number}")
        begin += part.size_bytes


@contextmanager
def naming(name: str, digest: Digest) -> Iterator[None]:
    """Add the name of the tensor to a CorruptBlob or MissingBlob that the `with` block raises for the blob `digest`."""
    try:
        yield
    except FaultyParent as error:
        raise FaultyParent(f"{name} ({digest[:12]})", error.parent, error.fault) from error
    except CorruptBlob as error:
        raise CorruptBlob(f"of {name} ({digest[:12]})", error.reason) from error
    except MissingBlob as error:
        raise MissingBlob(f"{name} ({digest[:12]}) is missing from the store") from error


def check_readable(store: BlobStore, blob: KnownBlob, name: str) -> None:
    """Check a blob and its parents that were set aside again; others are not read. Raises CorruptBlob, MissingBlob."""
    with naming(name, blob.digest):
        for row in blob.lineage:
            if row.is_set_aside:
                with nullcontext() if row is blob else blaming_parent(blob.digest, row.digest):
                    store.open(row).close()


@dataclass(frozen=True, slots=True)
class ReadHeader:
    """The header of one file of a model, and its source."""

    file: ModelFileRow
    source: HeaderSource
    header: Header


def plan_merged(session: Session, store: BlobStore, model: ModelRow, name: str) -> list[FilePlan]:
    """Return the plan of one file `name` with all tensors of `model`, without the keys of a split set.

    For a model with a single file without these keys, return the plan of that file.
    """
    if len(files_of(session, model.id)) == 1 and not has_left_over_keys(first_header(session, store, model).header):
        return plan_model(session, model)
    parsed, tensors, rows = _header_and_tensors(session, store, model)
    header = encode_header(whole_metadata(parsed.source, parsed.header), tensors, parsed.header.alignment)
    return [plan_new_file(name, header, tensors, parsed.header.alignment, [rows[tensor.name] for tensor in tensors])]


def plan_shards(session: Session, store: BlobStore, model: ModelRow, stem: str, shard_bytes: int) -> list[FilePlan]:
    """Return plans of the shards `stem-00001-of-0000N.gguf`, with at most `shard_bytes` bytes of tensors each.

    A tensor above this size gets a shard of its own. Raises NotAssemblable for too many shards.
    """
    parsed, tensors, rows = _header_and_tensors(session, store, model)
    shards = cut(parsed.source, parsed.header, tensors, stem, shard_bytes)
    if shards is None:
        return plan_merged(session, store, model, f"{stem}.gguf")
    plans = []
    for shard in shards:
        blobs = [rows[tensor.name] for tensor in shard.tensors]
        plans.append(plan_new_file(shard.name, shard.header, shard.tensors, parsed.header.alignment, blobs))
    return plans


def first_header(session: Session, store: BlobStore, model: ModelRow) -> ReadHeader:
    """Return the header of a model's first file, which has all metadata. Raises CorruptBlob, MissingBlob."""
    return stored_header(session, store, files_of(session, model.id)[0])


def stored_header(session: Session, store: BlobStore, file: ModelFileRow) -> ReadHeader:
    """Return the header of a stored file, rebuilt from its parts. Raises CorruptBlob, MissingBlob."""
    with FileStream(store, plan_file(session, file, 0, file.header_bytes)) as stream:
        source = HeaderSource(b"".join(map(bytes, stream)), file.size_bytes, file.name)
    header = read_header(source)
    if header.end != file.header_bytes:
        raise CorruptBlob(file.name, f"its header ends at byte {header.end}, but {file.header_bytes} is recorded")
    return ReadHeader(file, source, header)


def stored_digest(store: BlobStore, plan: FilePlan, progress: Progress = no_progress) -> Digest:
    """Return the SHA-256 of a file by reading all its stored bytes; nothing is written.

    Raises CorruptBlob, MissingBlob.
    """
    digest = hashlib.sha256()
    with FileStream(store, plan) as stream:
        for view in stream:
            digest.update(view)
            progress(len(view))
    return Digest(digest.hexdigest())


def prove_file(store: BlobStore, plan: FilePlan) -> None:
    """Compare the SHA-256 of the stored bytes of a file with that of the file. Raises CorruptBlob, MissingBlob."""
    actual = stored_digest(store, plan)
    if actual != plan.sha256:
        raise CorruptBlob(plan.name, f"its stored bytes have the SHA-256 {actual}, not {plan.sha256}")


def plan_new_file(
    name: str, header: bytes, tensors: Sequence[TensorSpec], alignment: int, blobs: Sequence[KnownBlob]
) -> FilePlan:
    """Return the plan of a file: `header` with its padding, then `tensors` with the bytes of `blobs`."""
    slices: list[PlannedSlice] = []
    offset = len(header)
    for tensor, blob in zip(tensors, blobs, strict=True):
        slices += slices_of(blob, offset, tensor.name)
        offset += padded(tensor.size_bytes, alignment)
    return FilePlan(name, offset, None, header, tuple(slices))


def _header_and_tensors(
    session: Session, store: BlobStore, model: ModelRow
) -> tuple[ReadHeader, list[TensorSpec], dict[str, KnownBlob]]:
    """Return the first file's header, the tensors of all files in order, and the blobs by the names of the tensors."""
    check_assemblable(model)
    headers = [stored_header(session, store, file) for file in files_of(session, model.id)]
    if headers[0].header.is_big_endian:
        reason = "its numbers are big-endian, so only its original files can be written"
        raise NotAssemblable(f"{model.namespace}/{model.name}", [reason])
    tensors = [
        TensorSpec(tensor.name, tensor.shape, tensor.dtype) for read in headers for tensor in read.header.tensors
    ]
    ids = tensor_blobs_of(session, model.id)
    rows = blobs_by_id(session, ids.values())
    return headers[0], tensors, {name: rows[blob_id] for name, blob_id in ids.items()}


VALUE_BYTES = 4
_MAGIC = b"\x93NUMPY\x01\x00"
_ALIGNMENT = 64
"""Alignment of the values in bytes, so that the file can be mapped into memory."""


@dataclass(frozen=True, slots=True)
class NpyPlan:
    """The plan of a NumPy file: `head`, then the values of the organ in `blob` as float32."""

    name: str
    """The name of the organ, for error messages."""
    head: bytes
    blob: KnownBlob
    dtype: DType
    elements: int

    @property
    def size_bytes(self) -> int:
        return len(self.head) + VALUE_BYTES * self.elements


def plan_npy(name: str, blob: KnownBlob, dtype: DType, shape: tuple[int, ...]) -> NpyPlan:
    """Return the plan of the NumPy file of an organ; `shape` has the row length first. Raises UnsupportedDType."""
    if not can_dequantize(dtype):
        raise UnsupportedDType(f"values of {dtype.name} cannot be decoded: download the tensor as .raw or .bin")
    elements = blob.size_bytes // dtype.block_bytes * dtype.block_elements
    return NpyPlan(name, npy_head(shape), blob, dtype, elements)


def npy_head(shape: tuple[int, ...]) -> bytes:
    """Return the NumPy header for an organ of `shape`, row length first."""
    lengths = ", ".join(str(length) for length in reversed(shape))
    dimensions = f"({lengths},)" if len(shape) == 1 else f"({lengths})"
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {dimensions}, }}"
    front = len(_MAGIC) + 2
    padding = -(front + len(text) + 1) % _ALIGNMENT
    line = (text + " " * padding + "\n").encode("ascii")
    return _MAGIC + struct.pack("<H", len(line)) + line


FIRST_BYTES = 1 << 20
"""The most bytes that a stream on a shared pool decodes before its reader reads the first bytes."""
FIRST_TASKS = 2
"""And the most tasks, because it must open a blob for each of them."""
SHARED_TASKS = 4
_ZEROS = memoryview(bytes(1 << 16))


@dataclass(frozen=True, slots=True)
class _Task:
    """The bytes `begin` to `end` of consecutive chunks, which are written at `offset` of the file."""

    offset: int
    piece: PlannedSlice
    reader: PlainReader
    chunks: Sequence[PlainChunk]
    begin: int
    end: int
    last_of_reader: bool

    @property
    def plain_size_bytes(self) -> int:
        """The bytes of all chunks together."""
        return sum(chunk.plain_size_bytes for chunk in self.chunks)


class _Ring:
    """Memory that is taken in pieces and given back in the same order. Not safe for threads."""

    def __init__(self, size_bytes: int) -> None:
        self._memory = memoryview(own_memory(size_bytes))
        self._taken: deque[tuple[int, int]] = deque()

    def take(self, size: int) -> memoryview | None:
        """Return `size` bytes, None if so many are not free in one piece."""
        begin, end = 0, len(self._memory)
        if self._taken:
            (first, _), (last, begin) = self._taken[0], self._taken[-1]
            if last < first:
                end = first
            elif begin + size > end:
                begin, end = 0, first
        if begin + size > end:
            return None
        self._taken.append((begin, begin + size))
        return self._memory[begin : begin + size]

    def give_back(self) -> None:
        """Free the piece that was taken first."""
        self._taken.popleft()


class FileStream:
    """An iterator over the bytes of `plan` in order; a view is valid until the next view is read. A context manager.

    Entering the context checks blobs that were set aside again. It raises CorruptBlob or MissingBlob for the first bad
    blob, before any byte is returned, and StoreUnreachable if the blobs are on a server that does not answer.

    Iterating raises CorruptBlob or MissingBlob for the first bad blob; `faults` then has this blob and other bad blobs
    that were read ahead.

    With a `pool` that many streams share, a stream has no threads of its own, and memory for two chunks of the largest
    size or SHARED_TASKS smaller ones, which it decodes ahead of its reader. Before the first read it decodes only
    FIRST_BYTES, because many clients never read more.
    """

    def __init__(
        self, store: BlobStore, plan: FilePlan, workers: int | None = None, pool: ThreadPoolExecutor | None = None
    ) -> None:
        self.faults: list[KnownBlob] = []
        self._decoding_seconds = 0.0
        self._decoded_bytes = 0
        self._counting = Lock()
        self._store = store
        self._plan = plan
        threads = workers or max(2, os.cpu_count() or 2)
        self._pool = pool or ThreadPoolExecutor(threads, thread_name_prefix="assemble")
        self._is_shared = pool is not None
        self._ahead_max = SHARED_TASKS if self._is_shared else 2 * threads + 1
        self._ring = _Ring((2 if self._is_shared else self._ahead_max) * CHUNK_TARGET_BYTES)
        self._ahead: deque[tuple[_Task, Future[memoryview]]] = deque()
        self._open: set[PlainReader] = set()

    def __enter__(self) -> FileStream:
        for piece in self._plan.slices:
            check_readable(self._store, piece.blob, piece.label)
        if self._store.backend.is_remote:
            stored = next((piece.blob for piece in self._plan.slices if piece.blob.file is not None), None)
            if stored is not None:
                self._store.reader(stored).close()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shared:
            wait([future for _, future in self._ahead if not future.cancel()])
        else:
            self._pool.shutdown(cancel_futures=True)
        for reader in self._open:
            reader.close()

    def __iter__(self) -> Iterator[memoryview]:
        position = len(self._plan.literal)
        if position:
            yield memoryview(self._plan.literal)
        for offset, view in self._decoded():
            yield from _zeros(offset - position)
            yield view
            position = offset + len(view)
        yield from _zeros(self._plan.size_bytes - position)

    def wasted_seconds(self, sent_bytes: int) -> float:
        """Return the processor time that was used for decoded bytes other than the `sent_bytes`.

        A chunk is decoded as a whole, and its parents too if it is stored by its difference, also for one byte.
        """
        if sent_bytes >= self._decoded_bytes:
            return 0.0
        return self._decoding_seconds * (1 - sent_bytes / self._decoded_bytes)

    def _decoded(self) -> Iterator[tuple[int, memoryview]]:
        ahead = self._ahead
        tasks = self._tasks()
        task: _Task | None = None
        has_more_tasks, is_read, planned_bytes = True, not self._is_shared, 0
        while has_more_tasks or ahead:
            while has_more_tasks and len(ahead) < (self._ahead_max if is_read else FIRST_TASKS):
                if not is_read and planned_bytes >= FIRST_BYTES:
                    break
                task = task or next(tasks, None)
                if task is None:
                    has_more_tasks = False
                    break
                room = self._ring.take(task.plain_size_bytes)
                if room is None:
                    break
                planned_bytes += task.end - task.begin
                ahead.append((task, self._pool.submit(self._decode, task, room)))
                task = None
            if not ahead:
                assert task is None
                break
            done, future = ahead[0]
            view = future.result()
            yield done.offset, view
            is_read = True
            ahead.popleft()
            self._ring.give_back()
            if done.last_of_reader:
                self._open.discard(done.reader)
                done.reader.close()

    def _tasks(self) -> Iterator[_Task]:
        for piece in self._plan.slices:
            with self._naming(piece):
                reader = self._store.open(piece.blob)
            self._open.add(reader)
            first, end = piece.blob_offset_bytes, piece.blob_offset_bytes + piece.size_bytes
            needed = [
                (number, chunk)
                for number, chunk in enumerate(reader.chunks)
                if chunk.plain_offset_bytes < end and chunk.plain_offset_bytes + chunk.plain_size_bytes > first
            ]
            for _, group in groupby(needed, key=lambda numbered: numbered[0] // reader.chunks_together):
                chunks = [chunk for _, chunk in group]
                place, last = chunks[0].plain_offset_bytes, chunks[-1]
                begin = max(0, first - place)
                size = min(last.plain_offset_bytes + last.plain_size_bytes, end) - place
                offset = piece.offset_bytes + place + begin - first
                yield _Task(offset, piece, reader, chunks, begin, size, last is needed[-1][1])

    def _decode(self, task: _Task, room: memoryview) -> memoryview:
        begin, began = 0, thread_time()
        with self._naming(task.piece):
            for chunk in task.chunks:
                task.reader.read_chunk(chunk, room[begin : begin + chunk.plain_size_bytes])
                begin += chunk.plain_size_bytes
        with self._counting:
            self._decoding_seconds += thread_time() - began
            self._decoded_bytes += begin
        return room[task.begin : task.end]

    @contextmanager
    def _naming(self, piece: PlannedSlice) -> Iterator[None]:
        """Add the faulty blob to `faults`, and the label of `piece` to the error, for a CorruptBlob or MissingBlob."""
        with naming(piece.label, piece.blob.digest):
            try:
                yield
            except (CorruptBlob, MissingBlob) as error:
                faulty = error.parent if isinstance(error, FaultyParent) else piece.blob.digest
                self.faults.append(next((row for row in piece.blob.lineage if row.digest == faulty), piece.blob))
                raise


def _zeros(size: int) -> Iterator[memoryview]:
    while size > 0:
        yield _ZEROS[: min(size, len(_ZEROS))]
        size -= len(_ZEROS)


class NpyStream(FileStream):
    """The bytes of `plan` from `begin_bytes` to `end_bytes`. Only the blocks with these bytes are decoded."""

    def __init__(
        self, store: BlobStore, plan: NpyPlan, begin_bytes: int, end_bytes: int, pool: ThreadPoolExecutor | None
    ) -> None:
        assert 0 <= begin_bytes <= end_bytes <= plan.size_bytes
        self._dtype = plan.dtype
        self._head = plan.head[begin_bytes:end_bytes]
        begin = max(0, begin_bytes - len(plan.head))
        end = max(0, end_bytes - len(plan.head))
        block_values_bytes = VALUE_BYTES * plan.dtype.block_elements
        first_block = begin // block_values_bytes
        end_block = max(first_block, -(-end // block_values_bytes))
        self._skipped_bytes = begin - first_block * block_values_bytes
        self._values_bytes = end - begin
        size = (end_block - first_block) * plan.dtype.block_bytes
        begin_bytes = first_block * plan.dtype.block_bytes
        slices = tuple(slices_of(plan.blob, 0, plan.name, begin_bytes, size)) if size else ()
        super().__init__(store, FilePlan(plan.name, size, None, b"", slices), workers=1, pool=pool)

    def wasted_seconds(self, sent_bytes: int) -> float:
        values = sent_bytes // VALUE_BYTES
        return super().wasted_seconds(values * self._dtype.block_bytes // self._dtype.block_elements)

    def __iter__(self) -> Iterator[memoryview]:
        if self._head:
            yield memoryview(self._head)
        skipped, remaining = self._skipped_bytes, self._values_bytes
        for blocks in whole_blocks(super().__iter__(), self._dtype):
            values: NDArray[np.float32] = dequantize(blocks, self._dtype).astype("<f4", copy=False)
            view = values.data.cast("B")[skipped:][:remaining]
            yield view
            remaining -= len(view)
            skipped = 0


def place_file(
    store: BlobStore,
    plan: FilePlan,
    path: Path,
    progress: Progress = no_progress,
    files: Files | None = None,
    *,
    replaces: bool = True,
    mode: int = PUBLIC_FILE,
) -> Digest:
    """Write the file of `plan` to `path` and return its SHA-256. What is there is replaced, or raises StoreError.

    Raises CorruptBlob or MissingBlob for a bad blob, DiskFull, StoreUnwritable; then `path` is unchanged.
    """
    with placed(path, plan.size_bytes, files, progress, mode, replaces=replaces) as file:
        with FileStream(store, plan) as stream:
            for view in stream:
                file.write(view)
        if plan.sha256 not in (None, file.sha256):
            raise CorruptBlob(plan.name, f"its SHA-256 would be {file.sha256}, not {plan.sha256}; nothing was written")
    return file.sha256


class AssembledFiles(OutputFiles):
    """Output files that are assembled from the blobs of a registry."""

    def __init__(self, store: BlobStore, plans: Sequence[FilePlan], model: SourceModel | None = None) -> None:
        super().__init__((NamedFile(plan.name, plan.size_bytes, plan.sha256) for plan in plans), model)
        self._store, self._plans = store, plans

    def place(self, targets: Sequence[Path | None], progress: Progress = no_progress) -> tuple[Digest | None, ...]:
        return tuple(
            plan.sha256 if target is None else place_file(self._store, plan, target, progress)
            for plan, target in zip(self._plans, targets, strict=True)
        )


def plan_organ(blob: KnownBlob) -> FilePlan:
    """Return the plan of a file with the plain bytes of a blob."""
    digest = Digest(blob.digest)
    slices = tuple(slices_of(blob, 0, f"tensor {digest[:12]}")) if blob.size_bytes else ()
    return FilePlan(f"{digest}.raw", blob.size_bytes, digest, b"", slices)
