"""How alike two organs or two models are, by their fingerprints.

The correlation of two fingerprints estimates the correlation of the two organs: near 1 for a fine-tune or a
quantisation, 0.00 ± 0.07 for strangers. Norms, biases and rope tables are alike in unrelated models and would lift a
model's similarity; so only organs of two dimensions or more are compared, each with the one of its shape at its place.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Slot: TypeAlias = tuple[str, int | None, str]
"""Tower, block and slot of an organ."""
Organ: TypeAlias = tuple[str, tuple[int, ...], bytes]
"""Type, shape and fingerprint of an organ."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Similarity:
    """How alike two models are: means of the correlations of the organs that they share."""

    mean: float | None
    """Over all compared organs; None when there is none."""
    organ_count: int
    """How many organs were compared."""
    by_type: Mapping[str, float]
    by_block: Mapping[tuple[str, int | None], float]
    """By tower and block, in order; block None holds what is outside the blocks. The lowest changed most."""


def correlation(first: bytes, second: bytes) -> float | None:
    """Pearson's correlation of two fingerprints of organs of one shape; None when one of them is constant."""
    value = float(_correlations([first], [second])[0])
    return None if math.isnan(value) else value


def similarity(first: Mapping[Slot, Organ], second: Mapping[Slot, Organ]) -> Similarity:
    """How alike two models are. Those that differ in shape or are constant do not count. Types are those of `first`."""
    shared = [slot for slot in first if slot in second and _comparable(first[slot], second[slot])]
    values = _correlations([first[slot][2] for slot in shared], [second[slot][2] for slot in shared])
    compared = [(slot, value) for slot, value in zip(shared, values.tolist(), strict=True) if not math.isnan(value)]
    compared.sort(key=lambda pair: (pair[0][0], pair[0][1] is not None, pair[0][1] or 0))
    return Similarity(
        mean=math.fsum(value for _, value in compared) / len(compared) if compared else None,
        organ_count=len(compared),
        by_type=_means((first[slot][0], value) for slot, value in compared),
        by_block=_means((slot[:2], value) for slot, value in compared),
    )


def _comparable(first: Organ, second: Organ) -> bool:
    """Whether two organs are of one shape, and of two dimensions or more (a length of 1 is none)."""
    return first[1] == second[1] and sum(length > 1 for length in first[1]) >= 2


def _correlations(first: Sequence[bytes], second: Sequence[bytes]) -> NDArray[np.float64]:
    """Pearson's correlation of each pair of fingerprints; NaN where one of the two is constant."""
    products: NDArray[np.float64] = np.einsum("ij,ij->i", _standardised(first), _standardised(second))
    return products.clip(-1.0, 1.0)


def _standardised(fingerprints: Sequence[bytes]) -> NDArray[np.float64]:
    """Each fingerprint as a row of mean 0 and length 1; NaN for a constant."""
    if not fingerprints:
        return np.empty((0, 1))
    values = np.frombuffer(b"".join(fingerprints), np.int8).reshape(len(fingerprints), -1).astype(np.float64)
    values -= values.mean(axis=1, keepdims=True)
    lengths = np.sqrt(np.square(values).sum(axis=1, keepdims=True))
    lengths[lengths == 0.0] = np.nan
    standardised: NDArray[np.float64] = values / lengths
    return standardised


def _means(values: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """The mean of the values of each key, keys in the order of their first value."""
    groups: dict[Key, list[float]] = {}
    for key, value in values:
        groups.setdefault(key, []).append(value)
    return {key: math.fsum(group) / len(group) for key, group in groups.items()}
