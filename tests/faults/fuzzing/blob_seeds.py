"""The small blobs for fuzzing: every codec, encoded and raw, in rows and in files, of one chunk and of several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from organs.registry.digest import Digest, digest_of
from organs.registry.gguf.types import dtype_by_name
from organs.registry.store.codec import (
    BYTES_CODEC,
    Codec,
    StoredHead,
    codec_for,
    delta_codec,
    derive_codec,
    head_size_bytes,
    parse_head,
)
from organs.registry.store.codec.planes import Layout, split_planes
from tests.llama_quants import quantised
from tests.store.codec_cases import ALL_CODECS, noise, residual_of, skewed, store, values_of, weights

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
    parent: BlobSeed | None = None

    @property
    def head_bytes(self) -> int:
        """The size of the head."""
        return head_size_bytes(self.codec, len(self.plain))

    @property
    def values(self) -> memoryview | None:
        """The plain bytes of the parent that belong to the first chunk."""
        return values_of(self.codec, None if self.parent is None else self.parent.plain, 0, len(self.plain))


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
    seeds += list(_with_parents())
    several = [
        _seed(codec_for("BF16"), weights("BF16", codec_for("BF16").chunk_bytes // 2 + 1000)),
        _seed(codec_for("F16").kept_raw(), noise(codec_for("F16").chunk_bytes + 2000)),
        _seed(BYTES_CODEC, WORDS * (2 * BYTES_CODEC.chunk_bytes // len(WORDS) + 100)),
    ]
    assert len(several) == SEVERAL_CHUNKS
    assert all(len(seed.head.chunks) > 1 for seed in several)
    return seeds + several


def _with_parents() -> Iterator[BlobSeed]:
    """Yield blobs with a parent, most of them with few differences; some parents have a parent, too."""
    for number, name in enumerate(("BF16", "F16", "F32", "I8", "Q8_0", "Q4_K", "Q6_K", "IQ2_XXS", "IQ4_XS")):
        codec = codec_for(name)
        size = SMALL_BYTES if number else LONG_BYTES
        parent = _seed(codec, skewed(_blocks(codec, size), 100 + number))
        child = _seed(delta_codec(name), _edited(parent.plain, number), parent)
        yield from (child, _seed(delta_codec(name), _edited(child.plain, number + 1), child))
    pairs = (("F32", "BF16"), ("BF16", "Q8_0"), ("F16", "Q4_K"), ("Q8_0", "Q5_K"), ("F32", "IQ4_NL"))
    for number, (source, name) in enumerate(pairs):
        plain = np.frombuffer(weights("F32", 4096, 40 + number), np.float32)
        parent = _seed(codec_for(source), _cast(plain, source))
        tuned = _seed(delta_codec(source), _edited(parent.plain, 7), parent)
        codec, plain_cast = derive_codec(name, source), _cast(plain, name)
        yield _seed(codec, plain_cast, parent)
        yield _seed(codec, _edited(plain_cast, 8), tuned)
        yield _seed(codec, noise(len(plain_cast), 200 + number), parent)


def _cast(values: NDArray[np.float32], name: str) -> bytes:
    return quantised(values.reshape(-1, 1024), dtype_by_name(name)).tobytes()


def _edited(plain: bytes, seed: int) -> bytes:
    """Return `plain` with some other bytes."""
    generator = np.random.default_rng(seed)
    data = np.frombuffer(plain, np.uint8).copy()
    places = generator.random(len(data)) < generator.choice((0.01, 0.1, 0.4))
    data[places] = generator.integers(0, 256, np.count_nonzero(places))
    data[0] ^= 1
    return data.tobytes()


def _seed(codec: Codec, plain: bytes, parent: BlobSeed | None = None) -> BlobSeed:
    stored, digest = store(codec, plain, None if parent is None else parent.plain), digest_of(plain)
    head = parse_head(stored, digest=digest, plain_size_bytes=len(plain), stored_size_bytes=len(stored))
    seed = BlobSeed(codec, plain, stored, digest, head, (), parent)
    return replace(seed, planes=_planes(codec, plain[: codec.chunk_bytes], seed.values))


def _planes(codec: Codec, chunk: bytes, values: memoryview | None) -> tuple[bytes, ...]:
    if values is not None:
        chunk = residual_of(codec, values, chunk)
    if codec.layout is Layout.WHOLE:
        return (chunk,)
    planes = [np.empty(size, np.uint8) for size in codec.plane_sizes_bytes(len(chunk))]
    split_planes(codec, np.frombuffer(chunk, np.uint8), planes)
    return tuple(plane.tobytes() for plane in planes)


def _blocks(codec: Codec, size_bytes: int) -> int:
    """Return about this number of bytes, at least two whole blocks."""
    return max(2, size_bytes // codec.block_bytes) * codec.block_bytes
