"""Tests of fingerprints: 256 values by which relatives are found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from organs.registry.digest import digest_of
from organs.registry.measure.measurement import fingerprint
from organs.registry.measure.sample import spread
from organs.registry.similarity import FINGERPRINT_BYTES, coarse_rows, is_constant, value_rows
from tests.random_files import PATIENT


def gaussian(count: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def steps_of(values: NDArray[np.float32] | NDArray[np.float64]) -> NDArray[np.int8]:
    data = fingerprint(values)
    assert data is not None
    assert len(data) == FINGERPRINT_BYTES
    return coarse_rows([data])[0]


def test_fewer_than_256_values_have_no_fingerprint() -> None:
    assert fingerprint(gaussian(255)) is None
    assert fingerprint(gaussian(256)) is not None


def test_a_step_is_a_32nd_of_a_standard_deviation_up_to_127() -> None:
    values = gaussian(256)
    values[[10, 20]] = 9.0, -9.0
    exact = values.astype(np.float64)
    expected = np.rint(32 * (exact - exact.mean()) / exact.std())
    assert np.abs(steps_of(values) - np.clip(expected, -127, 127)).max() <= 1, "rounded twice"


@pytest.mark.parametrize("count", [257, 1000, 65_536, 98_304])
def test_the_choice_of_values_depends_only_on_their_count(count: int) -> None:
    positions = list(spread(count, 256))
    for values in (gaussian(count), np.random.default_rng(1).laplace(size=count)):
        assert steps_of(values).tolist() == steps_of(values[positions]).tolist()


@pytest.mark.parametrize("value", [0.0, 0.1, np.nan, np.inf, 3e38])
def test_equal_values_have_a_constant_fingerprint(value: float) -> None:
    data = fingerprint(np.full(1000, value, np.float32))
    assert data is not None
    assert is_constant(data)
    assert not steps_of(np.full(1000, value, np.float32)).any()


def test_a_fingerprint_has_the_values_to_a_32767th_of_the_largest_offset() -> None:
    values = gaussian(256) + np.float32(5.0)
    values[[3, 200]] = [np.nan, np.inf]
    found = value_rows([fingerprint(values) or b""])[0]
    known = np.isfinite(values)
    assert np.isnan(found[~known]).all()
    exact = values[known].astype(np.float64)
    assert np.abs(found[known] - exact).max() <= 0.5001 * np.abs(exact - exact.mean()).max() / 32_767


@PATIENT
@given(values=arrays(np.float64, 256, elements=st.floats(allow_subnormal=True)))
def test_any_doubles_have_a_fingerprint(values: NDArray[np.float64]) -> None:
    assert steps_of(values).min() >= -127


def test_the_bytes_of_a_known_organ_are_recorded() -> None:
    # After a change here, old and new fingerprints are no longer comparable.
    values = (np.arange(98_304) * 40_503 % 65_537 - 32_768).astype(np.float32)
    assert digest_of(steps_of(values).tobytes()) == "ef5fbebdef1f7cc269a68a182b2353dbf35d6a5ceecb785e9f7129d82963ec4c"
