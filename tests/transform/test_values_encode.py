"""Tests of the type of a computed organ, and of values that cannot be written."""

from __future__ import annotations

import numpy as np
import pytest

from organs.registry.errors import BadOrgan, UnsupportedDType
from organs.registry.gguf import DType, dtype_by_name
from organs.registry.transform import Computation, encoded_dtype
from organs.registry.transform.values import (
    WANTED,
    WINDOW_ELEMENTS,
    WRITTEN_AS_THEY_ARE,
    Plain,
    encoded,
)
from tests.transform.memory_organs import (
    BF16,
    F16,
    F32,
    F64,
    Q4_0,
    Q8_0,
    Reads,
    computed_bytes,
    organ,
    values_in,
    values_of,
    weights,
)

ALIKE = [dtype_by_name(name) for name in WRITTEN_AS_THEY_ARE]


@pytest.mark.parametrize("wanted", WANTED)
def test_a_type_that_can_be_written_is_kept_and_others_become_the_requested_type(wanted: str) -> None:
    for dtype in ALIKE:
        assert encoded_dtype(dtype, 256, wanted) == dtype
    for name in ("Q4_K", "Q6_K", "IQ4_NL", "IQ2_XXS", "NVFP4", "MXFP4", "TQ1_0", "TQ2_0"):
        assert encoded_dtype(dtype_by_name(name), 256, wanted).name == wanted
    assert encoded_dtype(F64, 33, wanted) == F32
    unaligned = encoded_dtype(dtype_by_name("IQ4_NL"), 33, wanted)
    assert unaligned.name == (wanted if dtype_by_name(wanted).block_elements == 1 else "F16")


@pytest.mark.parametrize("name", ["I8", "I16", "I32", "I64", "Q8_1", "Q8_K", "Q1_0"])
def test_whole_numbers_and_unreadable_types_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedDType, match=name):
        encoded_dtype(dtype_by_name(name), 256)


@pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=lambda dtype: dtype.name)
def test_plain_floats_encoded_again_are_the_same_bytes(dtype: DType) -> None:
    source = organ(weights(3000), dtype)
    assert computed_bytes(Computation(source, dtype)) == source.read(0, source.size_bytes)


@pytest.mark.parametrize("dtype", ALIKE, ids=lambda dtype: dtype.name)
def test_an_organ_of_another_type_is_read_and_written_in_windows(dtype: DType) -> None:
    kind = dtype_by_name("Q6_K")
    elements = WINDOW_ELEMENTS + 512
    # Random quants and small scales; the last two bytes of a block are the common scale, 1 in F16.
    blocks = np.random.default_rng(0).integers(0, 256, (elements // 256, kind.block_bytes), np.uint8)
    blocks[:, -2:] = (0x00, 0x3C)
    source = Plain(Reads(blocks.tobytes(), []), kind, (256, elements // 256))
    written = values_in(computed_bytes(Computation(source, dtype)), dtype)
    spread = values_of(source).std()
    assert np.sqrt(np.mean((written - values_of(source)) ** 2)) < spread * (0.12 if "4" in dtype.name else 0.06)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [(F16, 65_600.0), (BF16, 3.395e38), (F32, 1e39), (Q8_0, 1e8), (Q4_0, -1e7), (F16, np.nan), (Q8_0, np.inf)],
)
def test_a_value_beyond_the_type_is_refused_and_not_clipped(dtype: DType, value: float) -> None:
    values = np.zeros(32)
    values[5] = value
    with pytest.raises(BadOrgan, match=dtype.name):
        encoded(values, dtype)


@pytest.mark.parametrize("dtype", ALIKE, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("value", [0.0, -0.0, 1e-41, -1e-41, 1e-300, 5e-324])
def test_zeros_and_the_smallest_numbers_are_written_as_almost_zero(dtype: DType, value: float) -> None:
    data, decoded = encoded(np.array([value, 0.0] * 16), dtype)
    assert np.abs(decoded).max() <= max(abs(value), 2e-45)
    assert (values_in(data, dtype) == decoded).all()
