"""Tests of counting NaN and infinite values in every tensor type, as the kernels decode them."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from organs.registry.gguf.quants import can_dequantize, decode, quantize
from organs.registry.gguf.types import DTYPES, DType, dtype_by_name
from organs.registry.measure.nonfinite import STEP_BYTES, count_nonfinite, count_nonfinite_in

READABLE = [dtype for dtype in DTYPES.values() if can_dequantize(dtype)]
ODD_FLOATS = [np.nan, -np.nan, np.inf, -np.inf]
ORDINARY = [0.0, -0.0, 1.5, -3.25, 6e-8, 65504.0, -65504.0]


def by_kernel(data: bytes, dtype: DType) -> int:
    """Return the count from the decoded values; types without a kernel cannot be decoded."""
    return int(np.count_nonzero(~np.isfinite(decode(data, dtype))))


@pytest.mark.parametrize("dtype", READABLE, ids=lambda dtype: dtype.name)
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_count_for_any_bytes_equals_that_of_the_decoded_values(seed: int, dtype: DType) -> None:
    generator = np.random.default_rng(seed)
    data = generator.integers(0, 256, 64 * dtype.block_bytes, np.uint8)
    data[generator.random(data.size) < 0.2] = 0xFF  # exponents and scales that are rare in random bytes
    assert count_nonfinite(data.tobytes(), dtype) == by_kernel(data.tobytes(), dtype)


@pytest.mark.parametrize("name", ["F16", "BF16", "F32", "F64"])
@pytest.mark.parametrize("odd", ODD_FLOATS)
def test_a_single_nonfinite_value_is_found_at_any_position(odd: float, name: str) -> None:
    dtype = dtype_by_name(name)
    count = STEP_BYTES // dtype.block_bytes + 1000
    for place in (0, 1, STEP_BYTES // dtype.block_bytes - 1, STEP_BYTES // dtype.block_bytes, count - 1):
        values = np.resize(np.array(ORDINARY), count)
        assert count_nonfinite(quantize(values, dtype), dtype) == 0
        values[place] = odd
        assert count_nonfinite(quantize(values, dtype), dtype) == 1


@pytest.mark.parametrize(("name", "offset"), [("Q8_K", 0), ("Q8_1", 0), ("Q8_1", 4)])
@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, 3e38])
def test_a_scale_of_a_type_that_no_kernel_reads_counts_its_block(scale: float, name: str, offset: int) -> None:
    dtype = dtype_by_name(name)
    data = bytearray(3 * dtype.block_bytes)
    assert count_nonfinite(data, dtype) == 0
    data[dtype.block_bytes + offset : dtype.block_bytes + offset + 4] = np.float32(scale).tobytes()
    assert count_nonfinite(data, dtype) == dtype.block_elements


@pytest.mark.parametrize("name", ["F16", "Q8_0", "Q6_K"])
def test_pieces_of_any_length_have_the_count_of_the_whole(name: str) -> None:
    dtype = dtype_by_name(name)
    data = random_blocks(dtype, 40)
    expected = count_nonfinite(data, dtype)
    assert expected
    lengths = Random(7)
    for longest in (1, dtype.block_bytes - 1, dtype.block_bytes, 3 * dtype.block_bytes + 1, len(data)):
        assert count_nonfinite_in(cut(data, longest, lengths), dtype) == expected, longest
    assert count_nonfinite_in([], dtype) == 0


def cut(data: bytes, longest: int, lengths: Random) -> Iterator[memoryview]:
    """Yield `data` in pieces of up to `longest` bytes, all in one reused buffer."""
    buffer, begin = memoryview(bytearray(longest)), 0
    while begin < len(data):
        piece = data[begin : begin + lengths.randint(1, longest)]
        buffer[: len(piece)] = piece
        yield buffer[: len(piece)]
        begin += len(piece)


def random_blocks(dtype: DType, count: int) -> bytes:
    """Return blocks in which some values are NaN or infinite."""
    data = bytearray(Random(3).randbytes(count * dtype.block_bytes))
    data[-dtype.block_bytes :] = b"\xff" * dtype.block_bytes
    return bytes(data)


def test_every_type_except_integers_and_nvfp4_is_checked() -> None:
    unseen = [dtype.name for dtype in DTYPES.values() if not count_nonfinite(b"\xff" * dtype.block_bytes, dtype)]
    assert unseen == ["I8", "I16", "I32", "I64", "NVFP4"]
