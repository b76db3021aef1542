"""Quartiles, and a line fitted by least squares. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

QUARTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution of a set of numbers; all values but the count are None if it is empty."""

    count: int
    mean: float | None = None
    deviation: float | None = None
    """The standard deviation of these numbers (divided by their count)."""
    minimum: float | None = None
    lower: float | None = None
    """The lower quartile: a quarter of the numbers are below it."""
    median: float | None = None
    upper: float | None = None
    maximum: float | None = None


def distribution_of(values: Iterable[float]) -> Distribution:
    """Return the distribution of `values`, in any order. Quartiles are interpolated between neighbours."""
    ordered = sorted(values)
    count = len(ordered)
    if not count:
        return Distribution(0)
    mean = math.fsum(ordered) / count
    variance = math.fsum((value - mean) ** 2 for value in ordered) / count
    ranks = {rank: ordered[rank] for share in QUARTILES for rank in quantile_ranks(count, share)}
    lower, median, upper = (quantile(count, share, ranks) for share in QUARTILES)
    return Distribution(count, mean, math.sqrt(variance), ordered[0], lower, median, upper, ordered[-1])


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if there are none."""
    numbers = [value for value in values if value is not None]
    return math.fsum(numbers) / len(numbers) if numbers else None


def deviation_of_means(mean: float, square_mean: float) -> float:
    """Return the standard deviation from the mean and the mean of the squares; 0 if rounding makes it imaginary."""
    return math.sqrt(max(square_mean - mean * mean, 0.0))


def quantile_ranks(count: int, share: float) -> tuple[int, int]:
    """Return the ranks, counted from 0, of the two numbers around the quantile."""
    below = int((count - 1) * share)
    return below, min(below + 1, count - 1)


def quantile(count: int, share: float, at_rank: Sequence[float] | dict[int, float]) -> float:
    """Return the quantile from the numbers at `quantile_ranks`, by linear interpolation."""
    below, above = quantile_ranks(count, share)
    low, high = at_rank[below], at_rank[above]
    return low + (high - low) * ((count - 1) * share - below)


@dataclass(frozen=True, slots=True)
class Line:
    """y = intercept + slope · x, fitted to `count` points."""

    count: int
    slope: float
    intercept: float
    r_squared: float | None
    """The share of the variance of y that the line explains; None if y does not vary."""
    slope_error: float | None
    """The standard error of the slope; None for fewer than three points."""

    @property
    def slope_margin(self) -> float | None:
        """Half the width of the 95% interval of the slope, for independent points with normal errors."""
        return None if self.slope_error is None else _student(self.count - 2) * self.slope_error


def fit_line(xs: Sequence[float], ys: Sequence[float]) -> Line | None:
    """Return the least-squares line; None if all points have the same x."""
    count = len(xs)
    if count < 2 or min(xs) == max(xs):
        return None
    mean_x, mean_y = math.fsum(xs) / count, math.fsum(ys) / count
    square_x = math.fsum((x - mean_x) ** 2 for x in xs)
    square_y = math.fsum((y - mean_y) ** 2 for y in ys)
    slope = math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / square_x
    intercept = mean_y - slope * mean_x
    residual = math.fsum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    error = math.sqrt(residual / (count - 2) / square_x) if count > 2 else None
    return Line(count, slope, intercept, 1 - residual / square_y if square_y else None, error)


_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t at 97.5% for 1 to 30 degrees of freedom, from printed tables."""


def _student(freedom: int) -> float:
    """Return Student's t; above 30 degrees of freedom the value for 30, which is at most 4% too wide."""
    return _STUDENT[min(freedom, len(_STUDENT)) - 1]
