"""SHA-256 of a file, its header and its pieces, from one read; and the times of the stages."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import xxhash

from organs.ingest.dissect import DissectedFile
from organs.ingest.files import (
    BUFFER_BYTES,
    BufferPool,
    Cancelled,
    SharedBuffer,
)
from organs.registry.digest import Digest, digest_of
from organs.registry.gguf import ByteSource, MemorySource, TensorInfo
from organs.registry.gguf.header import Span
from organs.registry.measure import count_nonfinite
from organs.registry.store.codec import BYTES_CODEC, Codec


@dataclass(slots=True)
class StageTotal:
    """Totals of one stage so far. The seconds are those of threads, which can run in parallel."""

    seconds: float = 0.0
    size_bytes: int = 0


class Stages:
    """Adds up the totals of the stages; safe for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, StageTotal] = {}
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
            total = self._totals.setdefault(stage, StageTotal())
            total.seconds += seconds
            total.size_bytes += size_bytes

    @property
    def wall_seconds(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._begun

    def summary(self) -> dict[str, dict[str, float]]:
        """Return for each stage the seconds, the bytes, and MB/s of one thread."""
        rows = {}
        for stage, total in self._totals.items():
            rows[stage] = {"seconds": round(total.seconds, 4), "bytes": total.size_bytes}
            if total.size_bytes and total.seconds:
                rows[stage]["mb_per_second"] = round(total.size_bytes / total.seconds / 1e6, 1)
        return rows


def merged_stages(summaries: Sequence[dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the sums of several summaries of `Stages`, in the same form."""
    total = Stages()
    for summary in summaries:
        for stage, values in summary.items():
            total.add(stage, values["seconds"], int(values["bytes"]))
    return total.summary()


HELD_CHUNKS_MAX = 8
"""Limit of chunks of a piece that stay in memory; larger pieces are read again when they are stored."""


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


@dataclass(frozen=True, slots=True)
class FileDigests:
    """SHA-256 of a whole file and of its header without padding."""

    file: Digest
    header: Digest


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
        self._hasher = threading.Thread(target=self._hash_file, name="file-hash", daemon=True)
        self._hasher_failed: BaseException | None = None

    def run(self, pieces: Sequence[Piece], emit: Callable[[HashedPiece], None]) -> FileDigests:
        """Hash everything; call `emit` for each of `pieces`, in file order, as soon as its digest is known.

        Raises Cancelled if the run is cancelled, BadSource if the file cannot be read.
        """
        self._hasher.start()
        try:
            position = 0
            experts: list[HashedPiece] = []
            for piece in pieces:
                if piece.experts:
                    emit(self._finish_stack(piece, experts))
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
            self._hasher.join()
        if self._hasher_failed is not None:
            raise self._hasher_failed
        return FileDigests(Digest(self._file_digest.hexdigest()), Digest(self._header_digest.hexdigest()))

    def _pass_over(self, begin: int, end: int) -> None:
        """Hash bytes outside of pieces: the header's small entries, padding."""
        while begin < end:
            size = min(BUFFER_BYTES, end - begin)
            self._read(begin, size).release()
            begin += size

    def _finish_stack(self, piece: Piece, experts: Sequence[HashedPiece]) -> HashedPiece:
        assert len(experts) == piece.experts
        self._to_hash.join()
        digest, self._stack_digest = Digest(self._stack_digest.hexdigest()), hashlib.sha256()
        parts = tuple(expert.digest for expert in experts)
        return HashedPiece(piece, digest, (), nonfinite=sum(expert.nonfinite for expert in experts), parts=parts)

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
            raise Cancelled
        buffer = self._pool.get(size)
        with self._stages.timed("read", size):
            self._file.source.read_into(buffer.data, offset)
        buffer.hold()
        self._to_hash.put((offset, buffer, in_stack))
        return buffer

    def _hash_file(self) -> None:
        while (item := self._to_hash.get()) is not None:
            offset, buffer, in_stack = item
            try:
                self._hash(offset, buffer.data, in_stack)
            except BaseException as error:  # noqa: BLE001  # the reader's thread raises it
                self._hasher_failed = error
            buffer.release()  # also after an error: the reader may be waiting for the buffer
            self._to_hash.task_done()

    def _hash(self, offset: int, data: memoryview, in_stack: bool) -> None:
        with self._stages.timed("hash file", len(data)):
            self._file_digest.update(data)
        if in_stack:
            with self._stages.timed("hash stacks", len(data)):
                self._stack_digest.update(data)
        header_end = self._file.header.end
        if offset < header_end:
            self._header_digest.update(data[: header_end - offset])


def hash_literal(file: DissectedFile) -> HashedPiece:
    """Return the piece of the literal bytes of `file`, from memory."""
    source = MemorySource(file.literal_bytes(), file.source.name)
    piece = Piece(source, Span(0, source.size_bytes), BYTES_CODEC, None)
    size = BYTES_CODEC.chunk_bytes
    chunks = (source.data[begin : begin + size] for begin in range(0, source.size_bytes, size))
    return HashedPiece(piece, digest_of(source.data), tuple(map(xxhash.xxh3_64_intdigest, chunks)))
