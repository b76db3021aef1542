"""How alike two organs or two models are, by their fingerprints.

The correlation of two fingerprints estimates the correlation of the two organs: near 1 for a fine-tune or a
quantisation, 0.00 ± 0.07 for strangers. Norms, biases and rope tables are alike in unrelated models and would lift a
model's similarity; so only matrices are compared, each with the one of its shape at its place. A likeness has no
direction: it never says which of two models was there first.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from organs.registry.anatomy import Slot
from organs.registry.gguf.types import dtype_by_name

NOISE = 0.07
"""Standard deviation of the correlation of two unrelated organs."""
NOISE_LIMIT = 5.0
"""As many deviations above nothing is more than chance, also for the luckiest of a million pairs."""
CLOSE = 0.98
"""From here on grafts between two models were harmless: quantisations and light fine-tunes are here."""
RELATED = 0.2
"""Below this nothing is called related."""

ROUNDING = 3.0
"""Correlation lost by rounding to b bits a value is at most this times 4^-b: about 1 for even steps over ±2.4
deviations, 1.1 to 1.5 measured (Q2_K, Q4_K, IQ4_NL); twice that is granted."""
FINGERPRINT_ROUNDING = 0.0005
"""Correlation lost because a fingerprint has 32 steps a deviation."""

CUT_AT = 127
"""Steps at which a fingerprint cuts values off: 4 deviations."""
OUTLIERS_MAX = 4
"""As many of 256 values may be left out of a correlation, because only one of the two is cut off there. More of them
are no accident but what the organs are like: then nothing is left out."""

PAIRS_AT_ONCE = 8192
"""Pairs of fingerprints that are computed together: some tens of megabytes."""


Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Organ:
    """What two models are compared by at one place."""

    type: str
    shape: tuple[int, ...]
    dtype: str
    fingerprint: bytes | None
    """256 signed bytes; None where there are fewer values, or none that can be read."""
    identity: Hashable
    """Equal exactly for equal bytes of one dtype and shape."""

    @property
    def is_matrix(self) -> bool:
        """Whether it has two dimensions or more; a length of 1 is none."""
        return _is_matrix(self.shape)

    @property
    def is_constant(self) -> bool:
        """Whether its fingerprint is that of equal values. Two unrelated models may both have a matrix of zeros."""
        return self.fingerprint is not None and len(set(self.fingerprint)) == 1


class Kinship(StrEnum):
    """What a similarity is called."""

    CLOSE = "close"
    KIN = "kin"
    UNRELATED = "unrelated"
    INCOMPARABLE = "incomparable"


@dataclass(frozen=True, slots=True)
class Similarity:
    """How alike two models are: means of the correlations of the matrices that they share."""

    mean: float | None
    """Over all compared organs; None when there is none."""
    organ_count: int
    """How many organs were compared."""
    first_count: int
    """How many matrices the first model has; those without a counterpart could not be compared."""
    second_count: int
    identical_count: int
    """At how many places the two have the very same organ, vectors included."""
    by_organ: Mapping[Slot, float]
    """By tower, block and slot, in order."""
    by_type: Mapping[str, float]
    by_block: Mapping[tuple[str, int | None], float]
    """By tower and block, in order; block None holds what is outside the blocks. The lowest changed most."""

    @property
    def kinship(self) -> Kinship:
        """Kin only where the mean is also beyond chance for so few organs."""
        if self.mean is None:
            return Kinship.INCOMPARABLE
        if self.mean >= CLOSE:
            return Kinship.CLOSE
        return Kinship.KIN if self.mean >= max(RELATED, chance(self.organ_count)) else Kinship.UNRELATED


def chance(organ_count: int) -> float:
    """What the mean correlation of `organ_count` unrelated organs stays below."""
    return NOISE_LIMIT * NOISE / math.sqrt(organ_count)


def correlation(first: bytes, second: bytes) -> float | None:
    """Pearson's correlation of two fingerprints of organs of one shape; None when one of them is constant.

    A few values may be left out: up to 4 positions at which one of the two is cut off (at 4 deviations) and the other
    is not. One changed weight among the 256 would otherwise outweigh all others.
    """
    return correlations(first, [second])[0]


def correlations(own: bytes, others: Sequence[bytes]) -> list[float | None]:
    """The correlation of one fingerprint with each of many; None where one of the two is constant."""
    values = _correlations([own], others).tolist() if others else []
    return [None if math.isnan(value) else value for value in values]


def similarity(first: Mapping[Slot, Organ], second: Mapping[Slot, Organ]) -> Similarity:
    """How alike two models are.

    Organs that differ in shape do not count, nor do constant ones. Types are those of `first`.
    """
    shared = sorted((slot for slot in first if slot in second), key=_order)
    pairs = [(slot, first[slot], second[slot]) for slot in shared]
    compared = [pair for pair in pairs if pair[1].is_matrix and not pair[1].is_constant]
    values = {slot: 1.0 for slot, own, other in compared if own.identity == other.identity}
    unequal = [
        (slot, own.fingerprint, other.fingerprint)
        for slot, own, other in compared
        if slot not in values and own.shape == other.shape and own.fingerprint and other.fingerprint
    ]
    found = _correlations([own for _, own, _ in unequal], [other for _, _, other in unequal])
    values |= {slot: value for (slot, _, _), value in zip(unequal, found.tolist(), strict=True) if value == value}
    by_organ = {slot: values[slot] for slot in shared if slot in values}
    return Similarity(
        mean=math.fsum(by_organ.values()) / len(by_organ) if by_organ else None,
        organ_count=len(by_organ),
        first_count=sum(organ.is_matrix for organ in first.values()),
        second_count=sum(organ.is_matrix for organ in second.values()),
        identical_count=sum(own.identity == other.identity for _, own, other in pairs),
        by_organ=by_organ,
        by_type=_means((first[slot].type, value) for slot, value in by_organ.items()),
        by_block=_means((slot[:2], value) for slot, value in by_organ.items()),
    )


def probes(organs: Mapping[Slot, Organ], limit: int) -> list[Slot]:
    """Up to `limit` places by which relatives of a model are looked for, spread over its types and blocks.

    Of the places that are left, one of the type and the block that were taken least comes next; between those a hash of
    the place decides. So two models of one build ask at the same places, whichever comes first. Constant matrices are
    no probes, and those without a fingerprint only where there are no others.
    """
    telling = [slot for slot, organ in organs.items() if organ.is_matrix and not organ.is_constant]
    left = [slot for slot in telling if organs[slot].fingerprint is not None] or telling
    hashes = {slot: hashlib.sha256(repr(slot).encode()).digest() for slot in left}
    types: Counter[str] = Counter()
    blocks: Counter[tuple[str, int | None]] = Counter()
    chosen: list[Slot] = []
    while left and len(chosen) < limit:
        slot = min(left, key=lambda slot: (types[organs[slot].type], blocks[slot[:2]], hashes[slot]))
        left.remove(slot)
        chosen.append(slot)
        types[organs[slot].type] += 1
        blocks[slot[:2]] += 1
    return chosen


def is_another_encoding(first: Mapping[Slot, Organ], second: Mapping[Slot, Organ], found: Similarity) -> bool:
    """Whether two models look like one set of weights in two encodings: a quantisation, or two of one original.

    That is told by three signs together: the same places with the same shapes, the matrices in other dtypes; every
    vector the same to the last byte (fine-tuning changes norms, quantising leaves them); and correlations no lower
    than rounding to those dtypes explains. A fine-tune that left all vectors alone and changed less than the rounding
    cannot be told from a quantisation.
    """
    if first.keys() != second.keys() or not found.by_organ:
        return False
    vectors = [slot for slot, own in first.items() if not own.is_matrix]
    if not vectors or any(first[slot].identity != second[slot].identity for slot in vectors):
        return False
    if any(own.shape != second[slot].shape for slot, own in first.items()):
        return False
    if all(own.dtype == second[slot].dtype for slot, own in first.items()):
        return False
    least = {slot: 1.0 - _rounding(first[slot].dtype, second[slot].dtype) for slot in found.by_organ}
    return all(value >= least[slot] for slot, value in found.by_organ.items())


def relation_to_parent(stated: str, measured: str | None, bits: float, parent_bits: float) -> str:
    """Return the relation of a model to the parent that it declares as `stated`.

    If the two were measured to be one set of weights in two encodings (`is_another_encoding`, recorded as `quantized`),
    the one with fewer bits a value is `quantized` from the other, and the other only a `relative`: whatever was stated.
    Where the weights do not tell, the statement stands.
    """
    if measured != "quantized" or stated not in ("finetune", "quantized", "relative"):
        return stated
    return "quantized" if bits < parent_bits else "relative"


@lru_cache(maxsize=1024)
def _is_matrix(shape: tuple[int, ...]) -> bool:
    return sum(length > 1 for length in shape) >= 2


def _rounding(first: str, second: str) -> float:
    """How much correlation two encodings of the same values may lose, both rounded."""
    lost = (ROUNDING * math.pow(4.0, -_bits_a_value(dtype)) for dtype in (first, second))
    return sum(lost) + FINGERPRINT_ROUNDING


def _bits_a_value(dtype: str) -> float:
    kind = dtype_by_name(dtype)
    return 8 * kind.block_bytes / kind.block_elements


def _order(slot: Slot) -> tuple[str, bool, int, str]:
    tower, block, name = slot
    return tower, block is not None, block or 0, name


def _correlations(first: Sequence[bytes], second: Sequence[bytes]) -> NDArray[np.float64]:
    """Pearson's correlation of each pair, or of a single `first` with each; NaN where one of the two is constant."""
    if not first or not second:
        return np.empty(0)
    starts = range(0, len(second), PAIRS_AT_ONCE)
    slices = [slice(start, start + PAIRS_AT_ONCE) for start in starts]
    return np.concatenate([_some_correlations(first if len(first) == 1 else first[one], second[one]) for one in slices])


