"""Confidence intervals for a mean that is looked at several times while the sample grows. Pure.

A sample is examined at a fixed number of sizes, its *looks*. Each interval has the level 1 - ALPHA / (number of looks),
so by Bonferroni's inequality all intervals together hold with at least 95%, also when the sampling stops at the first
look that settles a question.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

ALPHA = 0.05
LOOK_MIN = 4
"""The smallest size of a sample that is looked at: with fewer values, Student's t makes any interval useless."""
_NORMAL_FROM = 400
"""From so many degrees of freedom on, Student's t is replaced by the normal distribution: 0.3% narrower."""


@dataclass(frozen=True, slots=True)
class MeanInterval:
    """An estimated mean with its margin: the mean lies within `mean` ± `margin` with the level of `interval_of`."""

    mean: float
    margin: float
    error: float
    """The standard error of the mean."""
    count: int
    """The size of the sample."""

    @property
    def low(self) -> float:
        return self.mean - self.margin

    @property
    def high(self) -> float:
        return self.mean + self.margin

    def excludes(self, value: float) -> bool:
        """Return whether `value` lies outside of the interval."""
        return abs(self.mean - value) > self.margin

    def count_to_exclude(self, value: float) -> int | None:
        """Return the size of a sample that would exclude `value`, if mean and deviation stay; None if no size would."""
        distance = abs(self.mean - value)
        if distance == 0.0:
            return None
        needed = self.count * (self.margin / distance) ** 2
        return max(self.count, math.ceil(needed)) if needed < 1e12 else None


def looks(count: int) -> tuple[int, ...]:
    """Return the sizes at which a sample of at most `count` values is examined: `count`, half of it, a quarter, ..."""
    sizes = [count]
    while sizes[-1] // 2 >= LOOK_MIN:
        sizes.append(sizes[-1] // 2)
    return tuple(reversed(sizes))


def interval_of(
    values: Sequence[float], look_count: int, alpha: float = ALPHA, least: int = LOOK_MIN
) -> MeanInterval | None:
    """Return the interval of the mean of `values` at one of `look_count` looks, of the level 1 - `alpha`.

    None for fewer than `least` values (two or more), and if mean or deviation are not finite.
    """
    count = len(values)
    if count < least:
        return None
    mean = sum(values) / count
    error = math.sqrt(sum((value - mean) * (value - mean) for value in values) / (count - 1) / count)
    if not math.isfinite(mean) or not math.isfinite(error):
        return None
    return MeanInterval(mean, student_quantile(1.0 - alpha / (2 * look_count), count - 1) * error, error, count)


def interval_around(samples: Sequence[Sequence[float]], alpha: float = ALPHA) -> MeanInterval | None:
    """Return the interval of the mean of all values of several samples, each of which varies around its own mean.

    The deviation within the samples is taken as one. None for fewer than two degrees of freedom, and if mean or
    deviation are not finite.
    """
    filled = [sample for sample in samples if sample]
    count, means = sum(map(len, filled)), [sum(sample) / len(sample) for sample in filled]
    freedom = count - len(filled)
    if freedom < 2:
        return None
    mean = sum(map(sum, filled)) / count
    squares = sum((value - own) ** 2 for sample, own in zip(filled, means, strict=True) for value in sample)
    error = math.sqrt(squares / freedom / count)
    if not math.isfinite(mean) or not math.isfinite(error):
        return None
    return MeanInterval(mean, student_quantile(1.0 - alpha / 2.0, freedom) * error, error, count)


@lru_cache(maxsize=1024)
def student_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t with `freedom` degrees of freedom, for a `probability` of 0.5 to below 1."""
    if freedom >= _NORMAL_FROM:
        return NormalDist().inv_cdf(probability)
    low, high = 0.0, 1.0
    while _student_cdf(high, freedom) < probability:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = (low + high) / 2.0
        if _student_cdf(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def _student_cdf(value: float, freedom: int) -> float:
    """Return P(T <= value) for value >= 0: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 4."""
    angle = math.atan(value / math.sqrt(freedom))
    cosine_squared = math.cos(angle) ** 2
    if freedom % 2:
        term, total = math.cos(angle), 0.0
        for number in range(1, (freedom - 1) // 2 + 1):
            total += term
            term *= cosine_squared * (2 * number) / (2 * number + 1)
        inside = 2.0 / math.pi * (angle + math.sin(angle) * total)
    else:
        term, total = 1.0, 0.0
        for number in range(1, freedom // 2 + 1):
            total += term
            term *= cosine_squared * (2 * number - 1) / (2 * number)
        inside = math.sin(angle) * total
    return 0.5 + 0.5 * inside
