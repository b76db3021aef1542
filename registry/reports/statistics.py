"""Quartiles, a line through points by least squares, and families of models that share weights. Pure."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from organs.registry.lineage import Groups
from organs.registry.relatives.resolve import folded

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


@dataclass(frozen=True, slots=True)
class Member:
    """A model as far as kinship shows: its id, its title, the names of the parents that it declares."""

    model_id: int
    title: str | None
    declared_parents: tuple[str, ...] = ()


def families_of(members: Sequence[Member], known_edges: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """The ids of `members` in groups, each in the order of `members`, as are the groups by their first member.

    Two are of one family when an edge joins them (ids of other models may stand between), when they have the same
    title, when they declare the same parent, or when one declares a parent whose name begins with the other's title
    (`org/Zoo A v1.0` with `Zoo A`: the longest title counts); case, accents and punctuation make no difference. When
    in doubt this joins: taking strangers for kin makes a statement about all models weaker, taking kin for strangers
    makes it wrong.
    """
    groups = Groups()
    titles = {title for member in members if (title := folded(member.title or ""))}
    for child, parent in known_edges:
        groups.join(child, parent)
    for member in members:
        if title := folded(member.title or ""):
            groups.join(member.model_id, title)
        for declared in filter(folded, member.declared_parents):
            groups.join(member.model_id, _title_in(declared, titles) or folded(declared))
    found: dict[Hashable, list[int]] = {}
    for member in members:
        found.setdefault(groups.leader(member.model_id), []).append(member.model_id)
    return [tuple(group) for group in found.values()]


def _title_in(declared: str, titles: set[str]) -> str | None:
    """The longest of `titles` that `declared` begins with, with or without its organisation."""
    words = folded(declared.partition("/")[2] or declared).split(" ")
    candidates = (" ".join(words[:count]) for count in range(len(words), 0, -1))
    return next((candidate for candidate in candidates if candidate in titles), None)