def _some_correlations(first: Sequence[bytes], second: Sequence[bytes]) -> NDArray[np.float64]:
    own, others = _rows(first), _rows(second)
    found = _pearson(own, others, np.full(len(others), own.shape[1]))
    one_cut = _is_cut(own) != _is_cut(others)
    counts = np.count_nonzero(one_cut, axis=1)
    again = np.flatnonzero((counts > 0) & (counts <= OUTLIERS_MAX))
    if again.size:
        kept = ~one_cut[again]
        own = own if len(own) == 1 else own[again]
        without = _pearson(np.where(kept, own, 0), np.where(kept, others[again], 0), own.shape[1] - counts[again])
        # Where nothing but the outliers varied, they are all there is to go by.
        found[again] = np.where(np.isnan(without), found[again], without)
    return found


def _rows(fingerprints: Sequence[bytes]) -> NDArray[np.int8]:
    return np.frombuffer(b"".join(fingerprints), np.int8).reshape(len(fingerprints), -1)


def _is_cut(rows: NDArray[np.int8]) -> NDArray[np.bool_]:
    cut: NDArray[np.bool_] = (rows >= CUT_AT) | (rows <= -CUT_AT)
    return cut


def _pearson(first: NDArray[np.int8], second: NDArray[np.int8], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Pearson's correlation of rows of `lengths` values; zeros beyond that many make no difference.

    The sums are of whole numbers below 2^24, so float32 holds them exactly, and the order makes no difference.
    """
    own, others = first.astype(np.float32), second.astype(np.float32)
    own_sums, other_sums = own.sum(axis=1, dtype=np.float64), others.sum(axis=1, dtype=np.float64)
    products = others @ own[0] if len(own) == 1 else np.einsum("ij,ij->i", own, others)
    covariances = lengths * products.astype(np.float64) - own_sums * other_sums
    variances = _variances(own, own_sums, lengths) * _variances(others, other_sums, lengths)
    variances[variances == 0.0] = np.nan
    found: NDArray[np.float64] = covariances / np.sqrt(variances)
    return found.clip(-1.0, 1.0)


def _variances(rows: NDArray[np.float32], sums: NDArray[np.float64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Variances, times the lengths squared."""
    squares: NDArray[np.float32] = np.einsum("ij,ij->i", rows, rows)
    variances: NDArray[np.float64] = lengths * squares.astype(np.float64) - sums * sums
    return variances


def _means(values: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """The mean of the values of each key, keys in the order of their first value."""
    groups: dict[Key, list[float]] = {}
    for key, value in values:
        groups.setdefault(key, []).append(value)
    return {key: math.fsum(group) / len(group) for key, group in groups.items()}


class Groups:
    """Disjoint sets of anything that can be a key; whatever was never joined is a set of its own."""

    def __init__(self) -> None:
        self._above: dict[Hashable, Hashable] = {}

    def leader(self, one: Hashable) -> Hashable:
        """The one that stands for the whole set: two are in one set when they have the same leader."""
        above = self._above
        while (other := above.get(one, one)) != one:
            above[one] = one = above.get(other, other)  # each look shortens the way for the next one
        return one

    def join(self, first: Hashable, second: Hashable) -> None:
        """Make one set of the two that these are in."""
        above, below = self.leader(first), self.leader(second)
        if above != below:
            self._above[below] = above
