"""Assemble files from blobs: the plan of a file, the stream of its bytes, and writing it to the disk.

A plan refers to blobs and never has their bytes. Files are whole models, models split into shards or merged from them,
and single organs as NumPy arrays.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.models import Segment, files_of, parts_of, tensor_blobs_of, tensors_of
from organs.registry.catalog.queries.organs import (
    BlobRow,
    blobs_by_id,
)
from organs.registry.catalog.tables import Model, ModelFile
from organs.registry.digest import Digest
from organs.registry.errors import CorruptBlob, MissingBlob, NotAssemblable, UnsupportedDType
from organs.registry.gguf import DType, Header, HeaderSource, TensorSpec, encode_header, padded, read_header
from organs.registry.gguf.quants import can_dequantize, dequantize
from organs.registry.gguf.split import (
    cut,
    whole_metadata,
)
from organs.registry.store import BlobReader, BlobStore
from organs.registry.store.codec import CHUNK_TARGET_BYTES, StoredChunk
from organs.registry.store.files import (
    Files,
    NamedFile,
    OutputFiles,
    SourceModel,
    UnplacedFile,
    placed,
)


@dataclass(frozen=True, slots=True)
class PlannedSlice:
    """`size_bytes` plain bytes of a blob, from `blob_offset_bytes` on, at `offset_bytes` of the file."""

    offset_bytes: int
    size_bytes: int
    blob: BlobRow
    blob_offset_bytes: int
    label: str = "header"
    """The tensor's name, or the header, for errors."""


@dataclass(frozen=True, slots=True)
class FilePlan:
    """A file: `literal` at its beginning, then slices in the order of their offsets, zeros everywhere else."""

    name: str
    size_bytes: int
    sha256: Digest | None
    """SHA-256 of the bytes; None if unknown."""
    literal: bytes
    slices: tuple[PlannedSlice, ...]


def plan_model(session: Session, model: Model) -> list[FilePlan]:
    """Return the original files of `model`; raises NotAssemblable for a model that loaders cannot open, MissingBlob."""
    check_assemblable(model)
    return [plan_file(session, file) for file in files_of(session, model.id)]


def plan_file(session: Session, file: ModelFile, begin_bytes: int = 0, end_bytes: int | None = None) -> FilePlan:
    """Return an original file, or its bytes from `begin_bytes` to `end_bytes` as a separate file.

    Only the blobs of these bytes are looked up. Raises MissingBlob.
    """
    end = file.size_bytes if end_bytes is None else end_bytes
    stored = [*parts_of(session, file.id), *tensors_of(session, file.id)]
    needed = [item for item in stored if item.offset_bytes < end and item.offset_bytes + item.size_bytes > begin_bytes]
    slices = resolve(session, sorted(needed, key=_offset))
    return clipped(FilePlan(file.name, file.size_bytes, Digest(file.sha256), b"", slices), begin_bytes, end)


def clipped(plan: FilePlan, begin_bytes: int, end_bytes: int) -> FilePlan:
    """Return the bytes of `plan` from `begin_bytes` to `end_bytes` as a separate file."""
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
    """Return the digest of a plan: two plans with the same digest make the same file."""
    digest = hashlib.sha256(f"{plan.size_bytes} {len(plan.literal)}\n".encode())
    digest.update(plan.literal)
    for piece in plan.slices:
        place = f"{piece.offset_bytes} {piece.size_bytes} {piece.blob_offset_bytes}"
        digest.update(f"{piece.blob.digest} {place}\n".encode())
    return Digest(digest.hexdigest())


def check_assemblable(model: Model) -> None:
    """Raise NotAssemblable if loaders cannot open this model."""
    reasons = json.loads(model.unassemblable)
    if reasons:
        raise NotAssemblable(f"{model.namespace}/{model.name}", reasons)


