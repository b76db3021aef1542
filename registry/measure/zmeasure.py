"""The Z-measure, method "z1": Z = dI/d(log s) · exp(iθ), computed from a sorted sample and its moments."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from organs.registry.gguf.quants import Floats, decode
from organs.registry.gguf.types import dtype_by_name
from organs.registry.measures import COHERENCE, ENTROPY, KURTOSIS

SAFE_EXPONENT = 150
"""For numbers within 2^±150, sums of fourth powers of them and of their differences stay within float64.

Every float32 is within this range.
"""
RADIX_MIN_VALUES = 4096
"""Fewer values are sorted as float32: the passes of a radix sort have a fixed cost."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A sorted sample with its counts and moments. Moments and extremes are None without a finite value."""

    ascending: NDArray[np.float64]
    """The finite values in ascending order, multiplied by a power of two."""
    sample_size: int
    """The number of values in the sample, including NaN and infinities."""
    nan_count: int
    infinite_count: int
    constant: bool
    """Whether there are finite values and all of them are equal."""
    mean: float | None
    standard_deviation: float | None
    minimum: float | None
    maximum: float | None
    excess_kurtosis: float | None
    """The fourth standardised moment minus 3 (Fisher); None for a constant sample."""


def summarise(values: Floats) -> Summary:
    """Return the summary of `values` (flat). NaN and infinities are counted, but not used for the moments."""
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
    """Return `values` and 0 if `peak`, their largest absolute value, is within 2^±150; otherwise values / 2^e and e.

    The scaled values are within ±1.
    """
    exponent = int(np.frexp(peak)[1])
    if abs(exponent) <= SAFE_EXPONENT:
        return values, 0
    return np.ldexp(values, -exponent), exponent


def _finite_in_order(values: Floats) -> tuple[Floats, int, int]:
    """Return the finite values in ascending order, the number of NaN, and the number of infinities."""
    ordered = _sorted_by_radix(values)
    if ordered is None:
        ordered = values.copy()
        with np.errstate(invalid="ignore"):  # signalling NaNs
            ordered.sort()  # not as float64: float32 takes three quarters of the time
    # NaN comes last; infinities are at both ends of the other values.
    first = int(ordered.searchsorted(-np.inf, side="right"))
    last = int(ordered.searchsorted(np.inf, side="left"))
    numbers = int(ordered.searchsorted(np.inf, side="right"))
    return ordered[first:last], values.size - numbers, first + numbers - last


def _sorted_by_radix(values: Floats) -> Floats | None:
    """Return `values` in ascending order if all of them are values of BF16 or of F16, and none is NaN; else None.

    As 16-bit integers they are sorted by radix. On AMD Zen 4, where numpy's AVX-512 sort is slow, this takes a quarter
    of the time of a sort of float32; on other processors it takes as long.
    """
    if values.dtype != np.float32 or values.size < RADIX_MIN_VALUES:
        return None
    bits = values.view(np.uint32)
    if not (bits & np.uint32(0xFFFF)).any():
        dtype, codes = dtype_by_name("BF16"), (bits >> np.uint32(16)).astype(np.uint16)
    else:
        dtype = dtype_by_name("F16")
        for part in (values[:RADIX_MIN_VALUES], values):  # other values show it soon
            with np.errstate(all="ignore"):
                codes = part.astype(np.float16).view(np.uint16)
            if not np.array_equal(decode(codes.data.cast("B"), dtype), part):
                return None

    def inverted_if_negative(codes: NDArray[np.int16]) -> NDArray[np.int16]:
        """Invert all bits of negative values but the sign: integers then have the order of the floats, and back."""
        return codes ^ ((codes >> np.int16(15)) & np.int16(0x7FFF))

    keys = inverted_if_negative(codes.view(np.int16))
    keys.sort(kind="stable")  # radix
    ordered = decode(inverted_if_negative(keys).data.cast("B"), dtype)
    return None if np.isnan(ordered[[0, -1]]).any() else ordered


THETA_MIN_VALUES = 64
"""θ is not measured for fewer finite values."""
MAGNITUDE_MIN_VALUES = 256
"""|Z| is not measured for fewer finite values."""
QUANTILES = (0.0005, 0.9995)
"""The range of the histogram. With minimum and maximum instead, a single outlier would decide θ."""

VALUES_PER_BIN = 16
BINS_MIN, BINS_MAX = 8, 256
MAGNITUDE_VALUES_PER_BIN = 8
MAGNITUDE_BINS_MIN, MAGNITUDE_BINS_MAX = 16, 1024


