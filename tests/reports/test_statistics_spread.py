"""Tests of mean, deviation and quartiles against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.reports.statistics import (
    Distribution,
    deviation_of_means,
    distribution_of,
    mean_of,
)

ANGLES = st.lists(st.floats(0, 90), min_size=1, max_size=50)


@given(ANGLES)
def test_the_distribution_agrees_with_numpy(angles: list[float]) -> None:
    spread = distribution_of(angles)
    assert spread.count == len(angles)
    assert spread.mean == pytest.approx(np.mean(angles))
    assert spread.deviation == pytest.approx(np.std(angles), abs=1e-9)
    assert [spread.lower, spread.median, spread.upper] == pytest.approx(np.quantile(angles, [0.25, 0.5, 0.75]))
    assert (spread.minimum, spread.maximum) == (min(angles), max(angles))


@given(ANGLES)
def test_the_deviation_also_follows_from_the_means_that_a_database_gives(angles: list[float]) -> None:
    square_mean = sum(angle * angle for angle in angles) / len(angles)
    assert deviation_of_means(sum(angles) / len(angles), square_mean) == pytest.approx(np.std(angles), abs=1e-5)


def test_an_empty_list_has_no_spread() -> None:
    assert distribution_of([]) == Distribution(0)
    assert mean_of([None, None]) is None


def test_a_mean_leaves_out_missing_measures() -> None:
    assert mean_of([1.0, None, 2.0]) == 1.5