def resolve(session: Session, segments: Sequence[Segment]) -> tuple[PlannedSlice, ...]:
    """Return `segments` with the rows of their blobs, without empty ones. Raises MissingBlob for a missing row.

    Quarantined blobs are included: they are checked again when they are read.
    """
    blobs = blobs_by_id(session, [segment.blob_id for segment in segments])
    slices = []
    for segment in segments:
        blob = blobs.get(segment.blob_id)
        if blob is None:
            raise MissingBlob(f"blob {segment.blob_id} has no row any more")
        if segment.size_bytes:
            offset, begin = segment.offset_bytes, segment.blob_offset_bytes
            slices.append(PlannedSlice(offset, segment.size_bytes, blob, begin, segment.content))
    return tuple(slices)


@contextmanager
def naming(name: str, digest: Digest) -> Iterator[None]:
    """Put the tensor's name into a CorruptBlob or MissingBlob of the blob `digest` that the block raises."""
    try:
        yield
    except CorruptBlob as error:
        raise CorruptBlob(f"of {name} ({digest[:12]})", error.reason) from error
    except MissingBlob as error:
        raise MissingBlob(f"{name} ({digest[:12]}) is missing from the store") from error


def check_readable(store: BlobStore, blob: BlobRow, name: str) -> None:
    """Check a quarantined blob again by reading it; other blobs are not read. Raises CorruptBlob, MissingBlob."""
    if blob.is_set_aside:
        with naming(name, blob.digest):
            store.open(blob).close()


def _offset(segment: Segment) -> int:
    return segment.offset_bytes


@dataclass(frozen=True, slots=True)
class ReadHeader:
    """The header of one file of a model, and its source."""

    file: ModelFile
    source: HeaderSource
    header: Header


def plan_merged(session: Session, store: BlobStore, model: Model, name: str) -> list[FilePlan]:
    """Return one file `name` with all tensors of `model`, without the keys of a split set; or its only file."""
    if len(files_of(session, model.id)) == 1:
        return plan_model(session, model)
    parsed, tensors = _contents(session, store, model)
    header = encode_header(whole_metadata(parsed.source, parsed.header), tensors, parsed.header.alignment)
    rows = _tensor_rows(session, model)
    return [plan_new_file(name, header, tensors, parsed.header.alignment, [rows[tensor.name] for tensor in tensors])]


def plan_shards(session: Session, store: BlobStore, model: Model, stem: str, shard_bytes: int) -> list[FilePlan]:
    """Return shards `stem-00001-of-0000N.gguf` with at most `shard_bytes` of tensors each, or a single larger tensor.

    Raises NotAssemblable for too many shards.
    """
    parsed, tensors = _contents(session, store, model)
    shards = cut(parsed.source, parsed.header, tensors, stem, shard_bytes)
    if shards is None:
        return plan_merged(session, store, model, f"{stem}.gguf")
    rows, alignment = _tensor_rows(session, model), parsed.header.alignment
    return [
        plan_new_file(
            shard.name, shard.header, shard.tensors, alignment, [rows[tensor.name] for tensor in shard.tensors]
        )
        for shard in shards
    ]


def first_header(session: Session, store: BlobStore, model: Model) -> ReadHeader:
    """Return the header of a model's first file, which has all metadata. Raises CorruptBlob, MissingBlob."""
    file = files_of(session, model.id)[0]
    return _parse(store, plan_file(session, file, 0, file.header_bytes), file)


def plan_new_file(
    name: str, header: bytes, tensors: Sequence[TensorSpec], alignment: int, blobs: Sequence[BlobRow]
) -> FilePlan:
    """Return a file of `header` with its padding, then `tensors` with the bytes of `blobs`."""
    slices = []
    offset = len(header)
    for tensor, blob in zip(tensors, blobs, strict=True):
        slices.append(PlannedSlice(offset, tensor.size_bytes, blob, 0, tensor.name))
        offset += padded(tensor.size_bytes, alignment)
    return FilePlan(name, offset, None, header, tuple(slices))


def _contents(session: Session, store: BlobStore, model: Model) -> tuple[ReadHeader, list[TensorSpec]]:
    """Return the first file's header, and the tensors of all files in order."""
    check_assemblable(model)
    parsed = [
        _parse(store, plan, file)
        for plan, file in zip(plan_model(session, model), files_of(session, model.id), strict=True)
    ]
    tensors = [TensorSpec(tensor.name, tensor.shape, tensor.dtype) for item in parsed for tensor in item.header.tensors]
    return parsed[0], tensors


