"""One chunk: encode it and prove it, decode it and check it. Safe to call from several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import xxhash

from registry.errors import CorruptBlob, StoreError
from registry.store.codec.entropy import GAIN_MIN, compress_plane, decompress_plane
from registry.store.codec.frames import BadFrame
from registry.store.codec.layout import Codec, Kind
from registry.store.codec.planes import Bytes, join_planes, split_planes
from registry.store.codec.stored import ChunkEntry, StoredChunk

_COMPARED_BYTES = 256 << 10
"""Bytes compared at a time, so that the comparison's own result stays in the cache."""


class EncodingFault(StoreError):
    """What was encoded does not decode to what it was made from: our mistake, or the machine's. Nothing is written."""


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """The stored bytes of a chunk, plane by plane, to be written in this order, and its line in the table.

    A piece that is kept as it is may be a view of the plain bytes that were given: write it before they change.
    """

    plain_size_bytes: int
    entry: ChunkEntry
    pieces: tuple[bytes | memoryview, ...]

    @property
    def stored_size_bytes(self) -> int:
        return self.entry.stored_size_bytes


def encode_chunk(codec: Codec, plain: bytes | memoryview) -> EncodedChunk:
    """Encode one chunk: whole blocks, at least one, at most `codec.chunk_bytes` plain bytes.

    Unless it is kept as it is, the result has been decoded again and compared with `plain`; raises EncodingFault where
    the two differ.
    """
    source: Bytes = np.frombuffer(plain, np.uint8)
    assert 0 < len(source) <= codec.chunk_bytes
    checksum = xxhash.xxh3_64_intdigest(source.data)
    if codec.kind is Kind.WHOLE:
        planes = [source]
    else:
        planes = _carve(_workspace.split(codec.chunk_bytes), codec.plane_sizes_bytes(len(source)))
        split_planes(codec, source, planes)
    frames = [compress_plane(plane, codec.coder) for plane in planes]
    raw_flags = tuple(frame is None for frame in frames)
    if codec.kind is Kind.WHOLE and raw_flags[0]:
        return EncodedChunk(len(source), ChunkEntry((len(source),), raw_flags, checksum), (source.data,))
    pieces = tuple(plane.tobytes() if frame is None else frame for plane, frame in zip(planes, frames, strict=True))
    _prove(codec, raw_flags, pieces, source)
    return EncodedChunk(len(source), ChunkEntry(tuple(map(len, pieces)), raw_flags, checksum), pieces)


def worth_encoding(probe: EncodedChunk) -> bool:
    """Whether an organ whose first chunk is `probe` shrinks by `GAIN_MIN`; where not, it is `kept_raw()` as a whole."""
    return probe.stored_size_bytes <= (1 - GAIN_MIN) * probe.plain_size_bytes


def decode_chunk(codec: Codec, chunk: StoredChunk, stored: bytes | memoryview, out: memoryview) -> None:
    """Fill `out`, `chunk.plain_size_bytes` writable bytes, from `stored`: the bytes that lie at the chunk's place.

    Raises CorruptBlob unless they are exactly what the table promises and give bytes with the chunk's checksum. Until
    it has returned, `out` holds anything.
    """
    target: Bytes = np.frombuffer(out, np.uint8)
    assert len(target) == chunk.plain_size_bytes
    view = memoryview(stored).cast("B")
    if len(view) != chunk.stored_size_bytes:
        raise CorruptBlob(chunk.where, f"{len(view)} of {chunk.stored_size_bytes} stored bytes are there")
    ends = list(accumulate(chunk.entry.plane_sizes_bytes))
    pieces = [view[end - size : end] for end, size in zip(ends, chunk.entry.plane_sizes_bytes, strict=True)]
    try:
        _decode(codec, chunk.entry.plane_is_raw, pieces, target)
    except BadFrame as error:
        raise CorruptBlob(chunk.where, str(error)) from error
    if xxhash.xxh3_64_intdigest(target.data) != chunk.entry.checksum:
        raise CorruptBlob(chunk.where, "the decoded bytes fail their checksum")


def _decode(codec: Codec, raw_flags: Sequence[bool], pieces: Sequence[bytes | memoryview], target: Bytes) -> None:
    """Fill `target`; raises BadFrame, naming the plane."""
    if codec.kind is Kind.WHOLE:
        planes = [target]
    else:
        planes = _carve(_workspace.decoded(codec.chunk_bytes), codec.plane_sizes_bytes(len(target)))
    for index, (is_raw, piece) in enumerate(zip(raw_flags, pieces, strict=True)):
        if not is_raw:
            _decode_frame(codec.planes[index].name, memoryview(piece), planes[index])
        elif codec.kind is Kind.WHOLE:
            np.copyto(target, np.frombuffer(piece, np.uint8))
        else:
            planes[index] = np.frombuffer(piece, np.uint8)
    if codec.kind is not Kind.WHOLE:
        join_planes(codec, planes, target)


def _decode_frame(plane_name: str, frame: memoryview, plane: Bytes) -> None:
    try:
        decompress_plane(frame, plane)
    except BadFrame as error:
        raise BadFrame(f"plane {plane_name}: {error}") from error


def _prove(codec: Codec, raw_flags: Sequence[bool], pieces: Sequence[bytes | memoryview], source: Bytes) -> None:
    proof = _workspace.proof(codec.chunk_bytes)[: len(source)]
    try:
        _decode(codec, raw_flags, pieces, proof)
    except BadFrame as error:
        raise EncodingFault(f"codec {codec.name} made a frame that it cannot read: {error}") from error
    for start in range(0, len(source), _COMPARED_BYTES):
        if not np.array_equal(source[start : start + _COMPARED_BYTES], proof[start : start + _COMPARED_BYTES]):
            raise EncodingFault(f"codec {codec.name} did not give back what it was given")


def _carve(room: Bytes, sizes_bytes: Sequence[int]) -> list[Bytes]:
    """Consecutive pieces of `room`."""
    return [room[end - size : end] for end, size in zip(accumulate(sizes_bytes), sizes_bytes, strict=True)]


class _Workspace(threading.local):
    """Three buffers of a chunk for each thread, made when first needed: fresh memory is slow at first touch.

    What is decoded for the proof never lies where it lay when it was encoded: stale bytes must not pass for proof.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, Bytes] = {}

    def split(self, size_bytes: int) -> Bytes:
        return self._buffer("split", size_bytes)

    def decoded(self, size_bytes: int) -> Bytes:
        return self._buffer("decoded", size_bytes)

    def proof(self, size_bytes: int) -> Bytes:
        return self._buffer("proof", size_bytes)

    def _buffer(self, name: str, size_bytes: int) -> Bytes:
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer) < size_bytes:
            buffer = self._buffers[name] = np.empty(size_bytes, np.uint8)
        return buffer


_workspace = _Workspace()
