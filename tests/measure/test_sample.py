"""Tests of the choice of sampled values."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.gguf.quants import quantize
from organs.registry.gguf.types import dtype_by_name
from organs.registry.measure.sample import SAMPLE_MAX_ELEMENTS, read_values, sample_runs, spectral_patches
from tests.random_files import PATIENT

COUNTS = st.integers(SAMPLE_MAX_ELEMENTS + 1, 10**15)


@pytest.mark.parametrize("count", [1, 255, 256, 1000, 98_303, 98_304])
def test_a_tensor_of_up_to_98304_values_is_sampled_completely(count: int) -> None:
    assert sample_runs(count) == ((0, count),)


@PATIENT
@given(count=COUNTS)
def test_a_larger_tensor_is_sampled_in_384_separate_runs_of_256(count: int) -> None:
    runs = sample_runs(count)
    assert len(runs) == 384
    assert all(length == 256 and start % 256 == 0 for start, length in runs)
    starts = [start for start, _ in runs]
    blocks = count // 256
    assert [(384 * (start // 256 + 1) - 1) // blocks for start in starts] == list(range(384)), "one from each part"
    assert all(later - earlier >= 256 for earlier, later in pairwise(starts))
    assert starts[0] >= 0
    assert starts[-1] + 256 <= count


@pytest.mark.parametrize(
    ("columns", "rows"),
    [(1024, 128), (1024, 192), (512, 256), (768, 768), (2048, 2048), (3072, 768), (4096, 14336), (8192, 8192)],
)
def test_every_column_is_sampled_about_equally_often(columns: int, rows: int) -> None:
    visits: Counter[int] = Counter()
    for start, length in sample_runs(columns * rows):
        visits.update((start + offset) % columns for offset in range(0, length, 256))
    counts = [visits[column] for column in range(0, columns, 256)]
    mean = sum(counts) / len(counts)
    assert min(counts) >= 0.66 * mean
    assert max(counts) <= 1.5 * mean


@pytest.mark.parametrize("shape", [(4096,), (4096, 1), (1, 4096), (1, 64, 3), (64, 1, 3)])
def test_vectors_have_no_patches(shape: tuple[int, ...]) -> None:
    assert spectral_patches(shape) is None


@pytest.mark.parametrize("name", ["F32", "BF16", "Q8_0", "Q4_0", "TQ2_0"])
def test_runs_read_the_values_of_the_tensor_at_their_positions(name: str) -> None:
    dtype = dtype_by_name(name)
    data = quantize(np.random.default_rng(3).standard_normal(100_352).astype(np.float32), dtype)
    all_values = read_values(lambda offset, size: data[offset : offset + size], ((0, 100_352),), dtype)
    runs = sample_runs(100_352)
    expected = np.concatenate([all_values[start : start + length] for start, length in runs])
    assert read_values(lambda offset, size: data[offset : offset + size], runs, dtype).tolist() == expected.tolist()