def _parse(store: BlobStore, plan: FilePlan, file: ModelFile) -> ReadHeader:
    header_bytes = file.header_bytes
    collected = bytearray()
    head = FilePlan(plan.name, header_bytes, None, b"", tuple(_up_to(plan.slices, header_bytes)))
    with FileStream(store, head) as stream:
        for view in stream:
            collected += view
    source = HeaderSource(bytes(collected), file.size_bytes, plan.name)
    header = read_header(source)
    if header.end != header_bytes:
        raise CorruptBlob(plan.name, f"its header ends at byte {header.end}, but {header_bytes} is recorded")
    return ReadHeader(file, source, header)


def _up_to(slices: Sequence[PlannedSlice], end: int) -> list[PlannedSlice]:
    return [piece for piece in slices if piece.offset_bytes < end]


def _tensor_rows(session: Session, model: Model) -> dict[str, BlobRow]:
    ids = tensor_blobs_of(session, model.id)
    rows = blobs_by_id(session, ids.values())
    return {name: rows[blob_id] for name, blob_id in ids.items()}


VALUE_BYTES = 4
PIECE_ELEMENTS = 1 << 18
"""Values that are decoded at once: a chunk of 1-bit weights is twenty times as large as float32."""

_MAGIC = b"\x93NUMPY\x01\x00"
_ALIGNMENT = 64
"""Alignment of the values, so that the file can be mapped into memory."""


@dataclass(frozen=True, slots=True)
class NpyPlan:
    """The plan of a NumPy file: `head`, then the values of the organ in `blob`."""

    name: str
    """The organ's name, for errors."""
    head: bytes
    blob: BlobRow
    dtype: DType
    elements: int

    @property
    def size_bytes(self) -> int:
        return len(self.head) + VALUE_BYTES * self.elements


def plan_npy(name: str, blob: BlobRow, dtype: DType, shape: tuple[int, ...]) -> NpyPlan:
    """Return the NumPy file of an organ of `dtype` and `shape` (row length first); raises UnsupportedDType."""
    if not can_dequantize(dtype):
        raise UnsupportedDType(f"values of {dtype.name} cannot be decoded: download the organ as .raw or .bin")
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


