"""From surprises to a perplexity, and from those of two models to how sure their difference is. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

KEPT_DIGITS = 4
"""Decimals of a surprise that are kept: 0.0001 nats are a hundredth of a percent of a perplexity."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A perplexity, its standard error (None where it cannot be told), and the number of tokens behind it."""

    perplexity: float
    standard_error: float | None
    tokens: int


def estimate(surprises: Sequence[float]) -> Estimate:
    """The perplexity of `surprises`: exp of their mean, each the negative natural logarithm of a token's probability.

    The standard error is that of the mean surprise (with n − 1), carried over by the delta method: the derivative of
    exp at the mean is the perplexity itself. A surprise that is not finite makes the perplexity infinite, and so does
    one that is too large for a float; neither has a standard error.
    """
    assert surprises
    count = len(surprises)
    if not all(map(math.isfinite, surprises)):
        return Estimate(math.inf, None, count)
    try:
        mean = math.fsum(surprises) / count
        perplexity = math.exp(mean)
    except OverflowError:
        return Estimate(math.inf, None, count)
    if count == 1:
        return Estimate(perplexity, None, count)
    variance = sum((surprise - mean) * (surprise - mean) for surprise in surprises) / (count - 1)
    error = perplexity * math.sqrt(variance / count)
    return Estimate(perplexity, error if math.isfinite(error) else None, count)


def kept(surprises: Sequence[float]) -> tuple[float, ...] | None:
    """`surprises`, rounded, to be kept beside their perplexity; None where one of them is not finite."""
    if not all(map(math.isfinite, surprises)):
        return None
    return tuple(round(surprise, KEPT_DIGITS) for surprise in surprises)


def paired_error(first: Sequence[float] | None, second: Sequence[float] | None) -> float | None:
    """The standard error of the difference of two mean surprises of the same tokens, in nats, which is ln p - ln p'.

    Token by token: s / sqrt(n), with s the standard deviation of the differences (with n - 1). What makes a token hard
    for both cancels, so it is far smaller than the errors of the two perplexities suggest. None where one of them is
    not known, where they are of texts in different tokens, and of less than two tokens.
    """
    if first is None or second is None or len(first) != len(second) or len(first) < 2:
        return None
    count = len(first)
    differences = [one - other for one, other in zip(first, second, strict=True)]
    mean = sum(differences) / count
    variance = sum((difference - mean) * (difference - mean) for difference in differences) / (count - 1)
    error = math.sqrt(variance / count)
    return error if math.isfinite(error) else None
