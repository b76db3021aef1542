"""Similarity of two organs or two models, from fingerprints: 256 values of an organ in 536 bytes.

A fingerprint has the mean, the step and the standard deviation of the values (three float64, little-endian), then the
values as 16-bit steps from the mean. The largest offset has 32,767 steps: rounding has about 1e-9 of the energy of the
values. The number -32,768 stands for NaN and infinite values. Earlier versions stored 256 signed bytes: the *coarse*
form. It has 32 steps per standard deviation, without mean and scale. It follows from the present form, so old and new
fingerprints can be compared; their change is not known.

The correlation of two fingerprints estimates the correlation of the two organs: near 1 for a fine-tune or a
quantisation, 0.00 ± 0.07 for unrelated organs. Among close relatives it says nothing more; there the *change* counts:
the energy of the difference of two organs as a share of their energy, from 1e-7 (a few roundings) to 2 (unrelated).

Norms, biases and rope tables are similar in unrelated models and would increase the similarity of all models. Therefore
only matrices are compared, each with the matrix of the same shape at the same place. A similarity has no direction: it
does not say which of two models is older.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from statistics import median
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from organs.registry.amounts import CHANGE_MIN, weight_change
from organs.registry.anatomy import Slot
from organs.registry.gguf.types import dtype_by_name

VALUES = 256
COARSE_BYTES = VALUES
FINGERPRINT_BYTES = 24 + 2 * VALUES
FINGERPRINT_PATTERN = f"^([0-9a-f]{{{2 * FINGERPRINT_BYTES}}}|[0-9a-f]{{{2 * COARSE_BYTES}}})$"
"""Fingerprints of both forms as hexadecimal text."""

COARSE_STEPS = 32
"""Steps per standard deviation of the coarse form."""
COARSE_LIMIT = 127
"""Steps at which the coarse form clips values: 4 standard deviations."""

_HEAD = struct.Struct("<3d")
_FINE = np.dtype([("mean", "<f8"), ("step", "<f8"), ("deviation", "<f8"), ("steps", "<i2", (VALUES,))])
_STEPS_MAX = 32_767
_UNKNOWN = -32_768
_BATCH = 1024
"""Fingerprints that are converted at once, so few that they stay in the cache."""

NOISE = 0.07
"""Standard deviation of the correlation of two unrelated organs."""
NOISE_LIMIT = 5.0
"""Limit of chance, in standard deviations above 0. The best of a million unrelated pairs stays below it."""
CLOSE = 0.98
"""In tests, grafts between two models of at least this similarity did no harm. Quantisations and light fine-tunes
reach it."""
NOISE_LIMIT_OF_KIN = 2.0
"""Like NOISE_LIMIT, for a few organs of two models that are related as a whole: little evidence is enough there."""
RELATED = 0.2
"""Models below this similarity are not called related."""

ROUNDING = 6.0
"""Rounding to b bits a value lowers the correlation by at most this factor times 4^-b. The factor is about 1 for even
steps over ±2.4 standard deviations; 1.1 to 1.5 were measured (Q2_K, Q4_K, IQ4_NL), and 3.4 for embeddings with heavy
tails in Q4_0. The limit is twice as high."""
FLOAT_ROUNDING = {"F64": 0.0, "F32": 0.0, "F16": 1e-7, "BF16": 5.1e-6}
"""The largest change of an organ by rounding to a float. The mean over many organs is half of it."""
ROUNDED_MEAN = 0.6
"""The largest mean change of two encodings, as a share of the largest change of one organ."""
UNEXPLAINED = 6.0
"""A matrix whose change is so many times the median of its dtypes stands out: rounding of matrices differs by less."""
FINGERPRINT_ROUNDING = 0.0005
"""The loss of correlation by the rounding of fingerprints, which have 32 steps per standard deviation."""

FINE_FROM = 0.99
"""From this correlation of the coarse forms on, the correlation is computed from the values themselves."""
OUTLIERS_MAX = 4
"""The most positions (of 256) that a correlation leaves out because only one of the two fingerprints is clipped there.
A larger number is a property of the organs, not an accident; then no position is left out."""

BATCH_PAIRS = 8192
"""Pairs of fingerprints in one computation, which needs some tens of megabytes."""
CHANGED_PAIRS = 1024
"""Pairs whose change is computed at once, in float64."""

Steps: TypeAlias = NDArray[np.int8] | NDArray[np.int16]
Floats: TypeAlias = NDArray[np.float32] | NDArray[np.float64]

Key = TypeVar("Key", bound=Hashable)


def fingerprint_of(values: NDArray[np.float64]) -> bytes:
    """Return the fingerprint of exactly 256 values.

    NaN and infinities have no number. If all finite values are equal, all steps are 0. Sums are exact (`fsum`), so the
    bytes are equal on every machine.
    """
    assert values.shape == (VALUES,)
    finite = np.isfinite(values)
    known = np.where(finite, values, 0.0)
    exponent = int(np.frexp(np.abs(known).max())[1])  # sums of very large or very small values need a common exponent
    known = np.ldexp(known, -exponent)
    count = max(int(finite.sum()), 1)
    mean = math.fsum(known.tolist()) / count
    offsets = np.where(finite, known - mean, 0.0)
    deviation = math.sqrt(math.fsum(np.square(offsets).tolist()) / count)
    step = float(np.abs(offsets).max()) / _STEPS_MAX
    if deviation == 0.0 or known[finite].min() == known[finite].max():
        mean, step, deviation = (float(known[finite][0]) if finite.any() else 0.0), 0.0, 0.0
    steps = np.rint(offsets / step) if step else np.zeros(VALUES)
    head = (float(np.ldexp(number, exponent)) for number in (mean, step, deviation))
    return _HEAD.pack(*head) + np.where(finite, steps, _UNKNOWN).astype("<i2").tobytes()


def is_fine(fingerprint: bytes) -> bool:
    """Return whether a fingerprint has the present form, from which a change can be computed."""
    return len(fingerprint) == FINGERPRINT_BYTES


def is_constant(fingerprint: bytes) -> bool:
    """Return whether all values of a fingerprint are equal."""
    values = np.frombuffer(fingerprint, "<i2", offset=_HEAD.size) if is_fine(fingerprint) else None
    if values is None:
        return len(set(fingerprint)) == 1
    return not values[values != _UNKNOWN].any()


def coarse_rows(fingerprints: Sequence[bytes]) -> NDArray[np.int8]:
    """Return the coarse form of each fingerprint, a row each. Values without a number are 0, the mean."""
    rows = np.empty((len(fingerprints), VALUES), np.int8)
    for begin in range(0, len(fingerprints), _BATCH):
        part = fingerprints[begin : begin + _BATCH]
        fine = [number for number, data in enumerate(part) if is_fine(data)]
        if len(fine) < len(part):
            coarse = [number for number, data in enumerate(part) if not is_fine(data)]
            joined = b"".join(part[number] for number in coarse)
            rows[begin + np.array(coarse)] = np.frombuffer(joined, np.int8).reshape(-1, VALUES)
        if fine:
            records = _records(part if len(fine) == len(part) else [part[number] for number in fine])
            with np.errstate(all="ignore"):  # a hostile head
                factors = np.nan_to_num(COARSE_STEPS * records["step"] / records["deviation"]).astype(np.float32)
                scaled = records["steps"].astype(np.float32)
                scaled[scaled == _UNKNOWN] = 0
                scaled *= factors[:, np.newaxis]
                np.rint(scaled, out=scaled)
                np.clip(scaled, -COARSE_LIMIT, COARSE_LIMIT, out=scaled)
                rows[begin + np.array(fine)] = np.nan_to_num(scaled, copy=False).astype(np.int8)
    return rows


def step_rows(fingerprints: Sequence[bytes]) -> NDArray[np.int16]:
    """Return the steps of fingerprints of the present form, a row each. Values without a number are 0, the mean."""
    steps: NDArray[np.int16] = _records(fingerprints)["steps"]
    return np.where(steps == _UNKNOWN, np.int16(0), steps)


def value_rows(fingerprints: Sequence[bytes]) -> NDArray[np.float64]:
    """Return the 256 values of each fingerprint; NaN where they are not known, also in the coarse form."""
    rows = np.full((len(fingerprints), VALUES), np.nan)
    fine = [number for number, data in enumerate(fingerprints) if is_fine(data)]
    if fine:
        records = _records([fingerprints[number] for number in fine])
        steps = records["steps"]
        with np.errstate(all="ignore"):  # a hostile head
            values = records["mean"][:, np.newaxis] + records["step"][:, np.newaxis] * steps
        rows[fine] = np.where(steps == _UNKNOWN, np.nan, values)
    return rows


def rounding_steps(fingerprints: Sequence[bytes]) -> NDArray[np.float64]:
    """Return the step to which the values of each fingerprint are rounded; NaN if it is not known."""
    steps = np.full(len(fingerprints), np.nan)
    fine = [number for number, data in enumerate(fingerprints) if is_fine(data)]
    if fine:
        steps[fine] = _records([fingerprints[number] for number in fine])["step"]
    return steps


def _records(fingerprints: Sequence[bytes]) -> NDArray[np.void]:
    return np.frombuffer(b"".join(fingerprints), _FINE)


@dataclass(frozen=True, slots=True)
class ComparableOrgan:
    """The data of an organ of one model, at one place, that a comparison needs."""

    type: str
    shape: tuple[int, ...]
    dtype: str
    fingerprint: bytes | None
    """None if the organ has fewer than 256 values, or a dtype without a kernel."""
    identity: Hashable
    """Equal for two organs if, and only if, their bytes, dtype and shape are equal."""

    @property
    def is_matrix(self) -> bool:
        """Whether the organ has two or more dimensions longer than 1."""
        return _is_matrix(self.shape)

    @property
    def is_constant(self) -> bool:
        """Whether all values of the fingerprint are equal.

        Constant matrices are not compared: two unrelated models may both have a matrix of zeros.
        """
        return self.fingerprint is not None and is_constant(self.fingerprint)


class Kinship(StrEnum):
    """The class of a similarity."""

    CLOSE = "close"
    KIN = "kin"
    UNRELATED = "unrelated"
    INCOMPARABLE = "incomparable"


@dataclass(frozen=True, slots=True)
class Changes:
    """The change between two models: means over the matrices that they share, 0 for equal ones."""

    mean: float | None = None
    """None if no matrix was compared, or if one of them was only compared in the coarse form."""
    by_organ: Mapping[Slot, float] = field(default_factory=dict)
    """Organs whose change is known."""
    by_type: Mapping[str, float] = field(default_factory=dict)
    by_block: Mapping[tuple[str, int | None], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Similarity:
    """The similarity of two models: means of the correlations of the matrices that they share."""

    mean: float | None
    """The mean over all compared organs; None if no organ was compared."""
    organ_count: int
    """The number of compared organs."""
    first_count: int
    """The number of matrices of the first model, including those without a counterpart."""
    second_count: int
    identical_count: int
    """The number of places where both models have the same organ, including vectors."""
    by_organ: Mapping[Slot, float]
    """The correlation of each compared organ, by tower, block and slot, in order."""
    by_type: Mapping[str, float]
    by_block: Mapping[tuple[str, int | None], float]
    """The mean of each block, by tower and block, in order. The block None is for organs outside of the blocks."""
    change: Changes = Changes()

    @property
    def distance(self) -> float:
        """The mean change, from the likeness if it is not known exactly: the nearest relatives have the smallest."""
        return math.inf if self.mean is None else weight_change(self.change.mean, self.mean)

    def distance_of(self, slot: Slot) -> float:
        """Return the change of a compared organ, from its likeness if it is not known exactly."""
        return weight_change(self.change.by_organ.get(slot), self.by_organ[slot])

    @property
    def kinship(self) -> Kinship:
        """The class of the mean; `KIN` only if the mean is also above `chance` for this number of organs."""
        if self.mean is None:
            return Kinship.INCOMPARABLE
        if self.mean >= CLOSE:
            return Kinship.CLOSE
        return Kinship.KIN if self.mean >= max(RELATED, chance(self.organ_count)) else Kinship.UNRELATED


def chance(organ_count: int, limit: float = NOISE_LIMIT) -> float:
    """Return the upper limit of the mean correlation of `organ_count` unrelated organs, `limit` standard deviations."""
    return limit * NOISE / math.sqrt(organ_count)


def correlation(first: bytes, second: bytes) -> float | None:
    """Return Pearson's correlation of two fingerprints of organs of one shape; None if one of them is constant.

    Positions where only one of the two is clipped (at 4 standard deviations) are left out, if there are at most 4.
    Otherwise a single changed weight among the 256 would outweigh all others.
    """
    return correlations(first, [second])[0]


def correlations(own: bytes, others: Sequence[bytes]) -> list[float | None]:
    """Return the correlation of one fingerprint with each of `others`; None where one of the two is constant."""
    values = _correlations([own], others).tolist() if others else []
    return [None if math.isnan(value) else value for value in values]


def paired_correlations(pairs: Sequence[tuple[bytes, bytes]]) -> list[float | None]:
    """Return the correlation of each pair of fingerprints; None where one of the two is constant."""
    values = _correlations([first for first, _ in pairs], [second for _, second in pairs]).tolist()
    return [None if math.isnan(value) else value for value in values]


def changes(pairs: Sequence[tuple[bytes, bytes]]) -> list[float | None]:
    """Return the change of each pair of fingerprints of organs of one shape.

    The change is |a - b|² over the mean of |a|² and |b|², of the 256 values: 0 for equal organs, 2 for unrelated ones.
    Its standard error is 9% for a change that is spread evenly. Outliers are left out as in `correlation`. None if a
    fingerprint is coarse, or if all values are 0.
    """
    values: list[float] = []
    for start in range(0, len(pairs), CHANGED_PAIRS):
        first, second = zip(*pairs[start : start + CHANGED_PAIRS], strict=True)
        own, others = value_rows(first), value_rows(second)
        steps = np.stack((rounding_steps(first), rounding_steps(second)))
        is_left_out = _outliers(coarse_rows(first), coarse_rows(second)) | np.isnan(own) | np.isnan(others)
        peaks = np.fmax(np.abs(own), np.abs(others)).max(axis=1, initial=0.0, where=~is_left_out)
        with np.errstate(all="ignore"):  # a peak of 0, and a hostile head; squares of large values would be infinite
            own, others = (np.where(is_left_out, 0.0, rows / peaks[:, np.newaxis]) for rows in (own, others))
            energy = (np.einsum("ij,ij->i", own, own) + np.einsum("ij,ij->i", others, others)) / 2
            difference = own - others
            squares = np.einsum("ij,ij->i", difference, difference)
            expected = np.count_nonzero(~is_left_out, axis=1) * np.square(steps / peaks).sum(axis=0) / 12
            values += (np.fmax(squares - expected, 0.0 * squares) / energy).tolist()
    return [None if math.isnan(value) else value for value in values]


def similarity(first: Mapping[Slot, ComparableOrgan], second: Mapping[Slot, ComparableOrgan]) -> Similarity:
    """Return the similarity of two models.

    Organs with different shapes and constant organs do not count. `by_type` uses the types of `first`.
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
    computed = _correlations([own for _, own, _ in unequal], [other for _, _, other in unequal]).tolist()
    values |= {slot: value for (slot, _, _), value in zip(unequal, computed, strict=True) if not math.isnan(value)}
    by_organ = {slot: values[slot] for slot in shared if slot in values}
    changed = changes([(own, other) for slot, own, other in unequal])
    known = dict.fromkeys(by_organ, 0.0) | {slot: change for (slot, _, _), change in zip(unequal, changed, strict=True)}

    def mean_changes(key: Callable[[Slot], Key]) -> dict[Key, float]:
        """Return the means of the changes; a mean is left out if one of its changes is not known."""
        unknown = {key(slot) for slot in by_organ if known[slot] is None}
        found = ((key(slot), known[slot]) for slot in by_organ)
        return _means((group, change) for group, change in found if change is not None and group not in unknown)

    return Similarity(
        mean=math.fsum(by_organ.values()) / len(by_organ) if by_organ else None,
        organ_count=len(by_organ),
        first_count=sum(organ.is_matrix for organ in first.values()),
        second_count=sum(organ.is_matrix for organ in second.values()),
        identical_count=sum(own.identity == other.identity for _, own, other in pairs),
        by_organ=by_organ,
        by_type=_means((first[slot].type, value) for slot, value in by_organ.items()),
        by_block=_means((slot[:2], value) for slot, value in by_organ.items()),
        change=Changes(
            mean=mean_changes(lambda _: None).get(None),
            by_organ=mean_changes(lambda slot: slot),
            by_type=mean_changes(lambda slot: first[slot].type),
            by_block=mean_changes(lambda slot: slot[:2]),
        ),
    )


