"""How a set of numbers is spread: mean, standard deviation, quartiles. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

QUARTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class Spread:
    """What there is to say about a set of numbers; everything but the count is None when it is empty."""

    count: int
    mean: float | None = None
    deviation: float | None = None
    """The standard deviation of exactly these numbers (divided by their count)."""
    minimum: float | None = None
    lower: float | None = None
    """The lower quartile: a quarter of the numbers lie below it."""
    median: float | None = None
    upper: float | None = None
    maximum: float | None = None


def spread_of(values: Iterable[float]) -> Spread:
    """The spread of `values`, in any order. Quartiles are interpolated between neighbours."""
    ordered = sorted(values)
    count = len(ordered)
    if not count:
        return Spread(0)
    mean = math.fsum(ordered) / count
    variance = math.fsum((value - mean) ** 2 for value in ordered) / count
    ranks = {rank: ordered[rank] for share in QUARTILES for rank in quantile_ranks(count, share)}
    lower, median, upper = (quantile(count, share, ranks) for share in QUARTILES)
    return Spread(count, mean, math.sqrt(variance), ordered[0], lower, median, upper, ordered[-1])


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are there; None when none is."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


def deviation_of_means(mean: float, square_mean: float) -> float:
    """The standard deviation from the mean and the mean of the squares; 0 where rounding would make it imaginary."""
    return math.sqrt(max(square_mean - mean * mean, 0.0))


def quantile_ranks(count: int, share: float) -> tuple[int, int]:
    """The ranks, counted from 0, of the two numbers that the quantile lies between."""
    below = int((count - 1) * share)
    return below, min(below + 1, count - 1)


def quantile(count: int, share: float, at_rank: Sequence[float] | dict[int, float]) -> float:
    """The quantile from the numbers at `quantile_ranks`, by linear interpolation."""
    below, above = quantile_ranks(count, share)
    low, high = at_rank[below], at_rank[above]
    return low + (high - low) * ((count - 1) * share - below)
