"""Tests of the scale law: the least-squares line with its margin, and sentences that claim no more than is shown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.reports.scale import Point, fit_line, scale_verdict


def points(*pairs: tuple[float, float]) -> list[Point]:
    """Return families with a mean θ of matrices; the mean of all tensors is the same."""
    return [Point(f"m{index}", 1, log, theta, theta) for index, (log, theta) in enumerate(pairs)]


def many(slope: float, count: int = 12, wobble: float = 0.1) -> list[Point]:
    logs = [6 + 3 * index / (count - 1) for index in range(count)]
    return points(*((log, 40 + slope * log + (wobble if index % 2 else -wobble)) for index, log in enumerate(logs)))


@pytest.mark.parametrize(
    ("families", "sentence"),
    [
        ([], "cannot say anything about size"),
        (points((6, 40)), "cannot say anything about size"),
        (points((6, 40), (7, 41)), "There are only 2 families, too few for a line"),
        ([Point("a", 1, 6, 40, None), *points((6, 40), (7, 41))], "There are only 2 families, too few for a line"),
        (points((6, 40), (6, 41), (6, 42)), "All 3 families have the same number of parameters"),
        (many(5.0, count=9), "cannot show a law"),
        (points(*((6 + n / 20, 40 + n) for n in range(12))), "cannot show a law"),
        (many(0.0, wobble=3.0), "no trend beyond chance"),
        (many(2.0), "rises by 2.0° (± 0.1°) for ten times the parameters"),
        (many(-2.0), "falls by 2.0° (± 0.1°) for ten times the parameters"),
    ],
    ids=[
        *("no family", "one family", "two families", "a family without matrices", "one size", "few families"),
        *("a narrow range", "a slope within its margin", "a rising slope", "a falling slope"),
    ],
)
def test_no_more_is_claimed_than_the_families_show(families: list[Point], sentence: str) -> None:
    assert sentence in scale_verdict(families, 30)


def test_the_report_notes_when_the_two_means_disagree_on_the_direction() -> None:
    families = [Point(str(n), 1, 6 + n, 40.0 - n, 30.0 + 2 * n) for n in range(3)]
    assert "Even the direction is uncertain: +2.0° per tenfold by matrices, -1.0° by all tensors." in scale_verdict(
        families, 3
    )
    assert "direction" not in scale_verdict(points((6, 40), (7, 41), (8, 42)), 3)


def test_the_worked_example_of_a_textbook_is_reproduced() -> None:
    # Anscombe, "Graphs in Statistical Analysis" (1973), first set: slope 0.500, error 0.118, intercept 3.00, R² 0.667.
    xs = [10.0, 8, 13, 9, 11, 14, 6, 4, 12, 7, 5]
    ys = [8.04, 6.95, 7.58, 8.81, 8.33, 9.96, 7.24, 4.26, 10.84, 4.82, 5.68]
    line = fit_line(list(zip(xs, ys, strict=True)))
    assert line is not None
    assert line.slope == pytest.approx(0.500, abs=5e-4)
    assert line.intercept == pytest.approx(3.00, abs=5e-3)
    assert line.r_squared == pytest.approx(0.667, abs=5e-4)
    assert line.slope_error == pytest.approx(0.118, abs=5e-4)
    assert line.slope_margin == pytest.approx(2.262 * 0.1179, abs=1e-3)


@given(st.lists(st.tuples(st.floats(5, 12), st.floats(0, 90)), min_size=3, max_size=20))
def test_slope_and_intercept_equal_those_of_numpy(points: list[tuple[float, float]]) -> None:
    xs, ys = [x for x, _ in points], [y for _, y in points]
    line = fit_line(points)
    if line is None:
        assert min(xs) == max(xs)
    elif max(xs) - min(xs) > 0.01:
        slope, intercept = np.polyfit(xs, ys, 1)
        assert (line.slope, line.intercept) == (pytest.approx(slope, abs=1e-4), pytest.approx(intercept, abs=1e-3))


def test_few_or_equal_points_have_no_line_no_margin_or_no_explained_share() -> None:
    for few in ([], [(6.0, 40.0)], [(6.0, 40.0), (6.0, 50.0)]):
        assert fit_line(few) is None
    two, level = fit_line([(6.0, 40.0), (7.0, 41.0)]), fit_line([(6.0, 40.0), (7.0, 40.0), (8.0, 40.0)])
    assert two is not None
    assert (two.slope_error, two.slope_margin) == (None, None)
    assert level is not None
    assert (level.slope, level.r_squared) == (0.0, None)


def test_the_margin_holds_the_true_slope_nineteen_times_in_twenty() -> None:
    random = np.random.default_rng(0)
    xs = [6.0, 6.5, 7.0, 8.0, 9.5]
    held = 0
    for _ in range(2000):
        line = fit_line([(x, 40 + 1.5 * x + random.normal()) for x in xs])
        assert line is not None
        assert line.slope_margin is not None
        held += abs(line.slope - 1.5) <= line.slope_margin
    assert held / 2000 == pytest.approx(0.95, abs=0.015)
