"""From surprises to a perplexity and its standard error."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.validation.surprise import estimate
from tests.strategies import PATIENT


def test_a_uniform_guess_has_the_perplexity_of_its_choices_and_no_error() -> None:
    found = estimate([math.log(2048)] * 128)
    assert found.perplexity == pytest.approx(2048)
    assert found.standard_error == pytest.approx(0, abs=1e-6)
    assert found.tokens == 128


def test_the_standard_error_is_that_of_the_mean_times_the_perplexity() -> None:
    surprises = [1.0, 2.0, 4.0, 5.0]
    found = estimate(surprises)
    assert found.perplexity == pytest.approx(math.exp(3.0))
    assert found.standard_error == pytest.approx(math.exp(3.0) * statistics.stdev(surprises) / 2)


def test_one_token_has_no_standard_error() -> None:
    assert estimate([1.5]).standard_error is None


@pytest.mark.parametrize("odd", [math.inf, math.nan, 1e4, 1e308, 3.4e38])
def test_a_surprise_beyond_floats_makes_the_perplexity_infinite(odd: float) -> None:
    found = estimate([odd] * 3)
    assert found.perplexity == math.inf
    assert found.standard_error is None


@PATIENT
@given(st.lists(st.floats(), min_size=1, max_size=50))
def test_any_surprises_give_a_number_and_never_an_error(surprises: list[float]) -> None:
    found = estimate(surprises)
    assert found.perplexity >= 0
    assert found.standard_error is None or (math.isfinite(found.standard_error) and found.standard_error >= 0)
