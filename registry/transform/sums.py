"""Sums and moments that are equal on every processor.

`numpy.sum` adds in an order that depends on the width of the processor's registers. Here arrays are folded by additions
of whole halves, each of which IEEE 754 decides to the last bit, and what remains is summed exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SUMMED_EXACTLY = 1024
"""So few values are left to `fsum`, which takes 60 ns for each of them."""


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean and sum of squared deviations of some values; of none, all are 0."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """The sum of the squared deviations from the mean."""

    @property
    def standard_deviation(self) -> float:
        """That of these values themselves: squares over the count."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0

    def with_more(self, more: Moments) -> Moments:
        """The moments of both together.

        T. F. Chan, G. H. Golub and R. J. LeVeque, "Updating formulae and a pairwise algorithm for computing sample
        variances" (1979).
        """
        count = self.count + more.count
        if count == 0:
            return self
        distance = more.mean - self.mean
        share = more.count / count
        return Moments(
            count, self.mean + distance * share, self.squares + more.squares + distance * distance * self.count * share
        )


def total(values: NDArray[np.float64]) -> float:
    """The sum of a flat array, to about one rounding of float64 for each of its halvings."""
    folded = values
    while folded.size > SUMMED_EXACTLY:
        half = folded.size // 2
        left_over = folded[2 * half :]
        folded = folded[:half] + folded[half : 2 * half]
        folded[: left_over.size] += left_over
    return math.fsum(folded.tolist())


def moments(values: NDArray[np.float64]) -> Moments:
    """The moments of a flat array of finite values within 2^±500."""
    if values.size == 0:
        return Moments()
    mean = total(values) / values.size
    deviations = values - mean
    deviations *= deviations
    return Moments(values.size, mean, total(deviations))
