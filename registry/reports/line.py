"""A straight line through points by least squares, and how far its slope can be trusted. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """y = intercept + slope · x, fitted to `count` points."""

    count: int
    slope: float
    intercept: float
    r_squared: float | None
    """The share of y's variance that the line accounts for; None when y does not vary."""
    slope_error: float | None
    """Standard error of the slope; None below three points, which leave nothing to estimate it from."""

    @property
    def slope_margin(self) -> float | None:
        """Half the width of the slope's 95% interval, for independent points that scatter like a bell curve."""
        return None if self.slope_error is None else _student(self.count - 2) * self.slope_error


def fit_line(xs: Sequence[float], ys: Sequence[float]) -> Line | None:
    """The least-squares line; None when the points do not have two different x."""
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
"""Student's t at 97.5% for 1 to 30 degrees of freedom, the beginning of any printed table of it."""


def _student(freedom: int) -> float:
    """Above 30 degrees of freedom the value at 30, which is too wide by 4% at most."""
    return _STUDENT[min(freedom, len(_STUDENT)) - 1]
