"""From surprises to a perplexity. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


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
