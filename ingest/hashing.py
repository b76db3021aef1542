"""SHA-256 of a file, its header and its pieces, from one read into shared buffers; and the times of the stages."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import xxhash

from organs.ingest.dissect import DissectedFile
from organs.registry.digest import Digest, digest_of
from organs.registry.gguf import ByteSource, MemorySource, TensorInfo
from organs.registry.gguf.header import Span
from organs.registry.input_files import BUFFER_BYTES
from organs.registry.measure import count_nonfinite
from organs.registry.store.codec import BYTES_CODEC, Codec
from organs.registry.store.memory import own_memory

WAIT_SECONDS = 0.5
"""How often a waiting thread looks whether the run was cancelled."""
HELD_CHUNKS_MAX = 8
"""Limit of chunks of a piece that stay in memory; larger pieces are read again when they are stored."""


class RunCancelled(Exception):
    """The run was cancelled; raised inside its threads to end them."""


class Stages:
    """Adds up the seconds and the bytes of each stage; safe for several threads.

    The seconds are those of threads, which can run in parallel.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, tuple[float, int]] = {}
        self._begun = time.perf_counter()

    @contextmanager
    def timed(self, stage: str, size_bytes: int = 0) -> Iterator[None]:
        """Add the block's time and `size_bytes` to `stage`."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.add(stage, time.perf_counter() - begun, size_bytes)

    def add(self, stage: str, seconds: float, size_bytes: int) -> None:
        """Add `seconds` and `size_bytes` to `stage`."""
        with self._lock:
            before_seconds, before_bytes = self._totals.get(stage, (0.0, 0))
            self._totals[stage] = before_seconds + seconds, before_bytes + size_bytes

    @property
    def wall_seconds(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._begun

    def summary(self) -> dict[str, dict[str, float]]:
        """Return for each stage the seconds, the bytes, and MB/s of one thread."""
        rows = {}
        for stage, (seconds, size_bytes) in self._totals.items():
            rows[stage] = {"seconds": round(seconds, 4), "bytes": size_bytes}
            if size_bytes and seconds:
                rows[stage]["mb_per_second"] = round(size_bytes / seconds / 1e6, 1)
        return rows


class SharedBuffer:
    """Bytes that several threads read. Each holds and releases the buffer once; the last one returns it to its pool."""

    def __init__(self, pool: BufferPool, memory: memoryview) -> None:
        self._pool = weakref.ref(pool)  # no cycle, so that the memory is free as soon as the pool is
        self._memory = memory
        self._lock = threading.Lock()
        self._holders = 0
        self.data = memory
        """The content: the first bytes of the memory."""

    def take(self, size: int) -> None:
        """Start a new use with one holder and `size` bytes."""
        assert self._holders == 0
        self._holders = 1
        self.data = self._memory[:size]

    def hold(self) -> None:
        """Add a holder."""
        with self._lock:
            assert self._holders > 0
            self._holders += 1

    def release(self) -> None:
        """Remove a holder."""
        with self._lock:
            self._holders -= 1
            free = self._holders == 0
            assert self._holders >= 0
        pool = self._pool() if free else None
        if pool is not None:
            pool.give_back(self)


class BufferPool:
    """A pool of `count` buffers of `BUFFER_BYTES`, allocated on first use."""

    def __init__(self, count: int, cancelled: threading.Event) -> None:
        self._free: queue.LifoQueue[SharedBuffer] = queue.LifoQueue()  # the buffer used last is still in the cache
        self._unallocated = count
        self._cancelled = cancelled

    def get(self, size: int) -> SharedBuffer:
        """Wait for a buffer and return it for `size` bytes. Raises RunCancelled."""
        assert size <= BUFFER_BYTES
        while True:
            if self._free.empty() and self._unallocated:
                self._unallocated -= 1
                buffer = SharedBuffer(self, memoryview(own_memory(BUFFER_BYTES)))
                break
            try:
                buffer = self._free.get(timeout=WAIT_SECONDS)
                break
            except queue.Empty:
                if self._cancelled.is_set():
                    raise RunCancelled from None
        buffer.take(size)
        return buffer

    def give_back(self, buffer: SharedBuffer) -> None:
        """Return a buffer to the pool; the last holder calls this."""
        self._free.put(buffer)

    def clear(self) -> None:
        """Free the memory of the buffers that have no holder. No new buffer is allocated after this."""
        self._unallocated = 0
        self._free = queue.LifoQueue()


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of bytes that becomes a blob. `tensor` is None for metadata arrays and literal bytes."""

    source: ByteSource
    span: Span
    codec: Codec
    tensor: TensorInfo | None
    """For an expert, its own shape and offset, with the name of its stack."""
    expert: int | None = None
    """The number of an expert in its stack. The piece of the stack follows those of its experts."""
    experts: int = 0
    """For a stack, the number of its experts, whose pieces hold its bytes."""

    @property
    def is_expert(self) -> bool:
        """Whether it is one expert of a stack."""
        return self.expert is not None


