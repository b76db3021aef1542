"""A sample in order: sorted once, with its moments, so that every other figure is read off it.

All arithmetic is in float64. Values that came as float64 (F64, I64) are first scaled by a power of two when they are so
large or small that a fourth power would leave float64's range; shape is measured, and a scale does not change it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from organs.registry.gguf.quants import Floats

SAFE_EXPONENT = 150
"""Sums of fourth powers of numbers within 2^±150, and of their differences, stay within float64; every float32 is."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What a sample says before any method looks at it. Moments and extremes are None without a finite value."""

    ascending: NDArray[np.float64]
    """The finite values in order, times a power of two."""
    sample_size: int
    """How many values were looked at, NaN and infinities among them."""
    nan_count: int
    infinite_count: int
    constant: bool
    """Whether there is a finite value, and all are equal to it."""
    mean: float | None
    standard_deviation: float | None
    minimum: float | None
    maximum: float | None
    excess_kurtosis: float | None
    """The fourth standardised moment minus 3 (Fisher); None for a constant."""


def summarise(values: Floats) -> Summary:
    """The summary of `values` (flat); NaN and infinities are counted and left out."""
    ordered, nan_count, infinite_count = _finite_in_order(values)
    if ordered.size == 0:
        empty = ordered.astype(np.float64)
        return Summary(empty, values.size, nan_count, infinite_count, False, None, None, None, None, None)
    minimum, maximum = float(ordered[0]), float(ordered[-1])
    ascending, exponent = scaled(ordered.astype(np.float64, copy=False), max(abs(minimum), abs(maximum)))
    if minimum == maximum:
        counts = (values.size, nan_count, infinite_count)
        return Summary(ascending, *counts, True, minimum, 0.0, minimum, maximum, None)
    mean = ascending.mean()
    squares = ascending - mean
    squares *= squares
    variance = squares.mean()
    return Summary(
        ascending=ascending,
        sample_size=values.size,
        nan_count=nan_count,
        infinite_count=infinite_count,
        constant=False,
        mean=float(np.ldexp(mean, exponent)),
        standard_deviation=float(np.ldexp(np.sqrt(variance), exponent)),
        minimum=minimum,
        maximum=maximum,
        excess_kurtosis=float((squares @ squares) / squares.size / (variance * variance)) - 3.0,
    )


def scaled(values: NDArray[np.float64], peak: float) -> tuple[NDArray[np.float64], int]:
    """`values` and 0 when `peak`, the largest absolute value, is within 2^±150; else values / 2^e within ±1, and e."""
    exponent = int(np.frexp(peak)[1])
    if abs(exponent) <= SAFE_EXPONENT:
        return values, 0
    return np.ldexp(values, -exponent), exponent


def _finite_in_order(values: Floats) -> tuple[Floats, int, int]:
    """The finite values sorted, and the numbers of NaN and of infinities."""
    ordered = values.copy()
    with np.errstate(invalid="ignore"):  # signalling NaNs
        ordered.sort()  # in its own dtype: float32 takes three quarters of the time of float64
    # NaN stands last, infinities at both ends of the rest.
    first = int(ordered.searchsorted(-np.inf, side="right"))
    last = int(ordered.searchsorted(np.inf, side="left"))
    numbers = int(ordered.searchsorted(np.inf, side="right"))
    return ordered[first:last], values.size - numbers, first + numbers - last