@dataclass(frozen=True, slots=True)
class ZReading:
    """A reading. A value that could not be measured is None; `reason` says why in a sentence."""

    theta: float | None = None
    """Degrees, 0 (noise) to 90 (signal)."""
    magnitude: float | None = None
    """|Z|, bits gained per doubling of the resolution: 1 for a smooth distribution, less for a few distinct values."""
    signal: float | None = None
    """sin θ."""
    entropy: float | None = None
    """H, as a share of the maximum for the number of bins. It is an estimate, so it may be slightly above 1."""
    kurtosis: float | None = None
    """Excess kurtosis k."""
    coherence: float | None = None
    """Scale coherence c."""
    reason: str | None = None


def zmeasure(summary: Summary) -> ZReading:
    """Return the Z-measure of a sample."""
    count = summary.ascending.size
    if count < THETA_MIN_VALUES:
        return ZReading(reason=f"fewer than {THETA_MIN_VALUES} finite values")
    if summary.constant:
        return ZReading(0.0, 0.0, 0.0, reason="every sampled value is the same")
    assert summary.excess_kurtosis is not None
    bins = _power_of_two_below(count // VALUES_PER_BIN, BINS_MIN, BINS_MAX)
    finest = max(bins, _power_of_two_below(count // MAGNITUDE_VALUES_PER_BIN, BINS_MIN, MAGNITUDE_BINS_MAX))
    histogram = _histogram(summary.ascending, finest)
    entropy = _entropy_bits(histogram, bins) / math.log2(bins)
    # The coefficient of variation of the gaps between evenly spaced order statistics (Vasicek's m-spacings).
    gap_count = min(max(count // VALUES_PER_BIN, BINS_MIN), BINS_MAX)
    gaps = np.diff(summary.ascending[np.arange(gap_count + 1) * (count - 1) // gap_count])
    coherence = float(gaps.std() / gaps.mean())
    scores = ENTROPY.of(entropy) + KURTOSIS.of(summary.excess_kurtosis) + COHERENCE.of(coherence)
    theta = 90.0 * scores / 3
    magnitude = None
    if count >= MAGNITUDE_MIN_VALUES:
        # The slope of the entropy in bits over log2 of the number of bins: least squares over all powers of two.
        levels = np.arange(int(math.log2(MAGNITUDE_BINS_MIN)), int(math.log2(finest)) + 1)
        entropies = np.array([_entropy_bits(histogram, 1 << int(level)) for level in levels])
        offsets = levels - levels.mean()
        magnitude = float(offsets @ entropies / (offsets @ offsets))
    return ZReading(
        theta=theta,
        magnitude=magnitude,
        signal=math.sin(math.radians(theta)),
        entropy=entropy,
        kurtosis=summary.excess_kurtosis,
        coherence=coherence,
        reason=None if magnitude is not None else f"|Z| needs {MAGNITUDE_MIN_VALUES} finite values",
    )


def _histogram(ascending: NDArray[np.float64], bins: int) -> NDArray[np.int64]:
    """Return the counts in equal bins between the two quantiles; values outside are counted in the end bins.

    A value on an edge belongs to the bin above it. `bins` is a power of two, so that pairs of bins are exactly the bins
    of the next coarser histogram.
    """
    low, high = (_quantile(ascending, share) for share in QUANTILES)
    edges = low + (high - low) * (np.arange(1, bins) / bins)
    below = np.empty(bins + 1, np.int64)
    below[0], below[-1] = 0, ascending.size
    below[1:-1] = ascending.searchsorted(edges)
    return np.diff(below)


def _entropy_bits(histogram: NDArray[np.int64], bins: int) -> float:
    """Return the Shannon entropy in bits of the histogram with fewer `bins`.

    It has the Miller-Madow correction: plus (occupied bins - 1) / 2n nats.
    """
    counts: NDArray[np.int64] = histogram.reshape(bins, -1).sum(axis=1)
    occupied = counts[counts > 0]
    total = int(occupied.sum())
    shares = occupied / total
    plain = -float(shares @ np.log2(shares))
    return plain + (occupied.size - 1) / (2 * total * math.log(2))


def _quantile(ascending: NDArray[np.float64], share: float) -> float:
    """Return the quantile `share`, by linear interpolation between order statistics."""
    position = (ascending.size - 1) * share
    below = int(position)
    above = min(below + 1, ascending.size - 1)
    return float(ascending[below] + (ascending[above] - ascending[below]) * (position - below))


def _power_of_two_below(limit: int, smallest: int, largest: int) -> int:
    """Return the largest power of two not above `limit`, at least `smallest` and at most `largest`."""
    return min(max(1 << max(limit.bit_length() - 1, 0), smallest), largest)