class NpyStream:
    """Iterates over the bytes of `plan` from `begin_bytes` to `end_bytes`; only the blocks of these are decoded.

    A context manager; a view is valid until the next one is read. Raises the errors of FileStream.
    """

    def __init__(
        self, store: BlobStore, plan: NpyPlan, begin_bytes: int, end_bytes: int, pool: ThreadPoolExecutor | None = None
    ) -> None:
        assert 0 <= begin_bytes <= end_bytes <= plan.size_bytes
        self._dtype = plan.dtype
        self._head = plan.head[begin_bytes:end_bytes]
        begin = max(0, begin_bytes - len(plan.head))
        end = max(0, end_bytes - len(plan.head))
        block_values_bytes = VALUE_BYTES * plan.dtype.block_elements
        first = begin // block_values_bytes
        last = max(first, -(-end // block_values_bytes))
        self._skipped = begin - first * block_values_bytes
        self._wanted = end - begin
        size = (last - first) * plan.dtype.block_bytes
        slices = (PlannedSlice(0, size, plan.blob, first * plan.dtype.block_bytes, plan.name),) if size else ()
        self._stream = FileStream(store, FilePlan(plan.name, size, None, b"", slices), workers=1, pool=pool)

    @property
    def faults(self) -> list[BlobRow]:
        return self._stream.faults

    def __enter__(self) -> NpyStream:
        self._stream.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.__exit__()

    def __iter__(self) -> Iterator[memoryview]:
        if self._head:
            yield memoryview(self._head)
        skipped, left = self._skipped, self._wanted
        for blocks in _whole_blocks(self._stream, self._dtype):
            values: NDArray[np.float32] = dequantize(blocks, self._dtype).astype("<f4", copy=False)
            view = values.data.cast("B")[skipped:][:left]
            yield view
            left -= len(view)
            skipped = 0


def _whole_blocks(views: Iterable[memoryview], dtype: DType) -> Iterator[memoryview]:
    """Return the same bytes in pieces of whole blocks: chunks may come from another dtype with the same bytes."""
    piece_bytes = max(1, PIECE_ELEMENTS // dtype.block_elements) * dtype.block_bytes
    rest = b""
    for view in views:
        if rest:
            missing = dtype.block_bytes - len(rest)
            rest += bytes(view[:missing])
            if len(rest) < dtype.block_bytes:
                continue
            yield memoryview(rest)
            view = view[missing:]
        whole = len(view) - len(view) % dtype.block_bytes
        for begin in range(0, whole, piece_bytes):
            yield view[begin : min(begin + piece_bytes, whole)]
        rest = bytes(view[whole:])
    assert not rest


Sink = Callable[[int, memoryview], None]
"""Called with an offset of the file and its bytes, from any thread, in any order."""

FIRST_BYTES = 1 << 20
"""Decoded before the first bytes are read, where many streams share a pool."""
_ZEROS = memoryview(bytes(1 << 16))


@dataclass(frozen=True, slots=True)
class _Task:
    """The part of one chunk that goes to `offset` of the file."""

    offset: int
    piece: PlannedSlice
    reader: BlobReader
    chunk: StoredChunk
    begin: int
    end: int
    last_of_reader: bool


class FileStream:
    """Iterates over the bytes of `plan` in order; a view is valid until the next one is read. A context manager.

    Entering it checks quarantined blobs again, and raises CorruptBlob or MissingBlob for the first bad one, before any
    byte is returned.

    `sink` gets every non-zero range as soon as it is decoded, before the iteration reaches it. Iterating raises
    CorruptBlob or MissingBlob for the first bad blob; `faults` then has it and others that were found.

    With a `pool` that many streams share, a stream holds no threads and two buffers of a chunk: it decodes one chunk
    ahead of its reader, but at first only FIRST_BYTES: many clients never read more.
    """

    def __init__(
        self,
        store: BlobStore,
        plan: FilePlan,
        sink: Sink | None = None,
        workers: int | None = None,
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        self.faults: list[BlobRow] = []
        self._store = store
        self._plan = plan
        self._sink = sink
        threads = workers or max(2, os.cpu_count() or 2)
        self._pool = pool or ThreadPoolExecutor(threads, thread_name_prefix="assemble")
        self._is_shared = pool is not None
        self._buffers = deque(bytearray(CHUNK_TARGET_BYTES) for _ in range(2 if self._is_shared else 2 * threads + 1))
        self._ahead: deque[tuple[_Task, bytearray, Future[memoryview]]] = deque()
        self._open: set[BlobReader] = set()

    def __enter__(self) -> FileStream:
        for piece in self._plan.slices:
            check_readable(self._store, piece.blob, piece.label)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_shared:
            wait([future for _, _, future in self._ahead if not future.cancel()])
        else:
            self._pool.shutdown(cancel_futures=True)
        for reader in self._open:
            reader.close()

    def __iter__(self) -> Iterator[memoryview]:
        position = len(self._plan.literal)
        if position:
            literal = memoryview(self._plan.literal)
            if self._sink is not None:
                self._sink(0, literal)
            yield literal
        for offset, view in self._decoded():
            yield from _zeros(offset - position)
            yield view
            position = offset + len(view)
        yield from _zeros(self._plan.size_bytes - position)

    def _decoded(self) -> Iterator[tuple[int, memoryview]]:
        ahead = self._ahead
        tasks = self._tasks()
        more, is_read, planned_bytes = True, not self._is_shared, 0
        while more or ahead:
            while more and self._buffers and (is_read or planned_bytes < FIRST_BYTES):
                task = next(tasks, None)
                if task is None:
                    more = False
                    break
                planned_bytes += task.end - task.begin
                buffer = self._buffers.popleft()
                ahead.append((task, buffer, self._pool.submit(self._decode, task, buffer)))
            if ahead:
                task, buffer, future = ahead[0]
                view = future.result()
                ahead.popleft()
                yield task.offset, view
                is_read = True
                self._buffers.append(buffer)
                if task.last_of_reader:
                    self._open.discard(task.reader)
                    task.reader.close()

    def _tasks(self) -> Iterator[_Task]:
        for piece in self._plan.slices:
            with self._naming(piece):
                reader = self._store.open(piece.blob)
            self._open.add(reader)
            yield from _tasks_of(piece, reader)

    def _decode(self, task: _Task, buffer: bytearray) -> memoryview:
        whole = memoryview(buffer)[: task.chunk.plain_size_bytes]
        with self._naming(task.piece):
            task.reader.read_chunk(task.chunk, whole)
        view = whole[task.begin : task.end]
        if self._sink is not None:
            self._sink(task.offset, view)
        return view

    @contextmanager
    def _naming(self, piece: PlannedSlice) -> Iterator[None]:
        """Add the blob of `piece` to the faults if the block finds it corrupt or missing, and name its tensor."""
        try:
            with naming(piece.label, piece.blob.digest):
                yield
        except (CorruptBlob, MissingBlob):
            self.faults.append(piece.blob)
            raise


def _tasks_of(piece: PlannedSlice, reader: BlobReader) -> Iterator[_Task]:
    first, end = piece.blob_offset_bytes, piece.blob_offset_bytes + piece.size_bytes
    wanted = [
        chunk
        for chunk in reader.chunks
        if chunk.plain_offset_bytes < end and chunk.plain_offset_bytes + chunk.plain_size_bytes > first
    ]
    for chunk in wanted:
        begin = max(0, first - chunk.plain_offset_bytes)
        offset = piece.offset_bytes + chunk.plain_offset_bytes + begin - first
        size = min(chunk.plain_size_bytes, end - chunk.plain_offset_bytes)
        yield _Task(offset, piece, reader, chunk, begin, size, chunk is wanted[-1])


def _zeros(size: int) -> Iterator[memoryview]:
    while size > 0:
        yield _ZEROS[: min(size, len(_ZEROS))]
        size -= len(_ZEROS)


Progress = Callable[[int], None]


def place_file(
    store: BlobStore, plan: FilePlan, path: Path, progress: Progress | None = None, files: Files | None = None
) -> Digest:
    """Write the file of `plan` to `path`, replacing an existing file, and return its SHA-256.

    Raises CorruptBlob or MissingBlob for a bad blob, DiskFull, StoreUnwritable; then `path` is unchanged.
    """
    with placed(path, plan.size_bytes, files) as file:
        return _write(store, plan, file, progress)


class AssembledFiles(OutputFiles):
    """Files that are assembled from the blobs of a registry."""

    def __init__(self, store: BlobStore, plans: Sequence[FilePlan], model: SourceModel | None = None) -> None:
        super().__init__((NamedFile(plan.name, plan.size_bytes, plan.sha256) for plan in plans), model)
        self._store, self._plans = store, plans

    def place(
        self, targets: Sequence[Path | None], progress: Callable[[int], None] | None = None
    ) -> tuple[Digest | None, ...]:
        return tuple(
            plan.sha256 if target is None else place_file(self._store, plan, target, progress)
            for plan, target in zip(self._plans, targets, strict=True)
        )


def plan_organ(blob: BlobRow) -> FilePlan:
    """Return a file that is the plain bytes of a blob."""
    digest = Digest(blob.digest)
    piece = PlannedSlice(0, blob.size_bytes, blob, 0, f"organ {digest[:12]}")
    return FilePlan(f"{digest}.raw", blob.size_bytes, digest, b"", (piece,) if blob.size_bytes else ())


def _write(store: BlobStore, plan: FilePlan, file: UnplacedFile, progress: Progress | None) -> Digest:
    file.truncate(plan.size_bytes)

    def write(offset: int, view: memoryview) -> None:
        file.write_at(view, offset)

    digest = hashlib.sha256()
    with FileStream(store, plan, write) as stream:
        for view in stream:
            digest.update(view)
            if progress is not None:
                progress(len(view))
    sha256 = Digest(digest.hexdigest())
    if plan.sha256 is not None and sha256 != plan.sha256:
        raise CorruptBlob(plan.name, f"its SHA-256 would be {sha256}, not {plan.sha256}; nothing was written")
    return sha256
