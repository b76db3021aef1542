"""Tests of the sorted sample and its moments."""

from __future__ import annotations

import math

import numpy as np
import pytest

from organs.registry.measure.zmeasure import summarise


def test_moments_equal_those_of_float64_arithmetic() -> None:
    values = np.random.default_rng(1).standard_t(5, 10_000).astype(np.float32)
    exact = values.astype(np.float64)
    summary = summarise(values)
    deviations = exact - exact.mean()
    assert summary.mean == pytest.approx(exact.mean(), rel=1e-12)
    assert summary.standard_deviation == pytest.approx(exact.std(), rel=1e-12)
    assert summary.excess_kurtosis == pytest.approx((deviations**4).mean() / exact.var() ** 2 - 3, rel=1e-9)
    assert (summary.minimum, summary.maximum) == (exact.min(), exact.max())
    assert summary.ascending.tolist() == sorted(exact.tolist())


@pytest.mark.parametrize("specials", [[], [math.inf, -math.inf, -math.inf, 0.0, -0.0], [math.nan, math.inf, -math.nan]])
@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_values_of_16_bits_are_sorted_as_others_are(dtype: str, specials: list[float]) -> None:
    values = np.random.default_rng(3).standard_t(2, 20_000).astype(np.float32)
    values[100 : 100 + len(specials)] = specials
    if dtype == "BF16":
        rounded = (values.view(np.uint32) & np.uint32(0xFFFF_0000)).view(np.float32)
    else:
        rounded = np.ldexp(values, -8).astype(np.float16).astype(np.float32)  # with subnormal numbers
    summary = summarise(rounded)
    finite = rounded[np.isfinite(rounded)].astype(np.float64)
    assert summary.ascending.tolist() == sorted(finite.tolist())
    assert summary.nan_count == sum(map(math.isnan, specials))
    assert summary.infinite_count == sum(map(math.isinf, specials))


@pytest.mark.parametrize("place", [0, 5000, 19_999])
def test_one_value_that_is_not_of_16_bits_keeps_all_its_bits(place: int) -> None:
    values = np.random.default_rng(4).standard_normal(20_000).astype(np.float16).astype(np.float32)
    values[place] = 1e-6 + 1e-10
    assert summarise(values).ascending.tolist() == sorted(values.astype(np.float64).tolist())


@pytest.mark.parametrize("values", [[], [math.nan] * 5, [math.inf, -math.inf, math.nan]])
def test_without_a_finite_value_there_are_no_moments(values: list[float]) -> None:
    summary = summarise(np.array(values, np.float32))
    assert summary.ascending.size == 0
    assert summary.nan_count + summary.infinite_count == len(values)
    assert summary.constant is False
    assert (summary.mean, summary.standard_deviation, summary.minimum, summary.maximum) == (None, None, None, None)


@pytest.mark.parametrize("exponent", [-1030, -400, 400, 1015])
def test_float64_values_far_beyond_float32_have_moments_relative_to_their_scale(exponent: int) -> None:
    values = np.random.default_rng(2).integers(-100, 100, 1000).astype(np.float64)
    ordinary, far = summarise(values), summarise(np.ldexp(values, exponent))
    assert ordinary.mean is not None
    assert far.mean == pytest.approx(math.ldexp(ordinary.mean, exponent), rel=1e-12)
    assert far.maximum == math.ldexp(float(values.max()), exponent)
    assert far.excess_kurtosis == pytest.approx(ordinary.excess_kurtosis, rel=1e-12)
    assert far.infinite_count == 0
