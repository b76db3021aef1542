"""Tests of reading the values of an organ in windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from organs.registry.errors import BadOrgan
from organs.registry.transform.values import (
    WINDOW_ELEMENTS,
    in_windows,
)
from tests.transform.memory_organs import F16, F32, F64, Q8_0, Reads, organ, values_of, weights


def test_windows_give_all_values_in_order_with_one_read_each() -> None:
    source = organ(weights(2 * WINDOW_ELEMENTS + 96), Q8_0)
    windows = list(source.windows())
    assert [window.size for window in windows] == [WINDOW_ELEMENTS, WINDOW_ELEMENTS, 96]
    assert (np.concatenate(windows) == values_of(source)).all()
    assert isinstance(source.read, Reads)
    assert [size for _, size in source.read.made[:3]] == [WINDOW_ELEMENTS // 32 * 34] * 2 + [3 * 34]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_nan_or_infinite_value_is_refused(value: float) -> None:
    values = weights(256)
    values[77] = value
    for dtype in (F32, F16, F64):
        with pytest.raises(BadOrgan, match=r"one of the 256 values from number 0 on cannot be stored as F32"):
            list(organ(values, dtype).windows())


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(0, 3 * WINDOW_ELEMENTS // 2), max_size=4))
def test_any_cut_into_bands_gives_the_same_windows(sizes: list[int]) -> None:
    values = np.arange(float(sum(sizes)))
    bands = np.split(values, np.cumsum(sizes)[:-1]) if sizes else []
    windows = list(in_windows(bands))
    assert all(window.size == WINDOW_ELEMENTS for window in windows[:-1])
    assert (np.concatenate([np.empty(0), *windows]) == values).all()
