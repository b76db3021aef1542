"""Tests of reading and writing values of every tensor type, with the `gguf` package as the oracle."""

from __future__ import annotations

import subprocess
import sys

import gguf
import numpy as np
import pytest
from gguf import quants as oracle
from numpy.typing import NDArray

from organs.registry.errors import UnsupportedDType
from organs.registry.gguf.quants import (
    CHUNK_ELEMENTS,
    can_dequantize,
    can_encode,
    can_quantize,
    decode,
    dequantize,
    encode,
    quantize,
)
from organs.registry.gguf.types import DTYPES, UNQUANTISED, DType, dtype_by_name
from tests.llama_quants import quantised

WITHOUT_KERNEL = {"Q8_1", "Q8_K", "Q1_0"}
QUANTISED = [dtype for dtype in DTYPES.values() if dtype.name not in UNQUANTISED | WITHOUT_KERNEL]
WRITTEN_QUANTISED = [
    dtype_by_name(name) for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4")
]
INTEGERS = [dtype_by_name(name) for name in ("I8", "I16", "I32", "I64")]


def name_of(dtype: DType) -> str:
    return dtype.name


def random_blocks(dtype: DType, elements: int) -> bytes:
    return np.random.default_rng(dtype.id).bytes(dtype.size_bytes(elements))


def gaussian(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(5).standard_normal(count).astype(np.float32)


@pytest.mark.parametrize("dtype", QUANTISED, ids=name_of)
@pytest.mark.parametrize("elements", [256, 3 * 256, CHUNK_ELEMENTS, CHUNK_ELEMENTS + 256])
def test_quantised_values_equal_those_of_the_package_for_any_bytes(dtype: DType, elements: int) -> None:
    data = random_blocks(dtype, elements)
    with np.errstate(all="ignore"):
        expected = oracle.dequantize(np.frombuffer(data, np.uint8), gguf.GGMLQuantizationType[dtype.name])
    values = dequantize(data, dtype)
    assert values.dtype == np.float32
    assert values.shape == (elements,)
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_every_bit_pattern_of_a_plain_float_reads_as_in_the_package(name: str) -> None:
    patterns = np.arange(1 << 16, dtype=np.uint16)
    data = patterns.tobytes() if name != "F32" else (patterns.astype(np.uint32) << 16).tobytes()
    with np.errstate(invalid="ignore"):
        expected = oracle.dequantize(np.frombuffer(data, np.uint8), gguf.GGMLQuantizationType[name])
    values = dequantize(data, dtype_by_name(name))
    assert values.dtype == np.float32
    np.testing.assert_array_equal(values, expected.ravel())


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_integers_read_as_numbers_at_both_ends_of_their_range(dtype: DType) -> None:
    bits = 8 * dtype.block_bytes
    numbers = [0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))]
    data = b"".join(number.to_bytes(dtype.block_bytes, "little", signed=True) for number in numbers)
    assert dequantize(data, dtype).tolist() == [float(np.float32(number)) for number in numbers]


def test_doubles_beyond_float32_become_its_largest_and_never_infinite() -> None:
    largest = float(np.finfo(np.float32).max)
    data = np.array([1e300, -1e300, np.inf, -np.inf, np.nan, 0.5]).tobytes()
    values = dequantize(data, dtype_by_name("F64"))
    np.testing.assert_array_equal(values, np.array([largest, -largest, np.inf, -np.inf, np.nan, 0.5], np.float32))
    assert decode(data, dtype_by_name("F64"))[0] == 1e300


@pytest.mark.parametrize("dtype", [*QUANTISED, *map(dtype_by_name, ("F16", "BF16", "F32", "F64"))], ids=name_of)
@pytest.mark.parametrize("byte", [0x00, 0x7F, 0x80, 0xFD, 0xFF])
def test_hostile_blocks_decode_without_a_warning(dtype: DType, byte: int) -> None:
    # Warnings are errors here: infinite scales, signalling NaNs and the largest quants must all pass.
    assert dequantize(bytes([byte]) * dtype.size_bytes(512), dtype).shape == (512,)


def test_a_type_that_cannot_be_read_or_written_is_refused_by_its_name() -> None:
    unread = [dtype for dtype in DTYPES.values() if not can_dequantize(dtype)]
    unwritten = [dtype for dtype in DTYPES.values() if not can_quantize(dtype)]
    for dtype in unread:
        with pytest.raises(UnsupportedDType, match=dtype.name):
            dequantize(bytes(dtype.block_bytes), dtype)
    for dtype in unwritten:
        with pytest.raises(UnsupportedDType, match=dtype.name):
            quantize(np.zeros(dtype.block_elements, np.float32), dtype)
    assert {dtype.name for dtype in unread} == WITHOUT_KERNEL
    written = {"F32", "F16", "BF16", "F64"} | {dtype.name for dtype in WRITTEN_QUANTISED}
    assert {dtype.name for dtype in unwritten} == {dtype.name for dtype in DTYPES.values()} - written


@pytest.mark.parametrize("dtype", [*WRITTEN_QUANTISED, *map(dtype_by_name, ("F32", "F16", "BF16"))], ids=name_of)
def test_written_bytes_equal_those_of_the_package(dtype: DType) -> None:
    values = gaussian(CHUNK_ELEMENTS + 512)
    expected = oracle.quantize(values, gguf.GGMLQuantizationType[dtype.name])
    assert quantize(values, dtype) == expected.tobytes()


def test_doubles_are_written_and_read_to_the_last_bit() -> None:
    values = np.random.default_rng(1).standard_normal(100) * 1e-300
    dtype = dtype_by_name("F64")
    assert decode(quantize(values, dtype), dtype).tolist() == values.tolist()


@pytest.mark.parametrize(("name", "largest"), [("F16", 65504.0), ("BF16", 3.3895313892515355e38)])
def test_values_beyond_the_range_become_the_largest_and_nonfinite_values_stay(name: str, largest: float) -> None:
    values = np.array([3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 1.0], np.float32)
    dtype = dtype_by_name(name)
    expected = np.array([largest, -largest, np.inf, -np.inf, np.nan, 1.0], np.float32)
    np.testing.assert_array_equal(dequantize(quantize(values, dtype), dtype), expected)


def test_a_nan_with_its_last_bits_set_stays_a_nan_in_bf16() -> None:
    values = np.array([0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    dtype = dtype_by_name("BF16")
    assert np.isnan(dequantize(quantize(values, dtype), dtype)).all()


def test_plain_floats_are_read_without_loading_the_slow_package() -> None:
    code = (
        "import sys; from organs.registry.gguf.quants import dequantize\n"
        "from organs.registry.gguf.types import dtype_by_name\n"
        "dequantize(bytes(8), dtype_by_name('BF16')); assert 'gguf' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "dtype", [dtype for dtype in DTYPES.values() if can_encode(dtype)], ids=lambda dtype: dtype.name
)
def test_encoded_blocks_are_those_of_llama_cpp(dtype: DType) -> None:
    values = (0.05 * np.random.default_rng(5).standard_t(4, (2, 512))).astype(np.float32)
    for rows in (values, values[:, : 256 + dtype.block_elements], values[:1, : dtype.block_elements]):
        part = np.ascontiguousarray(rows)
        assert encode(part.reshape(-1), dtype) == quantised(part, dtype).tobytes()


def test_types_that_need_an_importance_matrix_are_not_encoded() -> None:
    names = {dtype.name for dtype in DTYPES.values() if can_encode(dtype)}
    assert {"Q8_0", "Q4_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"} <= names
    assert names.isdisjoint({"IQ1_S", "IQ2_XXS", "IQ2_XS", "F16", "I8"})
