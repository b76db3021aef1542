"""Tests of purification: removed and kept parts of the values; sums and moments against exact arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from organs.registry.errors import BadOrgan
from organs.registry.transform import Purification, PurifyMethod
from organs.registry.transform.purify import (
    cleaned,
    moments,
    total,
)
from organs.registry.transform.values import WINDOW_ELEMENTS
from tests.transform.memory_organs import Values, correlation, purified, weights

METHODS = list(PurifyMethod)
SPECTRAL, FRACTAL = PurifyMethod.SPECTRAL, PurifyMethod.FRACTAL


def noise(count: int, seed: int = 9) -> Values:
    return np.random.default_rng(seed).standard_normal(count)


def deviation(left: Values, right: Values) -> float:
    return float(np.sqrt(np.mean((left - right) ** 2)))


@pytest.mark.parametrize("keep", [0.5, 0.9, 0.99])
def test_the_similarity_to_the_source_follows_from_the_kept_energy(keep: float) -> None:
    values = noise(1 << 16)
    # The kept and the removed part are orthogonal, so the correlation is the root of the kept share.
    assert correlation(purified(values, SPECTRAL, keep), values) == pytest.approx(np.sqrt(keep), abs=2e-4)


def test_fractal_attenuates_isolated_details_and_keeps_those_with_parents() -> None:
    ground = 1e-3 * noise(128)
    # One value up and its neighbour down: their sum, and so the parent, does not contain the change.
    alone = ground.copy()
    alone[40:42] += (5.0, -5.0)
    result = cleaned(alone, Purification(FRACTAL))
    assert 2.0 < result[40] < 4.0
    assert -4.0 < result[41] < -2.0
    # A spike is visible at every scale.
    spike = ground.copy()
    spike[40] += 5.0
    assert cleaned(spike, Purification(FRACTAL))[40] == pytest.approx(5.0, abs=0.01)


@pytest.mark.parametrize("method", METHODS)
def test_a_constant_window_beside_others_is_not_changed(method: PurifyMethod) -> None:
    values = np.concatenate([weights(WINDOW_ELEMENTS), np.full(100, 0.25)])
    result = purified(values, method)
    assert len(set(result[WINDOW_ELEMENTS:].tolist())) == 1


def test_an_organ_that_purification_makes_constant_is_refused() -> None:
    alternating = np.resize([0.0, 1.0], 300)
    with pytest.raises(BadOrgan, match="would make all values of this tensor equal"):
        purified(alternating, FRACTAL)
    assert purified(alternating, SPECTRAL).std() == pytest.approx(0.5)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.floats(-(2.0**127), 2.0**127, width=32), min_size=1, max_size=300),
    st.sampled_from(METHODS),
    st.floats(0.01, 1.0),
)
def test_any_finite_values_are_purified_to_finite_values_with_their_moments(
    numbers: list[float], method: PurifyMethod, keep: float
) -> None:
    values = np.resize(np.array(numbers), 300)
    with np.errstate(all="raise", under="ignore"):
        try:
            result = purified(values, method, keep)
        except BadOrgan:
            assert np.ptp(cleaned(values, Purification(method, keep))) == 0, "only a constant result is refused"
            return
    assert np.isfinite(result).all()
    tolerance = 1e-9 * max(float(np.abs(values).max()), 1e-300)
    assert abs(result.mean() - values.mean()) <= tolerance
    assert abs(result.std() - values.std()) <= tolerance


@pytest.mark.parametrize("size", [0, 1, 2, 1023, 1024, 1025, 2047, 2049, 4099, 100_003])
def test_a_sum_of_any_size_agrees_with_exact_arithmetic_to_a_few_roundings(size: int) -> None:
    values = weights(size)
    scale = math.fsum(np.abs(values).tolist())
    assert abs(total(values) - math.fsum(values.tolist())) <= scale * 2**-50


def test_a_small_deviation_from_a_large_mean_is_not_lost() -> None:
    values = 1e6 + weights(4096)
    assert moments(values).standard_deviation == pytest.approx(values.std(), rel=1e-9)
    joined = moments(values[:1000]).with_more(moments(values[1000:]))
    assert joined.standard_deviation == pytest.approx(values.std(), rel=1e-9)
