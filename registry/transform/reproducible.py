"""Sums, ranks and functions of arrays with the same results on every x86 processor, and for any version of a library.

Only sorts, running sums and the elementwise + − × ÷ √ of IEEE 754 are used; numpy's sums and the sine of the C library
differ between processors. See `docs/design/purification.md`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

SUMMED_EXACTLY = 1024
"""At most so many values are summed by `fsum`, which takes 60 ns for each value."""
GATHERED_MAX = 1 << 20
"""Values among which a rank is found by sorting them: with their positions, 16 MiB."""


def total(values: Values) -> float:
    """Return the sum of a flat array by halving it; each halving has an error of about one rounding of float64."""
    folded = values
    while folded.size > SUMMED_EXACTLY:
        half = folded.size // 2
        remainder = folded[2 * half :]
        folded = folded[:half] + folded[half : 2 * half]
        folded[: remainder.size] += remainder
    return math.fsum(folded.tolist())


def row_totals(values: Values) -> Values:
    """Return the sum of each row of a matrix, by halving, as a matrix with one column."""
    folded = values
    while folded.shape[1] > 1:
        half = folded.shape[1] // 2
        remainder = folded[:, 2 * half :]
        folded = folded[:, :half] + folded[:, half : 2 * half]
        folded[:, : remainder.shape[1]] += remainder
    return folded


@dataclass(frozen=True, slots=True)
class Cut:
    """The border between the largest values of a sequence and the others. Of equal values, the first are larger."""

    value: float
    last: int
    """The position of the last value that is equal to `value` and on the side of the large ones."""

    def holds(self, start: int, values: Values) -> NDArray[np.bool_]:
        """Return which of `values`, of which the first has the position `start`, are among the largest."""
        held = values > self.value
        positions = self.last - start + 1
        if positions > 0:
            held.reshape(-1)[:positions] |= values.reshape(-1)[:positions] == self.value
        return held


NOTHING, EVERYTHING = Cut(math.inf, -1), Cut(-1.0, -1)


def cuts(arrays: Callable[[], Iterable[Values]], size: int, counts: Sequence[int]) -> list[Cut]:
    """Return the cut below the `count` largest values, for each of `counts`.

    Each call of `arrays` must yield the same arrays, together `size` values that are finite and not negative. It is
    called two to five times, however many counts there are.
    """
    borders = {count: NOTHING if count <= 0 else EVERYTHING for count in counts if count <= 0 or count >= size}
    # The bits of floats that are not negative have the order of the floats.
    searched = {count: _Search(0, count) for count in counts if count not in borders}
    for shift in (48, 32, 16, 0):
        if not searched:
            break
        _narrow(arrays, shift, searched)
        bins = {search.bits: search.within for search in searched.values()}
        if sum(bins.values()) <= GATHERED_MAX:
            borders |= _gathered(arrays, shift, searched)
            searched = {}
    for count, search in searched.items():  # more than GATHERED_MAX values are equal to the value at the cut
        value = float(np.array(search.bits, np.uint64).view(np.float64))
        borders[count] = Cut(value, _position(arrays, value, search.rank))
    return [borders[count] for count in counts]


@dataclass(slots=True)
class _Search:
    """The search for one cut."""

    bits: int
    """The upper bits of the value at the cut that are known."""
    rank: int
    """Its rank among the values with these bits, the largest is 1."""
    within: int = 0
    """The number of values with these bits."""


def _narrow(arrays: Callable[[], Iterable[Values]], shift: int, searched: dict[int, _Search]) -> None:
    """Find 16 more bits of each search, those from number `shift` on."""
    known = {search.bits: np.zeros(1 << 16, np.int64) for search in searched.values()}
    for array in arrays():
        upper = array.reshape(-1).view(np.uint64) >> np.uint64(shift)
        for bits, histogram in known.items():
            inside = upper if shift == 48 else upper[upper >> np.uint64(16) == bits]
            histogram += np.bincount((inside & np.uint64(0xFFFF)).astype(np.intp), minlength=1 << 16)
    for search in searched.values():
        descending = known[search.bits][::-1]
        sums = np.cumsum(descending)
        index = int(np.searchsorted(sums, search.rank))
        search.rank -= int(sums[index] - descending[index])
        search.within = int(descending[index])
        search.bits = search.bits << 16 | (0xFFFF - index)


def _gathered(arrays: Callable[[], Iterable[Values]], shift: int, searched: dict[int, _Search]) -> dict[int, Cut]:
    """Return the cuts, by sorting the values that have the known bits."""
    values: dict[int, list[Values]] = {search.bits: [] for search in searched.values()}
    positions: dict[int, list[NDArray[np.intp]]] = {bits: [] for bits in values}
    start = 0
    for array in arrays():
        flat = array.reshape(-1)
        upper = flat.view(np.uint64) >> np.uint64(shift)
        for bits in values:
            found = np.flatnonzero(upper == bits)
            values[bits].append(flat[found])
            positions[bits].append(found + start)
        start += flat.size
    borders = {}
    for count, search in searched.items():
        inside, places = np.concatenate(values[search.bits]), np.concatenate(positions[search.bits])
        order = np.argsort(-inside, kind="stable")
        last = order[search.rank - 1]
        borders[count] = Cut(float(inside[last]), int(places[last]))
    return borders


def _position(arrays: Callable[[], Iterable[Values]], value: float, rank: int) -> int:
    """Return the position of the value number `rank`, counted from 1, of those equal to `value`."""
    start = seen = 0
    for array in arrays():
        equal = np.flatnonzero(array.reshape(-1) == value)
        if seen + equal.size >= rank:
            return start + int(equal[rank - seen - 1])
        seen += equal.size
        start += array.size
    raise AssertionError("there are fewer equal values than were counted")


LN_2_HIGH, LN_2_LOW = 0.6931471803691238, 1.9082149292705877e-10
"""The natural logarithm of 2 as a sum; products of the first with whole numbers up to 2^11 are exact."""
_EXPONENTIAL = tuple(1.0 / math.factorial(power) for power in range(14))
SINE_TERMS, LOGARITHM_TERMS, ANGLE_STEPS = 13, 12, 8


def exponential(values: Values) -> Values:
    """Return e to the power of `values`, which are at most 0, with an error of about two roundings."""
    halvings = np.rint(np.maximum(values, -745.0) * 1.4426950408889634)
    rest = np.maximum(values, -745.0) - halvings * LN_2_HIGH - halvings * LN_2_LOW
    power = np.full_like(rest, _EXPONENTIAL[-1])
    for coefficient in _EXPONENTIAL[-2::-1]:
        power *= rest
        power += coefficient
    return np.ldexp(power, halvings.astype(np.int32))


def logarithm(values: Values) -> Values:
    """Return the natural logarithm of positive `values`: 2 · artanh((m − 1) / (m + 1)) + e · ln 2 of m · 2^e."""
    mantissa, exponent = np.frexp(values)
    small = mantissa < math.sqrt(0.5)
    mantissa = np.where(small, mantissa * 2.0, mantissa)
    powers = exponent - small
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square = ratio * ratio
    series = np.full_like(ratio, 1.0 / (2 * LOGARITHM_TERMS + 1))
    for term in range(LOGARITHM_TERMS - 1, -1, -1):
        series = series * square + 1.0 / (2 * term + 1)
    return 2.0 * ratio * series + powers * LN_2_LOW + powers * LN_2_HIGH


def sine(angle: float) -> float:
    """Return the sine of an angle, by its series about 0 or π."""
    rest = angle - 2.0 * math.pi * round(angle / (2.0 * math.pi))
    near = min(abs(rest), math.pi - abs(rest))
    term = result = near
    for number in range(1, SINE_TERMS):
        term *= -near * near / (2 * number * (2 * number + 1))
        result += term
    return result if rest >= 0.0 else -result


def cosine(angle: float) -> float:
    """Return the cosine of an angle."""
    return sine(math.pi / 2.0 - angle)


def angle_of(first: float, second: float, product: float) -> float:
    """Return the angle between two vectors with these norms and this inner product, in radians from 0 to π.

    By Newton's method for the sine of half of it, or of half of the rest to π.
    """
    if not first or not second:
        return 0.0
    ratio = min(1.0, max(-1.0, product / first / second))
    half_sine = math.sqrt((1.0 - abs(ratio)) / 2.0)  # of the acute angle
    half = half_sine
    for _ in range(ANGLE_STEPS):
        value = sine(half)
        half += (half_sine - value) / math.sqrt(1.0 - value * value)
    return 2.0 * half if ratio >= 0.0 else math.pi - 2.0 * half


def random_words(key: str, size: int) -> NDArray[np.uint64]:
    """Return `size` random integers of 53 bits that depend only on `key`: those of Philox 4x64, as numpy has it.

    J. K. Salmon and others, "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """
    seed = int.from_bytes(hashlib.sha256(key.encode()).digest()[:16], "little")
    return np.random.Philox(key=seed).random_raw(size) >> np.uint64(11)