def probes(organs: Mapping[Slot, ComparableOrgan], limit: int) -> list[Slot]:
    """Return up to `limit` places at which relatives of a model are searched, spread over its types and blocks.

    Each step takes a place of the type and the block that have the fewest places so far. Among equal places, a hash of
    the place decides, so that two models of the same structure get the same places. Constant matrices are not used.
    Matrices without a fingerprint are used only if no matrix has one.
    """
    matrices = [slot for slot, organ in organs.items() if organ.is_matrix and not organ.is_constant]
    remaining = [slot for slot in matrices if organs[slot].fingerprint is not None] or matrices
    hashes = {slot: hashlib.sha256(repr(slot).encode()).digest() for slot in remaining}
    types: Counter[str] = Counter()
    blocks: Counter[tuple[str, int | None]] = Counter()
    places: list[Slot] = []
    while remaining and len(places) < limit:
        slot = min(remaining, key=lambda slot: (types[organs[slot].type], blocks[slot[:2]], hashes[slot]))
        remaining.remove(slot)
        places.append(slot)
        types[organs[slot].type] += 1
        blocks[slot[:2]] += 1
    return places


def is_another_encoding(
    first: Mapping[Slot, ComparableOrgan], second: Mapping[Slot, ComparableOrgan], measured: Similarity
) -> bool:
    """Return whether two models look like the same weights in two encodings.

    This is so if one is a quantisation of the other, or both are quantisations of one original. Three conditions must
    hold. Both models have the same places with the same shapes, but some matrices have another dtype. Every vector is
    identical to the last byte, because fine-tuning changes norms and quantisation does not. No correlation is lower
    than rounding to these dtypes explains. A fine-tune that did not change the vectors, and changed the matrices less
    than the rounding does, looks the same as a quantisation.
    """
    if first.keys() != second.keys() or not measured.by_organ:
        return False
    vectors = [slot for slot, own in first.items() if not own.is_matrix]
    if not vectors or any(first[slot].identity != second[slot].identity for slot in vectors):
        return False
    if any(own.shape != second[slot].shape for slot, own in first.items()):
        return False
    if all(own.dtype == second[slot].dtype for slot, own in first.items()):
        return False
    limits = {
        slot: _rounding_change(first[slot].dtype, second[slot].dtype, measured, slot) for slot in measured.by_organ
    }
    is_explained = all(measured.distance_of(slot) <= limit for slot, limit in limits.items())
    return is_explained and measured.distance <= ROUNDED_MEAN * math.fsum(limits.values()) / len(limits)


