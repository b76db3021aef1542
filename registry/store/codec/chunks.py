"""One chunk: encode it and prove it, decode it and check it. Safe to call from several threads."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import numpy as np
import xxhash

from organs.registry.errors import CorruptBlob, EncodingFault
from organs.registry.store.codec.entropy import GAIN_MIN, BadFrame, compress_plane, decompress_plane
from organs.registry.store.codec.planes import (
    CACHE_BLOCK_BYTES,
    CHUNK_TARGET_BYTES,
    Bytes,
    Codec,
    Kind,
    join_planes,
    split_planes,
)
from organs.registry.store.codec.stored import ChunkEntry, StoredChunk

IDLE_MAX: Final = 8
"""How many buffers may wait for their next use."""
LENT_MIN_BYTES: Final = 256 << 10
"""Below this, memory is made to measure: many small blobs may wait together and must not each hold a whole buffer."""

_idle: deque[Bytes] = deque(maxlen=IDLE_MAX)


def lend(size_bytes: int) -> memoryview:
    """Writable memory of exactly that size, at most CHUNK_TARGET_BYTES, with any content.

    It is used again once the view and every view of a part of it are gone. Nobody has to give it back.
    """
    assert size_bytes <= CHUNK_TARGET_BYTES
    if size_bytes < LENT_MIN_BYTES:
        return np.empty(size_bytes, np.uint8).data
    try:
        buffer = _idle.pop()
    except IndexError:
        buffer = np.empty(CHUNK_TARGET_BYTES, np.uint8)
    lease = buffer[:size_bytes]
    # A memoryview, and each slice of it, keeps the lease alive; only when the last is gone the buffer waits again.
    weakref.finalize(lease, _idle.append, buffer).atexit = False
    return lease.data


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """The stored bytes of a chunk, plane by plane, to be written in this order, and its line in the table.

    The pieces are views: of the plain bytes that were given, where these are kept as they are (write them before they
    change), and otherwise of memory that is used again once no view of it is left.
    """

    plain_size_bytes: int
    entry: ChunkEntry
    pieces: tuple[memoryview, ...]

    @property
    def stored_size_bytes(self) -> int:
        return self.entry.stored_size_bytes


def encode_chunk(codec: Codec, plain: bytes | memoryview) -> EncodedChunk:
    """Encode one chunk: whole blocks, at least one, at most `codec.chunk_bytes` plain bytes.

    Unless it is kept as it is, the result has been decoded again and compared with `plain`; raises EncodingFault where
    the two differ.
    """
    source = _array(memoryview(plain))
    assert 0 < len(source) <= codec.chunk_bytes
    checksum = xxhash.xxh3_64_intdigest(source.data)
    places = _carve(lend(len(source)), codec.plane_sizes_bytes(len(source)))
    if codec.kind is Kind.WHOLE:
        planes = [source.data]
    else:
        planes = places
        split_planes(codec, source, [_array(plane) for plane in planes])
    pieces: list[memoryview] = []
    raw_flags: list[bool] = []
    for plane, place in zip(planes, places, strict=True):
        length = compress_plane(_array(plane), codec.coder, _workspace.frame)
        raw_flags.append(length is None)
        if length is not None:
            # The frame takes the place of its plane, which nobody needs any more.
            place[:length] = _workspace.frame[:length].data
        pieces.append(plane if length is None else place[:length])
    if codec.kind is not Kind.WHOLE or not raw_flags[0]:
        _prove(codec, raw_flags, pieces, source)
    entry = ChunkEntry(tuple(map(len, pieces)), tuple(raw_flags), checksum)
    return EncodedChunk(len(source), entry, tuple(pieces))


def worth_encoding(probe: EncodedChunk) -> bool:
    """Whether an organ whose first chunk is `probe` shrinks by `GAIN_MIN`; where not, it is `kept_raw()` as a whole."""
    return probe.stored_size_bytes <= (1 - GAIN_MIN) * probe.plain_size_bytes


def decode_chunk(codec: Codec, chunk: StoredChunk, stored: bytes | memoryview, out: memoryview) -> None:
    """Fill `out`, `chunk.plain_size_bytes` writable bytes, from `stored`: the bytes that lie at the chunk's place.

    Raises CorruptBlob unless they are exactly what the table promises and give bytes with the chunk's checksum. Until
    it has returned, `out` holds anything.
    """
    target = _array(out)
    assert len(target) == chunk.plain_size_bytes
    view = memoryview(stored).cast("B")
    if len(view) != chunk.stored_size_bytes:
        raise CorruptBlob(chunk.where, f"{len(view)} of {chunk.stored_size_bytes} stored bytes are there")
    pieces = _carve(view, chunk.entry.plane_sizes_bytes)
    room = [target] if codec.kind is Kind.WHOLE else _decoding_room(codec, len(target))
    try:
        planes = _decode_planes(codec, chunk.entry.plane_is_raw, pieces, room)
    except BadFrame as error:
        raise CorruptBlob(chunk.where, str(error)) from error
    if planes[0] is not target:
        join_planes(codec, planes, target)
    if xxhash.xxh3_64_intdigest(target.data) != chunk.entry.checksum:
        raise CorruptBlob(chunk.where, "the decoded bytes fail their checksum")


def _decode_planes(
    codec: Codec, raw_flags: Sequence[bool], pieces: Sequence[memoryview], room: Sequence[Bytes]
) -> list[Bytes]:
    """The planes: decoded into `room`, or where they are raw, as they lie in the piece. Raises BadFrame, naming one."""
    planes: list[Bytes] = []
    for plane, is_raw, piece, place in zip(codec.planes, raw_flags, pieces, room, strict=True):
        if is_raw:
            planes.append(_array(piece))
            continue
        try:
            decompress_plane(piece, place)
        except BadFrame as error:
            raise BadFrame(f"plane {plane.name}: {error}") from error
        planes.append(place)
    return planes


def _prove(codec: Codec, raw_flags: Sequence[bool], pieces: Sequence[memoryview], source: Bytes) -> None:
    """Decode and compare with `source`, one cache block after the other."""
    room = _decoding_room(codec, len(source))
    try:
        planes = _decode_planes(codec, raw_flags, pieces, room)
    except BadFrame as error:
        raise EncodingFault(f"codec {codec.name} made a frame that it cannot read: {error}") from error
    step = CACHE_BLOCK_BYTES // codec.block_bytes * codec.block_bytes
    for start in range(0, len(source), step):
        part = source[start : start + step]
        proof = _workspace.proof[: len(part)]
        join_planes(codec, planes, proof, first_block=start // codec.block_bytes)
        if not np.array_equal(part, proof):
            raise EncodingFault(f"codec {codec.name} did not give back what it was given")


def _decoding_room(codec: Codec, plain_size_bytes: int) -> list[Bytes]:
    """Where a chunk's planes are decoded: never where they lay when they were encoded, or stale bytes would prove."""
    sizes = codec.plane_sizes_bytes(plain_size_bytes)
    return [_array(place) for place in _carve(_workspace.decoded.data, sizes)]


def _carve(room: memoryview, sizes_bytes: Sequence[int]) -> list[memoryview]:
    """Consecutive pieces of `room`."""
    return [room[end - size : end] for end, size in zip(accumulate(sizes_bytes), sizes_bytes, strict=True)]


def _array(view: memoryview) -> Bytes:
    return np.frombuffer(view, np.uint8)


class _Workspace(threading.local):
    """Room for a chunk's frame, its decoded planes and one cache block, kept for each thread."""

    def __init__(self) -> None:
        self.frame: Bytes = np.empty(CHUNK_TARGET_BYTES, np.uint8)
        self.decoded: Bytes = np.empty(CHUNK_TARGET_BYTES, np.uint8)
        self.proof: Bytes = np.empty(CACHE_BLOCK_BYTES, np.uint8)


_workspace = _Workspace()
