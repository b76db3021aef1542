"""Encoding and proving of a chunk, decoding and checking of a chunk. Safe to call from several threads."""

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
from organs.registry.store.codec.delta import add_parent, subtract_parent
from organs.registry.store.codec.derive import from_residual, to_residual
from organs.registry.store.codec.entropy import GAIN_MIN, BadFrame, compress_plane, decompress_plane
from organs.registry.store.codec.fast import Bytes
from organs.registry.store.codec.planes import (
    CACHE_BLOCK_BYTES,
    CHUNK_TARGET_BYTES,
    Codec,
    Encoding,
    Layout,
    join_planes,
    split_planes,
)
from organs.registry.store.codec.stored import BlobChunk, ChunkEntry
from organs.registry.store.memory import own_memory

IDLE_MAX: Final = 4
"""The maximum number of unused buffers that are kept."""
LENT_MIN_BYTES: Final = 256 << 10
"""Smaller memory is allocated in its exact size. Many small blobs may be in use together: each would hold a buffer."""

_idle: deque[Bytes] = deque(maxlen=IDLE_MAX)


def lend(size_bytes: int) -> memoryview:
    """Return writable memory of exactly `size_bytes`, at most CHUNK_TARGET_BYTES, with arbitrary content.

    The memory is reused when this view and all views of its parts are deleted. The caller does not return it.
    """
    assert size_bytes <= CHUNK_TARGET_BYTES
    if size_bytes < LENT_MIN_BYTES:
        return np.empty(size_bytes, np.uint8).data
    try:
        buffer = _idle.pop()
    except IndexError:
        buffer = _memory(CHUNK_TARGET_BYTES)
    lease = buffer[:size_bytes]
    # A memoryview and its slices keep the lease alive. When the last one is deleted, the buffer is idle again.
    weakref.finalize(lease, _idle.append, buffer).atexit = False
    return lease.data


@dataclass(frozen=True, slots=True)
class EncodedChunk:
    """The stored bytes of a chunk and its entry in the table. The pieces are the planes, to be written in this order.

    If the chunk is stored unchanged, its piece is a view of the plain bytes: write it before they change. Other pieces
    are views of memory that is reused when no view of it is left.
    """

    plain_size_bytes: int
    entry: ChunkEntry
    pieces: tuple[memoryview, ...]

    @property
    def stored_size_bytes(self) -> int:
        return self.entry.stored_size_bytes


def encode_chunk(codec: Codec, plain: bytes | memoryview, parent: memoryview | None = None) -> EncodedChunk:
    """Encode a chunk: at least one block, whole blocks, at most `codec.chunk_bytes` plain bytes.

    `parent` has the same values of the parent, `codec.source_bytes(len(plain))` bytes; None for `Encoding.SOLO`. Unless
    `plain` is stored unchanged, the result is decoded again and compared with it; raises EncodingFault if they differ.
    """
    whole = _array(memoryview(plain))
    assert 0 < len(whole) <= codec.chunk_bytes
    checksum = xxhash.xxh3_64_intdigest(whole.data)
    source = whole if parent is None else _residual_of(codec, _array(parent), whole)
    places = _carve(lend(len(source)), codec.plane_sizes_bytes(len(source)))
    if codec.layout is Layout.WHOLE:
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
            # The frame overwrites its plane, which is not needed any more.
            place[:length] = _workspace.frame[:length].data
        pieces.append(plane if length is None else place[:length])
    if parent is not None or codec.layout is not Layout.WHOLE or not raw_flags[0]:
        _prove(codec, raw_flags, pieces, whole, None if parent is None else _array(parent))
    entry = ChunkEntry(tuple(map(len, pieces)), tuple(raw_flags), checksum)
    return EncodedChunk(len(source), entry, tuple(pieces))


def worth_encoding(probe: EncodedChunk) -> bool:
    """Return whether the first chunk of an organ shrinks by `GAIN_MIN`; otherwise the whole organ is stored raw."""
    return probe.stored_size_bytes <= (1 - GAIN_MIN) * probe.plain_size_bytes


def decode_chunk(
    codec: Codec, chunk: BlobChunk, stored: bytes | memoryview, out: memoryview, parent: memoryview | None = None
) -> None:
    """Decode `stored`, the stored bytes of `chunk`, to `out`, which has `chunk.plain_size_bytes` writable bytes.

    `parent` is that of `encode_chunk`.

    Raises CorruptBlob if the sizes differ from the table, or if the decoded bytes do not have the chunk's checksum.
    Before it has returned, and after an error, the content of `out` is arbitrary.
    """
    target = _array(out)
    assert len(target) == chunk.plain_size_bytes
    view = memoryview(stored).cast("B")
    if len(view) != chunk.stored_size_bytes:
        raise CorruptBlob(chunk.where, f"it has {len(view)} of {chunk.stored_size_bytes} stored bytes")
    pieces = _carve(view, chunk.entry.plane_sizes_bytes)
    room = [target] if codec.layout is Layout.WHOLE else _decoding_room(codec, len(target))
    try:
        planes = _decode_planes(codec, chunk.entry.plane_is_raw, pieces, room)
    except BadFrame as error:
        raise CorruptBlob(chunk.where, str(error)) from error
    if parent is not None:
        residual = _workspace.residual[: len(target)]
        join_planes(codec, planes, residual)
        _restore(codec, _array(parent), residual, target)
    elif planes[0] is not target:
        join_planes(codec, planes, target)
    if xxhash.xxh3_64_intdigest(target.data) != chunk.entry.checksum:
        raise CorruptBlob(chunk.where, "the decoded bytes fail their checksum")