def unexplained_by_rounding(
    first: Mapping[Slot, ComparableOrgan], second: Mapping[Slot, ComparableOrgan], measured: Similarity
) -> list[Slot]:
    """Return the places where close models have matrices that rounding to their dtypes does not explain.

    Most matrices must be explained: otherwise it is no quantisation, and nothing stands out. The rounding of the other
    matrices of the same dtypes sets the limit, if their changes are known; UNEXPLAINED times their median.
    """
    if measured.kinship is not Kinship.CLOSE:
        return []
    rounded = [slot for slot in measured.by_organ if first[slot].dtype != second[slot].dtype]
    groups: dict[tuple[str, str], list[float]] = {}
    for slot in rounded:
        groups.setdefault((first[slot].dtype, second[slot].dtype), []).append(measured.distance_of(slot))

    def limit(slot: Slot) -> float:
        dtypes = first[slot].dtype, second[slot].dtype
        return min(_rounding_change(*dtypes, measured, slot), UNEXPLAINED * median(groups[dtypes]))

    outside = [slot for slot in rounded if measured.distance_of(slot) > limit(slot)]
    return outside if 2 * len(outside) < len(rounded) else []


def relation_to_parent(stated: str, measured: str | None, bits: float, parent_bits: float) -> str:
    """Return the relation of a model to its parent; `stated` is the relation that the model declares.

    If both are measured to be the same weights in two encodings (`is_another_encoding`, recorded as `quantized`), the
    declared relation is replaced: by `quantized` if the model has fewer bits a value than its parent, else by
    `relative`. In all other cases the declared relation is returned.
    """
    if measured != "quantized" or stated not in ("finetune", "quantized", "relative"):
        return stated
    return "quantized" if bits < parent_bits else "relative"


