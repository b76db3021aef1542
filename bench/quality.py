"""How well a number separates usable grafts from others (AUC), and how well it ranks them (Spearman)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def auc(usable: Sequence[float], others: Sequence[float]) -> float:
    """Return the probability that one of `usable` has a higher number than one of `others`; ties count half. NaN
    without a pair.
    """
    if not usable or not others:
        return float("nan")
    first, second = np.asarray(usable)[:, None], np.asarray(others)[None, :]
    return float(((first > second) + 0.5 * (first == second)).mean())


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the rank correlation, ties at their mean rank. NaN if one of the two is constant."""
    item, other = _ranks(first), _ranks(second)
    if not item.std() or not other.std():
        return float("nan")
    return float(np.corrcoef(item, other)[0, 1])


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(np.asarray(values, float), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: NDArray[np.float64] = ((ends - counts + ends - 1) / 2)[inverse]
    return ranks
