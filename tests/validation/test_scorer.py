"""Tests of log-likelihoods and divergences, beside a plain computation in float64."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from organs.registry.validation.scorer import PIECE_BYTES, Likelihoods, compared, joined, surprises

TOKENS, VOCABULARY = 40, PIECE_BYTES // 64
"""More rows than a piece has."""


def logits(seed: int, shift: float = 0.0) -> NDArray[np.float32]:
    rows = np.random.default_rng(seed).normal(shift, 3.0, (TOKENS, VOCABULARY))
    return rows.astype(np.float32)


def log_probabilities(values: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = values.astype(np.float64)
    highest = wide.max(axis=1, keepdims=True)
    return wide - highest - np.log(np.exp(wide - highest).sum(axis=1, keepdims=True))


FOLLOWING = list(np.random.default_rng(9).integers(0, VOCABULARY, TOKENS))


def test_a_surprise_is_minus_the_log_probability_of_the_token() -> None:
    exact = -log_probabilities(logits(1))[np.arange(TOKENS), FOLLOWING]
    assert surprises(logits(1), FOLLOWING).surprises == pytest.approx(exact, abs=1e-5)


def test_the_divergence_is_that_of_the_whole_distributions() -> None:
    base, own = logits(1), logits(1) + np.float32(0.1) * logits(2, shift=50.0)
    by_base, by_own = compared(base, own, FOLLOWING)
    p, q = log_probabilities(base), log_probabilities(own)
    assert by_own.divergences == pytest.approx((np.exp(p) * (p - q)).sum(axis=1), rel=1e-4, abs=1e-6)
    assert by_own.surprises == pytest.approx(surprises(own, FOLLOWING).surprises)
    assert by_base.surprises == pytest.approx(surprises(base, FOLLOWING).surprises)
    assert by_own.same_top is not None
    assert by_own.same_top.tolist() == (p.argmax(axis=1) == q.argmax(axis=1)).tolist()


def test_a_model_does_not_diverge_from_itself() -> None:
    _, own = compared(logits(1), logits(1), FOLLOWING)
    assert own.divergences == pytest.approx(0.0, abs=1e-6)
    assert own.same_top is not None
    assert own.same_top.all()


def test_a_logit_that_is_not_finite_makes_only_its_token_not_finite() -> None:
    broken = logits(1)
    broken[3, 5] = np.nan
    assert np.isfinite(surprises(broken, FOLLOWING).surprises).sum() == TOKENS - 1
    _, own = compared(logits(1), broken, FOLLOWING)
    assert own.divergences is not None
    assert np.isfinite(own.divergences).sum() == TOKENS - 1


def test_consecutive_parts_are_joined() -> None:
    whole = surprises(logits(1), FOLLOWING)
    parts = [Likelihoods(whole.surprises[:7]), Likelihoods(whole.surprises[7:])]
    assert joined(parts).surprises.tolist() == whole.surprises.tolist()
    assert joined(parts).divergences is None
