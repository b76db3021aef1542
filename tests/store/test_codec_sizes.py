"""Tests of compressed sizes and of the choice to keep data raw. Seeded: the figures are the same everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from organs.registry.store.codec import BYTES_CODEC, codec_for, encode_chunk, worth_encoding
from organs.registry.store.codec.entropy import SAMPLE_BYTES, looks_worth_it
from organs.registry.store.codec.fast import Bytes
from tests.store.codec_cases import frame_of, noise, skewed, store, weights

MEBI = 1 << 20


@pytest.mark.parametrize(
    ("dtype_name", "most"),
    [
        ("BF16", 0.670),
        ("F16", 0.852),
        ("F32", 0.836),
        ("Q8_0", 0.951),
        ("Q4_0", 0.929),
        ("Q4_1", 0.917),
        ("Q5_1", 0.952),
    ],
)
def test_weights_are_compressed_to_the_documented_size(dtype_name: str, most: float) -> None:
    plain = weights(dtype_name, 2 * MEBI)
    assert len(store(codec_for(dtype_name), plain)) <= most * len(plain)


def test_a_plane_that_shrinks_by_less_than_2_percent_is_kept_raw() -> None:
    for dtype_name in ("BF16", "Q8_0", "Q4_K", "IQ2_XXS", "I8"):
        codec = codec_for(dtype_name)
        plain = noise(codec.chunk_bytes)
        assert not worth_encoding(encode_chunk(codec, plain))
        assert worth_encoding(encode_chunk(codec, skewed(codec.chunk_bytes)))
    assert worth_encoding(encode_chunk(codec_for("BF16"), weights("BF16", MEBI)))
    assert not worth_encoding(encode_chunk(BYTES_CODEC, noise(5000)))


def normal_plane(spread: int, size_bytes: int, seed: int) -> Bytes:
    """Return bytes of a normal distribution that wraps around."""
    values = np.random.default_rng(seed).normal(0, spread, size_bytes)
    return values.round().astype(np.int64).astype(np.uint8)


def entropy_of(plane: Bytes) -> float:
    """Return the share of a plane's size that a perfect coder of single bytes would need."""
    share = np.bincount(plane) / len(plane)
    return float(-(share[share > 0] * np.log2(share[share > 0])).sum() / 8)


@pytest.mark.parametrize(
    ("spread", "pays"), [(10, True), (48, True), (54, True), (58, False), (64, False), (80, False)]
)
def test_the_sample_accepts_planes_that_gain_3_percent(spread: int, pays: bool) -> None:
    assert (entropy_of(normal_plane(spread, 2 * MEBI, 0)) < 0.97) == pays
    verdicts = [looks_worth_it(normal_plane(spread, 64 << 10, seed)) for seed in range(20)]
    # A sample of 4 KiB is sometimes wrong by half a percent, but not on average.
    assert verdicts.count(pays) >= 17


def test_the_sample_is_from_the_whole_plane_and_shorter_planes_are_tried() -> None:
    frame = frame_of(np.frombuffer(noise(MEBI) + bytes(MEBI), np.uint8))
    assert frame is not None
    assert len(frame) < 1.001 * MEBI
    assert frame_of(np.frombuffer(noise(SAMPLE_BYTES), np.uint8)) is None
    assert frame_of(np.frombuffer(b"\x7e" * 64, np.uint8)) is not None
