"""The number of NaN and infinite values of a tensor, from all values, not from a sample.

Plain floats are tested as integers: a value is NaN or infinite exactly when all bits of its exponent are set. In a
quantised block, NaN and infinite values come only from the scales. The layouts are those of ggml's `ggml-common.h`.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from organs.registry.gguf.quants import can_dequantize, decode, whole_blocks
from organs.registry.gguf.types import DType

Data = bytes | bytearray | memoryview

STEP_BYTES = 1 << 20
"""Bytes that are tested in one step; so few stay in the cache of the processor."""

_EXPONENTS = {"F16": (2, 0x7C00), "BF16": (2, 0x7F80), "F32": (4, 0x7F80_0000), "F64": (8, 0x7FF0_0000_0000_0000)}
"""The size of a value in bytes, and the mask of its exponent."""
_HALF_SCALES = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS", "Q1_0"), (0,)),
    **dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ1_0": (52,),
    "TQ2_0": (64,),
}
"""The offsets of the F16 scales in a block. Each value of the block is a multiple of a scale, or a sum of multiples."""
_SINGLE_SCALES = {"Q8_K": (0,), "Q8_1": (0, 4)}
"""The offsets of the F32 scales in a block."""
_SINGLE_SCALE_MAX = float(np.finfo(np.float32).max) / 128
"""The product of a larger scale and the largest 8-bit value overflows F32."""
_MXFP4_SCALE_MAX = 252
"""The largest power of two (E8M0) with which the largest value of a block, 12, stays within F32."""
_IQ1_M_SCALES = 48
"""The offset of four words in a block of IQ1_M. Their highest 4 bits together are the F16 scale."""


def count_nonfinite(data: Data, dtype: DType) -> int:
    """Return the number of NaN and infinite values in `data`, which is whole blocks of `dtype`.

    If a scale is NaN or infinite, all values of its block are counted. NVFP4 and integers have no such values: ggml
    reads the bit pattern of NaN in E4M3 as 0. Those of foreign types are unknown.
    """
    if dtype.is_foreign:
        return 0
    view = memoryview(data).cast("B") if memoryview(data).nbytes else memoryview(b"")
    assert view.nbytes % dtype.block_bytes == 0
    step = max(1, STEP_BYTES // dtype.block_bytes) * dtype.block_bytes
    return sum(_count(view[begin : begin + step], dtype) for begin in range(0, view.nbytes, step))


def count_nonfinite_in(pieces: Iterable[Data], dtype: DType) -> int:
    """Return the number of NaN and infinite values in `pieces`, the consecutive bytes of a tensor.

    See `registry.gguf.quants.whole_blocks` on the pieces.
    """
    if dtype.is_foreign:
        return sum(count_nonfinite(piece, dtype) for piece in pieces)
    return sum(count_nonfinite(blocks, dtype) for blocks in whole_blocks(pieces, dtype))


def _count(data: memoryview, dtype: DType) -> int:
    if dtype.name in _EXPONENTS:
        return _count_floats(data, *_EXPONENTS[dtype.name])
    bad = _bad_blocks(data, dtype)
    if bad is None:
        return 0
    if dtype.name == "MXFP4" and bad.any():  # the scale does not decide alone: 0 times a large scale is 0
        blocks = np.frombuffer(data, np.uint8).reshape(-1, dtype.block_bytes)[bad]
        assert can_dequantize(dtype)
        return int(np.count_nonzero(~np.isfinite(decode(blocks.tobytes(), dtype))))
    return int(np.count_nonzero(bad)) * dtype.block_elements


def _count_floats(data: memoryview, size: int, exponent: int) -> int:
    """Count the values whose exponent bits are all set.

    The maximum as signed integers shows whether a positive value is NaN or infinite; the maximum as unsigned integers
    shows it for negative values. These are two reductions without a temporary array. Values are counted only if one
    of the two finds something.
    """
    unsigned = np.frombuffer(data, f"<u{size}")
    sign = 1 << (8 * size - 1)
    if unsigned.max() < sign | exponent and unsigned.view(f"<i{size}").max() < exponent:
        return 0
    bits = unsigned.dtype.type(exponent)
    return int(np.count_nonzero((unsigned & bits) == bits))


def _bad_blocks(data: memoryview, dtype: DType) -> NDArray[np.bool_] | None:
    """Return a mask of the blocks with a bad scale; None for dtypes whose values are always finite.

    A scale is bad if it is NaN or infinite. In Q8_K, Q8_1 and MXFP4 it is also bad if its products can overflow.
    """
    if dtype.name in _HALF_SCALES:
        words = np.frombuffer(data, "<u2").reshape(-1, dtype.block_bytes // 2)
        return _any(_is_bad_half(words[:, offset // 2]) for offset in _HALF_SCALES[dtype.name])
    if dtype.name in _SINGLE_SCALES:
        singles = np.frombuffer(data, "<f4").reshape(-1, dtype.block_bytes // 4)
        columns = (np.abs(singles[:, offset // 4]) for offset in _SINGLE_SCALES[dtype.name])
        with np.errstate(invalid="ignore"):  # signalling NaNs
            return _any(~(column <= _SINGLE_SCALE_MAX) for column in columns)
    if dtype.name == "IQ1_M":
        words = np.frombuffer(data, "<u2").reshape(-1, dtype.block_bytes // 2)[:, _IQ1_M_SCALES // 2 :]
        high = (words & np.uint16(0xF000)) >> np.array([12, 8, 4, 0], np.uint16)
        return _is_bad_half(np.bitwise_or.reduce(high, axis=1))
    if dtype.name == "MXFP4":
        scales = np.frombuffer(data, np.uint8).reshape(-1, dtype.block_bytes)[:, 0]
        return np.asarray(scales > _MXFP4_SCALE_MAX)
    return None


def _is_bad_half(scales: NDArray[np.uint16]) -> NDArray[np.bool_]:
    return np.asarray((scales & np.uint16(0x7C00)) == 0x7C00)


def _any(columns: Iterable[NDArray[np.bool_]]) -> NDArray[np.bool_]:
    return np.asarray(np.logical_or.reduce(list(columns)))