@lru_cache(maxsize=1024)
def _is_matrix(shape: tuple[int, ...]) -> bool:
    return sum(length > 1 for length in shape) >= 2


def _rounding_change(first: str, second: str, measured: Similarity, slot: Slot) -> float:
    """Return the largest change by rounding between two encodings of the same values, as far as it was measured."""
    energies = (
        FLOAT_ROUNDING.get(dtype, 2.0 * ROUNDING * math.pow(4.0, -dtype_by_name(dtype).bits_per_value))
        for dtype in (first, second)
    )
    is_exact = slot in measured.change.by_organ
    return sum(energies) + (CHANGE_MIN if is_exact else 2.0 * FINGERPRINT_ROUNDING)


def _order(slot: Slot) -> tuple[str, bool, int, str]:
    tower, block, name = slot
    return tower, block is not None, block or 0, name


def _correlations(first: Sequence[bytes], second: Sequence[bytes]) -> NDArray[np.float64]:
    """Return the correlation of each pair, or of a single `first` with each; NaN where one of the two is constant."""
    if not first or not second:
        return np.empty(0)
    starts = range(0, len(second), BATCH_PAIRS)
    slices = [slice(start, start + BATCH_PAIRS) for start in starts]
    return np.concatenate([_batch(first if len(first) == 1 else first[part], second[part]) for part in slices])


