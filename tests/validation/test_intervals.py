"""Tests of intervals: Student's t, the sizes of looks, and that all looks together hold with 95%."""

from __future__ import annotations

import math
import random

import pytest

from organs.registry.validation.intervals import MeanInterval, interval_of, looks, student_quantile


@pytest.mark.parametrize(
    ("probability", "freedom", "quantile"),
    [
        (0.975, 1, 12.7062),
        (0.975, 2, 4.3027),
        (0.975, 3, 3.1824),
        (0.995, 4, 4.6041),
        (0.975, 15, 2.1314),
        (0.995, 30, 2.7500),
        (0.975, 120, 1.9799),
        (0.975, 10_000, 1.9600),
        (0.5, 7, 0.0),
    ],
)
def test_quantiles_are_those_of_printed_tables(probability: float, freedom: int, quantile: float) -> None:
    assert student_quantile(probability, freedom) == pytest.approx(quantile, abs=2e-4)


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(1, (1,)), (7, (7,)), (8, (4, 8)), (24, (6, 12, 24)), (1000, (7, 15, 31, 62, 125, 250, 500, 1000))],
)
def test_a_sample_is_examined_at_its_end_and_at_halves_of_it(count: int, sizes: tuple[int, ...]) -> None:
    assert looks(count) == sizes


def test_an_interval_has_the_mean_and_the_margin_of_students_t() -> None:
    interval = interval_of([1.0, 2.0, 3.0, 4.0], 1)
    assert interval is not None
    assert (interval.mean, interval.count) == (2.5, 4)
    assert interval.error == pytest.approx(math.sqrt(5.0 / 3.0 / 4.0))
    assert interval.margin == pytest.approx(3.1824 * interval.error, rel=1e-4)
    assert interval_of([1.0, 2.0, 3.0], 1) is None


def test_the_needed_size_grows_with_the_square_of_margin_over_distance() -> None:
    interval = MeanInterval(0.01, 0.04, 0.02, 16)
    assert not interval.excludes(0.0)
    assert interval.count_to_exclude(0.0) == 256
    assert interval.count_to_exclude(0.01) is None
    assert interval.excludes(0.051)


def test_the_truth_leaves_the_interval_at_any_look_in_at_most_one_of_twenty_samples() -> None:
    generator, missed, samples = random.Random(1), 0, 1500
    sizes = looks(32)
    for _ in range(samples):
        values = [generator.gauss(0.0, 1.0) * generator.choice((0.5, 1.0, 2.0)) for _ in range(sizes[-1])]
        intervals = (interval_of(values[:size], len(sizes)) for size in sizes)
        missed += any(interval is not None and interval.excludes(0.0) for interval in intervals)
    assert missed / samples < 0.055
    assert missed > 0
