"""Tests of a complete computation: adapters, purification, encoding, in order and with limited memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from organs.registry.errors import BadOrgan
from organs.registry.transform import Adapter, Computation, Plain, Purification, PurifyMethod, computed
from organs.registry.transform.values import WINDOW_ELEMENTS
from tests.transform.memory_organs import F16, F32, Q8_0, computed_bytes, organ, purified, values_in, values_of, weights

METHODS = list(PurifyMethod)
LARGE_ELEMENTS = 8 * WINDOW_ELEMENTS
PEAK_MAX_BYTES = 150_000_000


def large() -> Plain:
    """Return an organ of Q8_0 without bytes of its own: one window, repeated."""
    window = organ(weights(WINDOW_ELEMENTS), Q8_0).read(0, WINDOW_ELEMENTS // 32 * 34)

    def read(offset_bytes: int, size_bytes: int) -> bytes:
        begin = offset_bytes % len(window)
        assert begin + size_bytes <= len(window)
        return bytes(window[begin : begin + size_bytes])

    return Plain(read, Q8_0, (4096, LARGE_ELEMENTS // 4096))


def peak_bytes(pieces: Iterator[bytes]) -> tuple[int, int]:
    """Return the peak memory while the pieces are discarded one by one, and their size."""
    tracemalloc.start()
    try:
        size = sum(map(len, pieces))
        return tracemalloc.get_traced_memory()[1], size
    finally:
        tracemalloc.stop()


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_computing_eight_million_values_takes_no_more_memory_than_a_few_windows(method: PurifyMethod) -> None:
    a, b = organ(np.ones((1, 4096))), organ(np.ones((LARGE_ELEMENTS // 4096, 1)))
    computation = Computation(large(), Q8_0, (Adapter(a, b, 0.0, 1e-3),), purification=Purification(method))
    peak, size = peak_bytes(computed(computation))
    assert size == computation.size_bytes
    assert peak < PEAK_MAX_BYTES


@pytest.mark.parametrize("method", METHODS)
def test_pieces_are_whole_windows_in_order_and_reproducible(method: PurifyMethod) -> None:
    source = organ(weights(2 * WINDOW_ELEMENTS + 320), Q8_0)
    computation = Computation(source, F16, purification=Purification(method))
    first, again = list(computed(computation)), list(computed(computation))
    assert [len(piece) for piece in first] == [2 * WINDOW_ELEMENTS, 2 * WINDOW_ELEMENTS, 640]
    assert first == again


@pytest.mark.parametrize("method", METHODS)
def test_the_bytes_equal_the_purified_array_in_a_lossless_type(method: PurifyMethod) -> None:
    source = organ(weights(5000), F16)
    values = values_in(computed_bytes(Computation(source, F32, purification=Purification(method, 0.8))), F32)
    np.testing.assert_allclose(values, purified(values_of(source), method, 0.8), rtol=1e-6, atol=1e-9)


def test_adapters_are_added_before_the_purification() -> None:
    base, b, a = (
        organ(weights(64 * 96).reshape(64, 96)),
        organ(weights(64 * 4, 1).reshape(64, 4)),
        organ(np.ones((4, 96))),
    )
    adapters = (Adapter(a, b, 4.0),)
    merged = organ(values_in(computed_bytes(Computation(base, F32, adapters)), F32).reshape(64, 96))
    purification = Purification(PurifyMethod.SPECTRAL)
    together = values_in(computed_bytes(Computation(base, F32, adapters, purification=purification)), F32)
    one_by_one = values_in(computed_bytes(Computation(merged, F32, purification=purification)), F32)
    np.testing.assert_allclose(together, one_by_one, rtol=1e-5, atol=1e-8)


def test_a_fault_in_the_last_window_is_raised_after_the_earlier_bytes() -> None:
    values = weights(WINDOW_ELEMENTS + 32)
    values[-1] = np.nan
    pieces = computed(Computation(organ(values, F16), F16))
    assert len(next(pieces)) == 2 * WINDOW_ELEMENTS
    with pytest.raises(BadOrgan):
        next(pieces)
