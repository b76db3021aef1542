"""Tests of sums and moments against exact arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from organs.registry.transform.purify import (
    SUMMED_EXACTLY,
    Moments,
    moments,
    total,
)
from tests.transform.memory_organs import weights


@pytest.mark.parametrize("size", [0, 1, 2, 1023, 1024, 1025, 2047, 2049, 4099, 100_003])
def test_a_sum_of_any_size_agrees_with_exact_arithmetic_to_a_few_roundings(size: int) -> None:
    values = weights(size)
    scale = math.fsum(np.abs(values).tolist())
    assert abs(total(values) - math.fsum(values.tolist())) <= scale * 2**-50


def test_a_sum_does_not_change_the_values() -> None:
    values = weights(5000)
    before = values.copy()
    total(values)
    assert (values == before).all()


def test_a_small_sum_is_exact() -> None:
    assert total(np.array([1e100, 1.0, -1e100])) == 1.0
    assert total(np.full(SUMMED_EXACTLY, 0.1)) == math.fsum([0.1] * SUMMED_EXACTLY)


def test_moments_equal_those_of_numpy() -> None:
    values = weights(70_001) + 3.0
    result = moments(values)
    assert result.count == values.size
    assert result.mean == pytest.approx(values.mean(), rel=1e-14)
    assert result.standard_deviation == pytest.approx(values.std(), rel=1e-12)


def test_moments_of_zero_values_are_zero() -> None:
    assert moments(np.empty(0)) == Moments()
    assert Moments().standard_deviation == 0.0
    assert Moments().with_more(Moments()) == Moments()


def test_a_small_deviation_from_a_large_mean_is_not_lost() -> None:
    values = 1e6 + weights(4096)
    assert moments(values).standard_deviation == pytest.approx(values.std(), rel=1e-9)
    joined = moments(values[:1000]).with_more(moments(values[1000:]))
    assert joined.standard_deviation == pytest.approx(values.std(), rel=1e-9)


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), max_size=40), st.integers(0, 40))
def test_moments_of_two_parts_combine_to_those_of_the_whole(numbers: list[float], cut: int) -> None:
    values = np.array(numbers)
    joined, expected = moments(values[:cut]).with_more(moments(values[cut:])), moments(values)
    assert joined.count == expected.count
    assert joined.mean == pytest.approx(expected.mean, abs=1e-9)
    assert joined.standard_deviation == pytest.approx(expected.standard_deviation, abs=1e-4)