def _batch(first: Sequence[bytes], second: Sequence[bytes]) -> NDArray[np.float64]:
    own, others = coarse_rows(first), coarse_rows(second)
    values = _pearson(own, others, np.full(len(others), own.shape[1]))
    is_outlier = _outliers(own, others)
    counts = np.count_nonzero(is_outlier, axis=1)
    affected = np.flatnonzero(counts)
    if affected.size:
        regular = ~is_outlier[affected]
        own = own if len(own) == 1 else own[affected]
        lengths = own.shape[1] - counts[affected]
        without_outliers = _pearson(np.where(regular, own, 0), np.where(regular, others[affected], 0), lengths)
        # Without the outliers a row may be constant: then the correlation with them is used.
        values[affected] = np.where(np.isnan(without_outliers), values[affected], without_outliers)
    # The correlations of near pairs follow from their 16-bit steps, if both fingerprints have them.
    is_single = len(first) == 1
    near = [
        index
        for index in np.flatnonzero(values >= FINE_FROM).tolist()
        if is_fine(second[index]) and is_fine(first[0 if is_single else index])
    ]
    if near:
        own_steps = step_rows(first if is_single else [first[index] for index in near])
        other_steps = step_rows([second[index] for index in near])
        if is_outlier[near].any():
            own_steps, other_steps = (np.where(is_outlier[near], 0, rows) for rows in (own_steps, other_steps))
        fine = _pearson(own_steps, other_steps, other_steps.shape[1] - np.count_nonzero(is_outlier[near], axis=1))
        values[near] = np.where(np.isnan(fine), values[near], fine)
    return values


