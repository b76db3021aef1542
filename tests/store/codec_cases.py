"""Plain bytes for tests, and functions that make and read the stored form of a blob in one call."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from organs.registry.digest import digest_of
from organs.registry.gguf.types import DTYPES, dtype_by_name
from organs.registry.store.codec import (
    BYTES_CODEC,
    ChunkEntry,
    Codec,
    codec_for,
    decode_chunk,
    encode_chunk,
    pack_head,
    parse_head,
)
from organs.registry.store.codec.delta import subtract_parent
from organs.registry.store.codec.derive import to_residual
from organs.registry.store.codec.entropy import compress_plane
from organs.registry.store.codec.fast import Bytes
from organs.registry.store.codec.planes import Coder, Encoding

ALL_CODECS: tuple[Codec, ...] = (*(codec_for(dtype.name) for dtype in DTYPES.values()), BYTES_CODEC)
CODEC_IDS = [codec.name if codec.dtype is None else codec.dtype.name for codec in ALL_CODECS]


def store(codec: Codec, plain: bytes, parent: bytes | None = None) -> bytes:
    """Return the complete stored form of `plain`; `parent` has the plain bytes of its parent, if it needs one."""
    view = memoryview(plain)
    starts = range(0, len(plain), codec.chunk_bytes)
    chunks = [
        encode_chunk(codec, view[start : start + codec.chunk_bytes], values_of(codec, parent, start, len(plain)))
        for start in starts
    ]
    above = None if parent is None else digest_of(parent)
    head = pack_head(codec, digest_of(plain), len(plain), [chunk.entry for chunk in chunks], above)
    return b"".join([head, *(piece for chunk in chunks for piece in chunk.pieces)])


def values_of(codec: Codec, parent: bytes | None, start: int, plain_size_bytes: int) -> memoryview | None:
    """Return the part of a parent that belongs to the chunk at `start`."""
    if parent is None:
        return None
    end = min(start + codec.chunk_bytes, plain_size_bytes)
    return memoryview(parent)[codec.source_bytes(start) : codec.source_bytes(end)]


def residual_of(codec: Codec, values: memoryview, plain: bytes) -> bytes:
    """Return what the values of a parent do not determine of a chunk."""
    assert codec.dtype is not None
    assert codec.source is not None
    parent, own = np.frombuffer(values, np.uint8), np.frombuffer(plain, np.uint8)
    residual = np.empty_like(own)
    if codec.encoding is Encoding.DELTA:
        subtract_parent(codec.dtype, parent, own, residual)
    else:
        to_residual(codec.source, codec.dtype, parent, own, residual)
    return residual.tobytes()


def load(stored: bytes, plain: bytes) -> bytes:
    """Return the plain bytes of `stored`, read as a blob of the digest and size of `plain`."""
    head = parse_head(stored, digest=digest_of(plain), plain_size_bytes=len(plain), stored_size_bytes=len(stored))
    out = bytearray(len(plain))
    room, view = memoryview(out), memoryview(stored)
    for chunk in head.chunks:
        decode_chunk(
            head.codec,
            chunk,
            view[chunk.offset_bytes : chunk.offset_bytes + chunk.stored_size_bytes],
            room[chunk.plain_offset_bytes : chunk.plain_offset_bytes + chunk.plain_size_bytes],
        )
    return bytes(out)


def frame_of(plane: Bytes, coder: Coder = Coder.ENTROPY) -> bytes | None:
    """Return the stored frame of `plane`, or None if it is kept raw."""
    room = np.empty(max(1, len(plane)), np.uint8)
    length = compress_plane(plane, coder, room)
    return None if length is None else room[:length].tobytes()


def forge(codec: Codec, plain: bytes, pieces: Sequence[bytes], raw_flags: Sequence[bool]) -> bytes:
    """Return a stored form of one chunk with a valid head and any pieces."""
    entry = ChunkEntry(tuple(map(len, pieces)), tuple(raw_flags), xxhash.xxh3_64_intdigest(plain))
    return b"".join([pack_head(codec, digest_of(plain), len(plain), [entry]), *pieces])


def weights(dtype_name: str, elements: int, seed: int = 0) -> bytes:
    """Return values like those of a trained layer in a type with a kernel; each 4,096 values have their own scale."""
    generator = np.random.default_rng(seed)
    rows = -(-elements // 4096)
    width = np.exp(generator.normal(np.log(0.02), 0.3, (rows, 1)))
    values: NDArray[np.float32] = (generator.standard_normal((rows, 4096)) * width).astype(np.float32)
    if dtype_name == "F64":
        return values.astype("<f8").tobytes()[: elements * 8]
    encoded: bytes = quants.quantize(values, GGMLQuantizationType[dtype_name]).tobytes()
    return encoded[: dtype_by_name(dtype_name).size_bytes(elements)]


def noise(size_bytes: int, seed: int = 0) -> bytes:
    """Return bytes that cannot be compressed."""
    return np.random.default_rng(seed).bytes(size_bytes)


def skewed(size_bytes: int, seed: int = 0) -> bytes:
    """Return bytes with about six bits of entropy each, which an entropy coder compresses in any plane."""
    return np.random.default_rng(seed).normal(0, 16, size_bytes).astype(np.int8).tobytes()


ODD_BYTES = np.array([0x00, 0x01, 0x7B, 0x7C, 0x7E, 0x7F, 0x80, 0xFC, 0xFF], np.uint8)
"""High bytes of zero, denormals, infinities and NaN in F16, BF16 and F32."""


def odd_bytes(size_bytes: int, seed: int, share: float = 0.0) -> Bytes:
    """Return random bytes; this share of them is from `ODD_BYTES`."""
    generator = np.random.default_rng(seed)
    random = generator.integers(0, 256, size_bytes, dtype=np.uint8)
    return np.where(generator.random(size_bytes) < share, generator.choice(ODD_BYTES, size_bytes), random)
