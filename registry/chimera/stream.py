"""The bytes of a planned file, in order: decoded by several threads ahead of the reader, every chunk checked."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass

from organs.registry.catalog.queries.blobs import BlobRow
from organs.registry.chimera.plan import FilePlan, PlannedSlice, check_readable, naming
from organs.registry.errors import CorruptBlob, MissingBlob
from organs.registry.store import BlobReader, BlobStore
from organs.registry.store.codec import CHUNK_TARGET_BYTES, StoredChunk

Sink = Callable[[int, memoryview], None]
"""Called with an offset of the file and its bytes, from any thread, in any order."""

FIRST_BYTES = 1 << 20
"""Decoded before the first bytes are read, where many streams share a pool."""
_ZEROS = memoryview(bytes(1 << 16))


@dataclass(frozen=True, slots=True)
class _Task:
    """The part of one chunk that belongs into the file at `offset`."""

    offset: int
    piece: PlannedSlice
    reader: BlobReader
    chunk: StoredChunk
    begin: int
    end: int
    last_of_reader: bool


class FileStream:
    """Iterates over the bytes of `plan` in order; a view is valid until the next is asked for. A context manager.

    Entering it reads the blobs that are set aside again, and raises CorruptBlob or MissingBlob for the first that still
    has wrong bytes: before the first byte is given.

    `sink` is given every non-zero stretch as soon as it is decoded, before the iteration comes to it. Iterating raises
    CorruptBlob or MissingBlob for the first blob that does not give what it should; `faults` then has it, and others
    that were found on the way.

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
            check_readable(self._store, piece.blob, piece.what)
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
        """Keep the blob of `piece` among the faults if the block finds it corrupt or missing, and name its tensor."""
        try:
            with naming(piece.what, piece.blob.digest):
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
