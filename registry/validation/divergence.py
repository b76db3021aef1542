"""How far the distributions of the next token of a model are from those of a reference, over windows of texts. Pure.

The divergence at a token is the Kullback-Leibler divergence: the sum over the vocabulary of p ln(p / q), p by the
reference and q by the model, in nats. `registry.validation.scorer` computes it where both score a window.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from organs.registry.validation.intervals import interval_around

if TYPE_CHECKING:
    from organs.registry.validation.runtime import Window

ALPHA = 0.1
"""Intervals of divergences have the level 90%."""
HIGH = 0.99
"""The share of the tokens whose divergence is at most `Divergence.high`."""
_PACKED = np.dtype("<f2")


@dataclass(frozen=True, slots=True)
class Divergence:
    """The divergence of a model from a reference over the windows that both scored."""

    mean: float
    """Over all tokens, in nats."""
    margin: float | None
    """Half the width of the interval of the mean, from the means of the windows; None for too few windows."""
    high: float | None
    """The quantile HIGH over all tokens; None if the divergences of single tokens are unknown."""
    same_top: float
    """The share of the tokens at which both find the same token the most likely one."""
    tokens: int


def divergence_of(texts: Sequence[Sequence[Window]]) -> Divergence | None:
    """Return the divergence over the windows of some texts; None if no window was scored by both models.

    Windows that the reference did not score are left out. The texts are taken as they are: the margin is that of
    other windows of the same texts.
    """
    compared = [[window for window in windows if window.divergence is not None] for windows in texts]
    windows = [window for some in compared for window in some]
    tokens = sum(window.tokens for window in windows)
    if not tokens:
        return None
    means = [[(window.divergence or 0.0) / window.tokens for window in some] for some in compared]
    interval = interval_around(means, ALPHA)
    each = [unpacked(window.divergences) for window in windows if window.divergences is not None]
    return Divergence(
        math.fsum(window.divergence or 0.0 for window in windows) / tokens,
        None if interval is None else interval.margin,
        float(np.quantile(np.concatenate(each), HIGH)) if len(each) == len(windows) else None,
        min(1.0, sum(window.same_top or 0 for window in windows) / tokens),
        tokens,
    )


def packed(divergences: NDArray[np.float64]) -> bytes:
    """Return the divergences at the tokens of a window in two bytes each: three digits, from 6e-8 nats on."""
    return np.minimum(divergences, np.finfo(_PACKED).max).astype(_PACKED).tobytes()


def packed_bytes(tokens: int) -> int:
    """Return the number of bytes of `packed` divergences."""
    return tokens * _PACKED.itemsize


def unpacked(data: bytes) -> NDArray[np.float64]:
    """Return packed divergences, in nats; what is not a number of at least 0 becomes the largest one."""
    values = np.frombuffer(data, _PACKED).astype(np.float64)
    largest = float(np.finfo(_PACKED).max)
    return np.where((values >= 0.0) & (values <= largest), values, largest)
