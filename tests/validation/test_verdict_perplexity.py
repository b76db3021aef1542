"""Tests of perplexities and their standard errors from surprises, alone and against another model."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.validation.verdict import (
    STORED_DIGITS,
    estimate,
    paired_error,
    rounded_surprises,
)
from tests.random_files import PATIENT


def test_a_uniform_guess_has_the_perplexity_of_its_choices_and_no_error() -> None:
    perplexity = estimate([math.log(2048)] * 128)
    assert perplexity.perplexity == pytest.approx(2048)
    assert perplexity.standard_error == pytest.approx(0, abs=1e-6)
    assert perplexity.tokens == 128


def test_the_standard_error_is_that_of_the_mean_times_the_perplexity() -> None:
    surprises = [1.0, 2.0, 4.0, 5.0]
    perplexity = estimate(surprises)
    assert perplexity.perplexity == pytest.approx(math.exp(3.0))
    assert perplexity.standard_error == pytest.approx(math.exp(3.0) * statistics.stdev(surprises) / 2)


def test_one_token_has_no_standard_error() -> None:
    assert estimate([1.5]).standard_error is None


@pytest.mark.parametrize("odd", [math.inf, math.nan, 1e4, 1e308, 3.4e38])
def test_a_surprise_beyond_floats_makes_the_perplexity_infinite(odd: float) -> None:
    perplexity = estimate([odd] * 3)
    assert perplexity.perplexity == math.inf
    assert perplexity.standard_error is None


@PATIENT
@given(st.lists(st.floats(), min_size=1, max_size=50))
def test_any_surprises_give_a_number_and_never_an_error(surprises: list[float]) -> None:
    perplexity = estimate(surprises)
    assert perplexity.perplexity >= 0
    assert perplexity.standard_error is None or (
        math.isfinite(perplexity.standard_error) and perplexity.standard_error >= 0
    )


def test_the_error_of_a_difference_is_that_of_the_mean_of_the_differences() -> None:
    first, second = [1.0, 9.0, 4.0, 2.0], [1.5, 9.1, 4.0, 3.0]
    differences = [pair - other for pair, other in zip(first, second, strict=True)]
    assert paired_error(first, second) == pytest.approx(statistics.stdev(differences) / 2)
    assert paired_error(first, second) == paired_error(second, first)
    alone = estimate(first)
    assert alone.standard_error is not None
    assert (paired_error(first, second) or 0.0) < alone.standard_error / alone.perplexity / 5


@pytest.mark.parametrize(("first", "second"), [(None, [1.0, 2.0]), ([1.0, 2.0], [1.0, 2.0, 3.0]), ([1.0], [2.0])])
def test_scores_of_different_tokens_have_no_error(first: list[float] | None, second: list[float]) -> None:
    assert paired_error(first, second) is None
    assert paired_error(second, first) is None


@given(
    st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.floats(0, 1e3)), min_size=2, max_size=20)
)
def test_any_surprises_have_an_error_that_is_finite_or_none(pairs: list[tuple[float, float]]) -> None:
    found = paired_error([pair for pair, _ in pairs], [other for _, other in pairs])
    assert found is None or (found >= 0.0 and math.isfinite(found))


def test_surprises_are_kept_rounded_and_only_where_all_are_finite() -> None:
    assert rounded_surprises([1.23456789, 0.0]) == (round(1.23456789, STORED_DIGITS), 0.0)
    assert rounded_surprises([1.0, math.inf]) is None