@dataclass(frozen=True, slots=True)
class HashedPiece:
    """A piece with its digest and the checksums of its chunks, which are compared when the piece is stored.

    `buffers` has the chunks, held once for the receiver of the piece; it is empty for large pieces.
    """

    piece: Piece
    digest: Digest
    checksums: tuple[int, ...]
    buffers: tuple[SharedBuffer, ...] = ()
    nonfinite: int = 0
    """Number of values of a tensor that are NaN or infinite."""
    parts: tuple[Digest, ...] = ()
    """For a stack, the digests of its experts."""

    def hold(self) -> None:
        """Add a holder of the chunks in memory."""
        for buffer in self.buffers:
            buffer.hold()

    def release(self) -> None:
        """Remove a holder of the chunks in memory."""
        for buffer in self.buffers:
            buffer.release()

    def read(self, offset: int, size: int) -> bytes | memoryview:
        """Return bytes of the piece, from chunks in memory if possible."""
        if not self.buffers:
            return self.piece.source.read_at(self.piece.span.offset + offset, size)
        index, begin = divmod(offset, self.piece.codec.chunk_bytes)
        data = self.buffers[index].data[begin : begin + size]
        if len(data) == size:
            return data
        return bytes(data) + bytes(self.read(offset + len(data), size - len(data)))


