"""Tests of the decoded mean and standard deviation after purification and encoding."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from organs.registry.errors import BadOrgan
from organs.registry.gguf import DType, dtype_by_name
from organs.registry.transform import Computation, Plain, Purification, PurifyMethod
from organs.registry.transform.purify import (
    HELD,
    TOLERANCE,
)
from organs.registry.transform.values import WINDOW_ELEMENTS, WRITTEN_AS_THEY_ARE
from tests.transform.memory_organs import (
    F16,
    F32,
    F64,
    Q4_0,
    Values,
    computed_bytes,
    correlation,
    organ,
    values_in,
    values_of,
)
from tests.transform.memory_organs import weights as trained

METHODS = list(PurifyMethod)
ALIKE = [dtype_by_name(name) for name in WRITTEN_AS_THEY_ARE]
WIDELY_HELD = [dtype_by_name(name) for name in sorted(HELD)]


def moved(source: Plain, dtype: DType, method: PurifyMethod, keep: float = 0.9) -> tuple[float, Values]:
    """Return the largest change of mean or standard deviation, in standard deviations, and the purified values."""
    before = values_of(source)
    spread = before.std() or 1.0
    after = values_in(computed_bytes(Computation(source, dtype, purification=Purification(method, keep))), dtype)
    return max(abs(after.mean() - before.mean()), abs(after.std() - before.std())) / spread, after


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", WIDELY_HELD, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("count", [256, 4096, 98_304, WINDOW_ELEMENTS + 64])
def test_the_moments_of_weights_are_preserved_to_a_thousandth(method: PurifyMethod, dtype: DType, count: int) -> None:
    source = organ(trained(count), dtype)
    distance, after = moved(source, dtype, method)
    assert distance <= TOLERANCE
    assert 0.9 < correlation(after, values_of(source)) < 0.99


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ALIKE, ids=lambda dtype: dtype.name)
def test_coarser_types_preserve_the_moments_of_many_values(method: PurifyMethod, dtype: DType) -> None:
    for source in (organ(trained(98_304), dtype), organ(trained(98_304), Q4_0)):
        assert moved(source, dtype, method)[0] <= TOLERANCE


@settings(deadline=None, max_examples=25)
@given(
    st.sampled_from(WIDELY_HELD),
    st.sampled_from(METHODS),
    st.floats(0.05, 1.0),
    st.integers(2, 300),
    st.integers(0, 99),
)
def test_the_moments_are_preserved_or_the_organ_is_refused(
    dtype: DType, method: PurifyMethod, keep: float, blocks: int, seed: int
) -> None:
    chosen = np.random.default_rng(seed)
    values = chosen.standard_normal(32 * blocks) * chosen.lognormal(0.0, 2.0) + chosen.choice([0.0, 1.0])
    with suppress(BadOrgan):
        assert moved(organ(values, dtype), dtype, method, keep)[0] <= TOLERANCE


def test_values_closer_together_than_the_levels_of_a_type_are_refused() -> None:
    source = organ(1.0 + 1e-9 * np.random.default_rng(0).standard_normal(64), F64)
    with pytest.raises(BadOrgan, match="F32 is too coarse to hold this tensor's mean and standard deviation"):
        moved(source, F32, PurifyMethod.SPECTRAL)


@pytest.mark.parametrize("seed", range(5))
def test_coarse_types_accept_every_organ_that_they_can_represent(seed: int) -> None:
    for dtype in (Q4_0, dtype_by_name("Q5_0")):
        source = organ(1.0 + 0.005 * np.random.default_rng(seed).standard_normal(96), dtype)
        for method in METHODS:
            assert moved(source, dtype, method)[1].size == 96


@pytest.mark.parametrize("dtype", ALIKE, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("method", METHODS)
def test_zeros_constants_and_tiny_organs_are_written_unchanged(dtype: DType, method: PurifyMethod) -> None:
    for values in (np.zeros(96), np.full(96, -0.5), trained(32)):
        source = organ(values, dtype)
        plain = computed_bytes(Computation(source, dtype))
        assert computed_bytes(Computation(source, dtype, purification=Purification(method))) == plain


@pytest.mark.parametrize("method", METHODS)
def test_a_value_that_grows_beyond_the_type_is_refused(method: PurifyMethod) -> None:
    values = np.where(np.random.default_rng(0).random(4096) < 0.5, -65_504.0, 65_504.0)
    with pytest.raises(BadOrgan, match="F16"):
        moved(organ(values, F16), F16, method)


@pytest.mark.parametrize("method", METHODS)
def test_the_largest_numbers_of_f32_do_not_overflow(method: PurifyMethod) -> None:
    assert moved(organ(trained(4096) * 1e38), F32, method)[0] <= TOLERANCE
