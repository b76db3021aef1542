"""Tests of the type of a computed organ, and of values that cannot be written."""

from __future__ import annotations

import numpy as np
import pytest

from organs.registry.errors import BadOrgan, EncoderMissing, UnsupportedDType
from organs.registry.gguf import DType, dtype_by_name, quants
from organs.registry.transform import Computation, encoded_dtype
from organs.registry.transform.values import (
    FINER,
    SAME,
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


@pytest.mark.parametrize("wanted", [SAME, FINER, *WANTED])
def test_an_organ_keeps_its_type_or_gets_the_wanted_one(wanted: str) -> None:
    for name in (*WANTED, "MXFP4", "TQ1_0", "TQ2_0"):
        dtype = dtype_by_name(name)
        assert encoded_dtype(dtype, (256, 4), wanted).name == (wanted if wanted in WANTED else name)
        assert encoded_dtype(dtype, (256,), wanted) == dtype
        assert encoded_dtype(dtype, (256, 1), wanted) == dtype
    assert encoded_dtype(F64, (33,), wanted) == F32
    unaligned = encoded_dtype(F16, (33, 4), wanted)
    assert unaligned.name == (wanted if wanted in ("F32", "BF16") else "F16")


@pytest.mark.parametrize("name", ["IQ2_XXS", "IQ2_XS", "IQ1_S"])
def test_a_type_that_needs_an_importance_matrix_is_refused_with_another_one(name: str) -> None:
    with pytest.raises(UnsupportedDType, match=rf"{name} .* importance matrix: write encode: IQ2_S"):
        encoded_dtype(dtype_by_name(name), (256, 4))


def test_without_an_encoder_its_types_are_refused_and_others_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quants, "_encoder", lambda: None)
    quants._encoder_type.cache_clear()
    try:
        with pytest.raises(EncoderMissing, match=r"Q4_K .* not installed"):
            encoded_dtype(dtype_by_name("Q4_K"), (256, 4))
        assert encoded_dtype(dtype_by_name("Q4_K"), (256, 4), "Q8_0") == Q8_0
        assert encoded_dtype(Q4_0, (256, 4)) == Q4_0
    finally:
        quants._encoder_type.cache_clear()


@pytest.mark.parametrize("name", ["I8", "I16", "I32", "I64", "Q8_1", "Q8_K", "Q1_0"])
def test_whole_numbers_and_unreadable_types_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedDType, match=name):
        encoded_dtype(dtype_by_name(name), (256, 4))


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