def _decode_planes(
    codec: Codec, raw_flags: Sequence[bool], pieces: Sequence[memoryview], room: Sequence[Bytes]
) -> list[Bytes]:
    """Return the planes: decoded to `room`, or a view of the piece for raw planes. BadFrame names the plane."""
    planes: list[Bytes] = []
    for plane, is_raw, piece, place in zip(codec.planes, raw_flags, pieces, room, strict=True):
        if is_raw:
            planes.append(_array(piece))
            continue
        try:
            decompress_plane(piece, codec.coder, place)
        except BadFrame as error:
            raise BadFrame(f"plane {plane.name}: {error}") from error
        planes.append(place)
    return planes


def _prove(
    codec: Codec, raw_flags: Sequence[bool], pieces: Sequence[memoryview], plain: Bytes, parent: Bytes | None
) -> None:
    """Decode `pieces` and compare the result with `plain`; raises EncodingFault."""
    try:
        planes = _decode_planes(codec, raw_flags, pieces, _decoding_room(codec, len(plain)))
    except BadFrame as error:
        raise EncodingFault(f"codec {codec.name} made a frame that it cannot read: {error}") from error
    if parent is None:  # cache block by cache block
        step = CACHE_BLOCK_BYTES // codec.block_bytes * codec.block_bytes
        for start in range(0, len(plain), step):
            part = plain[start : start + step]
            proof = _workspace.proof[: len(part)]
            join_planes(codec, planes, proof, first_block=start // codec.block_bytes)
            if not np.array_equal(part, proof):
                break
        else:
            return
    else:
        # The residual of the encoder is overwritten: only `pieces` and the parent determine the result.
        residual, proof = _workspace.residual[: len(plain)], _workspace.restored[: len(plain)]
        residual[:] = 0
        join_planes(codec, planes, residual)
        _restore(codec, parent, residual, proof)
        if np.array_equal(plain, proof):
            return
    raise EncodingFault(f"codec {codec.name} did not decode to the bytes that it encoded")


def _residual_of(codec: Codec, parent: Bytes, plain: Bytes) -> Bytes:
    """Return what `parent` does not determine of `plain`, in memory of this thread."""
    assert codec.dtype is not None
    assert codec.source is not None
    assert len(parent) == codec.source_bytes(len(plain))
    residual = _workspace.residual[: len(plain)]
    if codec.encoding is Encoding.DELTA:
        subtract_parent(codec.dtype, parent, plain, residual)
    else:
        to_residual(codec.source, codec.dtype, parent, plain, residual)
    return residual


def _restore(codec: Codec, parent: Bytes, residual: Bytes, plain: Bytes) -> None:
    """Fill `plain`: the inverse of `_residual_of`."""
    assert codec.dtype is not None
    assert codec.source is not None
    assert len(parent) == codec.source_bytes(len(plain))
    if codec.encoding is Encoding.DELTA:
        add_parent(codec.dtype, parent, residual, plain)
    else:
        from_residual(codec.source, codec.dtype, parent, residual, plain)


def _decoding_room(codec: Codec, plain_size_bytes: int) -> list[Bytes]:
    """Return memory for the decoded planes of a chunk.

    It is not the memory of the encoder: the bytes left there would make a wrong proof succeed.
    """
    sizes = codec.plane_sizes_bytes(plain_size_bytes)
    return [_array(place) for place in _carve(_workspace.decoded.data, sizes)]


def _carve(room: memoryview, sizes_bytes: Sequence[int]) -> list[memoryview]:
    """Return consecutive pieces of `room`."""
    return [room[end - size : end] for end, size in zip(accumulate(sizes_bytes), sizes_bytes, strict=True)]


def _array(view: memoryview) -> Bytes:
    return np.frombuffer(view, np.uint8)


def _memory(size_bytes: int) -> Bytes:
    return np.frombuffer(own_memory(size_bytes), np.uint8)


class _Workspace(threading.local):
    """Memory of each thread for the frame of a chunk, its planes, residual and decoded bytes, and a cache block."""

    def __init__(self) -> None:
        self.frame = _memory(CHUNK_TARGET_BYTES)
        self.decoded = _memory(CHUNK_TARGET_BYTES)
        self.proof = _memory(CACHE_BLOCK_BYTES)
        self.residual = _memory(CHUNK_TARGET_BYTES)
        self.restored = _memory(CHUNK_TARGET_BYTES)


_workspace = _Workspace()
