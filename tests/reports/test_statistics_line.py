"""Tests of the least-squares line and its margin."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.reports.statistics import fit_line


def test_points_on_a_line_give_that_line_without_an_error() -> None:
    line = fit_line([6.0, 7.0, 9.0], [40.0, 38.0, 34.0])
    assert line is not None
    assert (line.count, line.slope, line.intercept) == (3, pytest.approx(-2.0), pytest.approx(52.0))
    assert line.r_squared == pytest.approx(1.0)
    assert line.slope_error == pytest.approx(0.0, abs=1e-12)


def test_the_worked_example_of_a_textbook_is_reproduced() -> None:
    # Anscombe, "Graphs in Statistical Analysis" (1973), first set: slope 0.500, error 0.118, intercept 3.00, R² 0.667.
    xs = [10.0, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
    ys = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]
    line = fit_line(xs, ys)
    assert line is not None
    assert line.slope == pytest.approx(0.500, abs=5e-4)
    assert line.intercept == pytest.approx(3.00, abs=5e-3)
    assert line.r_squared == pytest.approx(0.667, abs=5e-4)
    assert line.slope_error == pytest.approx(0.118, abs=5e-4)
    assert line.slope_margin == pytest.approx(2.262 * 0.1179, abs=1e-3)


@given(st.lists(st.tuples(st.floats(5, 12), st.floats(0, 90)), min_size=3, max_size=20))
def test_slope_and_intercept_equal_those_of_numpy(points: list[tuple[float, float]]) -> None:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    line = fit_line(xs, ys)
    if line is None:
        assert min(xs) == max(xs)
    elif max(xs) - min(xs) > 0.01:
        slope, intercept = np.polyfit(xs, ys, 1)
        assert (line.slope, line.intercept) == (pytest.approx(slope, abs=1e-4), pytest.approx(intercept, abs=1e-3))


def test_the_margin_holds_the_true_slope_nineteen_times_in_twenty() -> None:
    random = np.random.default_rng(0)
    xs = [6.0, 6.5, 7.0, 8.0, 9.5]
    held = 0
    for _ in range(2000):
        line = fit_line(xs, [40 + 1.5 * x + random.normal() for x in xs])
        assert line is not None
        assert line.slope_margin is not None
        held += abs(line.slope - 1.5) <= line.slope_margin
    assert held / 2000 == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize(("xs", "ys"), [([], []), ([6.0], [40.0]), ([6.0, 6.0], [40.0, 50.0])])
def test_points_at_one_place_have_no_line(xs: list[float], ys: list[float]) -> None:
    assert fit_line(xs, ys) is None


def test_two_points_have_a_line_without_a_margin() -> None:
    line = fit_line([6.0, 7.0], [40.0, 41.0])
    assert line is not None
    assert (line.slope_error, line.slope_margin) == (None, None)


def test_points_without_variation_have_no_explained_share() -> None:
    line = fit_line([6.0, 7.0, 8.0], [40.0, 40.0, 40.0])
    assert line is not None
    assert (line.slope, line.r_squared) == (0.0, None)