def _outliers(own: NDArray[np.int8], others: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Return the positions where exactly one of two coarse rows is clipped; none if a pair has more than OUTLIERS_MAX.

    `own` has one row for all `others`, or one for each.
    """
    is_outlier: NDArray[np.bool_] = _is_clipped(own) != _is_clipped(others)
    is_outlier[np.count_nonzero(is_outlier, axis=1) > OUTLIERS_MAX] = False
    return is_outlier


def _is_clipped(rows: NDArray[np.int8]) -> NDArray[np.bool_]:
    clipped: NDArray[np.bool_] = (rows >= COARSE_LIMIT) | (rows <= -COARSE_LIMIT)
    return clipped


def _pearson(first: Steps, second: Steps, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return Pearson's correlation of rows of `lengths` values; the other values of a row must be 0.

    The sums of bytes are whole numbers below 2^24, and those of 16-bit numbers below 2^38. float32 and float64
    represent them exactly, in any order of summation.
    """
    own: Floats = first.astype(np.float32) if first.dtype == np.int8 else first.astype(np.float64)
    others: Floats = second.astype(np.float32) if second.dtype == np.int8 else second.astype(np.float64)
    own_sums, other_sums = own.sum(axis=1, dtype=np.float64), others.sum(axis=1, dtype=np.float64)
    products = others @ own[0] if len(own) == 1 else np.einsum("ij,ij->i", own, others)
    covariances = lengths * products.astype(np.float64) - own_sums * other_sums
    variances = _variances(own, own_sums, lengths) * _variances(others, other_sums, lengths)
    variances[variances == 0.0] = np.nan
    values: NDArray[np.float64] = covariances / np.sqrt(variances)
    return values.clip(-1.0, 1.0)


def _variances(rows: Floats, sums: NDArray[np.float64], lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the variance of each row, times its length squared."""
    squares = np.einsum("ij,ij->i", rows, rows).astype(np.float64)
    variances: NDArray[np.float64] = lengths * squares - sums * sums
    return variances


def _means(values: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """Return the mean of the values of each key; keys are in the order of their first value."""
    groups: dict[Key, list[float]] = {}
    for key, value in values:
        groups.setdefault(key, []).append(value)
    return {key: math.fsum(group) / len(group) for key, group in groups.items()}


class Groups:
    """Disjoint sets of hashable items (union-find); an item that was never joined is alone in its set."""

    def __init__(self) -> None:
        self._parents: dict[Hashable, Hashable] = {}

    def leader(self, item: Hashable) -> Hashable:
        """Return the item that represents the set of `item`: two items are in one set if they have the same leader."""
        parents = self._parents
        while (parent := parents.get(item, item)) != item:
            parents[item] = item = parents.get(parent, parent)  # shortens the path for later calls
        return item

    def join(self, first: Hashable, second: Hashable) -> None:
        """Merge the sets of `first` and `second`."""
        first_leader, second_leader = self.leader(first), self.leader(second)
        if first_leader != second_leader:
            self._parents[second_leader] = first_leader