class FilePass:
    """Reads a file once from front to back and hashes it.

    The reader's thread hashes the pieces. Another thread hashes the file and its stacks of experts, because their bytes
    are also hashed as pieces.
    """

    def __init__(self, file: DissectedFile, pool: BufferPool, stages: Stages, cancelled: threading.Event) -> None:
        self._file = file
        self._pool = pool
        self._stages = stages
        self._cancelled = cancelled
        self._to_hash: queue.Queue[tuple[int, SharedBuffer, bool] | None] = queue.Queue()
        """Offsets and bytes, and whether they belong to a stack."""
        self._file_digest, self._header_digest = hashlib.sha256(), hashlib.sha256()
        self._stack_digest = hashlib.sha256()
        self._hasher_failed: BaseException | None = None

    def run(self, pieces: Sequence[Piece], emit: Callable[[HashedPiece], None]) -> tuple[Digest, Digest]:
        """Return the SHA-256 of the file, and that of its header without padding.

        Call `emit` for each of `pieces`, in file order, as soon as its digest is known. Raises RunCancelled if the run
        is cancelled, BadSource if the file cannot be read.
        """
        hasher = threading.Thread(target=self._hash_file, name="file-hash", daemon=True)
        hasher.start()
        try:
            position = 0
            experts: list[HashedPiece] = []
            for piece in pieces:
                if piece.experts:  # a stack, whose bytes the other thread has hashed
                    assert len(experts) == piece.experts
                    self._to_hash.join()
                    digest, self._stack_digest = Digest(self._stack_digest.hexdigest()), hashlib.sha256()
                    parts = tuple(expert.digest for expert in experts)
                    nonfinite = sum(expert.nonfinite for expert in experts)
                    emit(HashedPiece(piece, digest, (), nonfinite=nonfinite, parts=parts))
                    experts = []
                    continue
                self._pass_over(position, piece.span.offset)
                hashed = self._hash_piece(piece)
                if piece.is_expert:
                    experts.append(hashed)
                emit(hashed)
                position = piece.span.end
            self._pass_over(position, self._file.header.file_size_bytes)
        finally:
            self._to_hash.put(None)
            hasher.join()
        if self._hasher_failed is not None:
            raise self._hasher_failed
        return Digest(self._file_digest.hexdigest()), Digest(self._header_digest.hexdigest())

    def _pass_over(self, begin: int, end: int) -> None:
        """Hash bytes outside of pieces: the header's small entries, padding."""
        for offset in range(begin, end, BUFFER_BYTES):
            self._read(offset, min(BUFFER_BYTES, end - offset)).release()

    def _hash_piece(self, piece: Piece) -> HashedPiece:
        digest = hashlib.sha256()
        checksums, buffers, nonfinite = [], [], 0
        chunk_bytes = piece.codec.chunk_bytes
        keeps_chunks = piece.span.size_bytes <= HELD_CHUNKS_MAX * chunk_bytes
        for begin in range(piece.span.offset, piece.span.end, chunk_bytes):
            buffer = self._read(begin, min(chunk_bytes, piece.span.end - begin), in_stack=piece.is_expert)
            with self._stages.timed("hash organs", len(buffer.data)):
                digest.update(buffer.data)
                checksums.append(xxhash.xxh3_64_intdigest(buffer.data))
            if piece.tensor is not None:
                with self._stages.timed("count non-finite", len(buffer.data)):
                    nonfinite += count_nonfinite(buffer.data, piece.tensor.dtype)
            if keeps_chunks:
                buffers.append(buffer)
            else:
                buffer.release()
        return HashedPiece(piece, Digest(digest.hexdigest()), tuple(checksums), tuple(buffers), nonfinite)

    def _read(self, offset: int, size: int, *, in_stack: bool = False) -> SharedBuffer:
        """Return the next bytes, and add them to the hashes of the other thread."""
        if self._cancelled.is_set():
            raise RunCancelled
        buffer = self._pool.get(size)
        with self._stages.timed("read", size):
            self._file.source.read_into(buffer.data, offset)
        buffer.hold()
        self._to_hash.put((offset, buffer, in_stack))
        return buffer

    def _hash_file(self) -> None:
        header_end = self._file.header.end
        while (item := self._to_hash.get()) is not None:
            offset, buffer, in_stack = item
            try:
                with self._stages.timed("hash file", len(buffer.data)):
                    self._file_digest.update(buffer.data)
                if in_stack:
                    with self._stages.timed("hash stacks", len(buffer.data)):
                        self._stack_digest.update(buffer.data)
                if offset < header_end:
                    self._header_digest.update(buffer.data[: header_end - offset])
            except BaseException as error:  # noqa: BLE001  # the reader's thread raises it
                self._hasher_failed = error
            buffer.release()  # also after an error: the reader may be waiting for the buffer
            self._to_hash.task_done()


def hash_literal(file: DissectedFile) -> HashedPiece:
    """Return the piece of the literal bytes of `file`, from memory."""
    source = MemorySource(file.literal_bytes(), file.source.name)
    piece = Piece(source, Span(0, source.size_bytes), BYTES_CODEC, None)
    size = BYTES_CODEC.chunk_bytes
    chunks = (source.data[begin : begin + size] for begin in range(0, source.size_bytes, size))
    return HashedPiece(piece, digest_of(source.data), tuple(map(xxhash.xxh3_64_intdigest, chunks)))
