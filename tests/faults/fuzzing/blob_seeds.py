"""The small blobs for fuzzing: every codec, encoded and raw, in rows and in files, of one chunk and of several."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from organs.registry.digest import Digest, digest_of
from organs.registry.store.codec import BYTES_CODEC, Codec, StoredHead, codec_for, parse_head
from organs.registry.store.codec.planes import Kind, split_planes
from tests.store.codec_cases import ALL_CODECS, noise, skewed, store, weights

SMALL_BYTES = 1200
LONG_BYTES = 90_000
"""More than the largest blob in a row."""
SEVERAL_CHUNKS = 3
"""The number of seeds, at the end of the list, with more than one chunk."""
WORDS = b"a vocabulary of few words, "


@dataclass(frozen=True, slots=True)
class BlobSeed:
    """A valid blob, and the planes of its first chunk before encoding."""

    codec: Codec
    plain: bytes
    stored: bytes
    digest: Digest
    head: StoredHead
    planes: tuple[bytes, ...]


def blob_seeds() -> list[BlobSeed]:
    """Return all seeds; the last SEVERAL_CHUNKS are slow to read."""
    seeds = [_seed(codec, skewed(_blocks(codec, SMALL_BYTES), index)) for index, codec in enumerate(ALL_CODECS)]
    seeds += [_seed(codec.kept_raw(), noise(_blocks(codec, 300), index)) for index, codec in enumerate(ALL_CODECS[::3])]
    seeds += [_seed(codec_for(name), weights(name, 4096)) for name in ("BF16", "F16", "F32", "Q8_0", "Q4_0")]
    seeds += [
        _seed(BYTES_CODEC, b""),
        _seed(BYTES_CODEC, b"!"),
        _seed(BYTES_CODEC, bytes(3000)),
        _seed(BYTES_CODEC, WORDS * 100),
        _seed(BYTES_CODEC, WORDS * (LONG_BYTES // len(WORDS))),
        _seed(codec_for("BF16"), weights("BF16", LONG_BYTES // 2)),
        _seed(codec_for("Q4_K"), skewed(_blocks(codec_for("Q4_K"), LONG_BYTES))),
        _seed(codec_for("Q8_0").kept_raw(), noise(_blocks(codec_for("Q8_0"), LONG_BYTES))),
    ]
    several = [
        _seed(codec_for("BF16"), weights("BF16", codec_for("BF16").chunk_bytes // 2 + 1000)),
        _seed(codec_for("F16").kept_raw(), noise(codec_for("F16").chunk_bytes + 2000)),
        _seed(BYTES_CODEC, WORDS * (2 * BYTES_CODEC.chunk_bytes // len(WORDS) + 100)),
    ]
    assert len(several) == SEVERAL_CHUNKS
    assert all(len(seed.head.chunks) > 1 for seed in several)
    return seeds + several


def _seed(codec: Codec, plain: bytes) -> BlobSeed:
    stored, digest = store(codec, plain), digest_of(plain)
    head = parse_head(stored, digest=digest, plain_size_bytes=len(plain), stored_size_bytes=len(stored))
    return BlobSeed(codec, plain, stored, digest, head, _planes(codec, plain[: codec.chunk_bytes]))


def _planes(codec: Codec, chunk: bytes) -> tuple[bytes, ...]:
    if codec.kind is Kind.WHOLE:
        return (chunk,)
    planes = [np.empty(size, np.uint8) for size in codec.plane_sizes_bytes(len(chunk))]
    split_planes(codec, np.frombuffer(chunk, np.uint8), planes)
    return tuple(plane.tobytes() for plane in planes)


def _blocks(codec: Codec, size_bytes: int) -> int:
    """Return about this number of bytes, at least two whole blocks."""
    return max(2, size_bytes // codec.block_bytes) * codec.block_bytes
