"""Values of a tensor type, and back: numpy for plain numbers, the kernels of the `gguf` package for quantised blocks.

The package is imported on first use of a quantised type, because it is slow to import. Hostile blocks (infinite scales,
signalling NaNs) decode to whatever the arithmetic gives, without a warning.
"""

from __future__ import annotations

from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from organs.registry.errors import UnsupportedDType
from organs.registry.gguf.types import DType

Floats: TypeAlias = NDArray[np.float32] | NDArray[np.float64]

CHUNK_ELEMENTS = 1 << 16
"""Values that a kernel is given at once, so that its scratch arrays stay in the cache (4 times faster than 512 Ki)."""

FLOAT32_MAX = float(np.finfo(np.float32).max)
FLOAT16_MAX = float(np.finfo(np.float16).max)
BFLOAT16_MAX = 3.3895313892515355e38

_PLAIN = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
_WIDE = frozenset({"F64", "I32", "I64"})
_ENCODED_HERE = frozenset({"F32", "F16", "BF16", "F64"})


def can_dequantize(dtype: DType) -> bool:
    """Whether the values of `dtype` can be read here."""
    return dtype.name in _PLAIN or dtype.name == "BF16" or _has_kernel(dtype, "dequantize")


def can_quantize(dtype: DType) -> bool:
    """Whether values can be written as `dtype` here. Integers cannot: weights rounded to whole numbers say nothing."""
    return dtype.name in _ENCODED_HERE or _has_kernel(dtype, "quantize")


def decode(data: bytes | bytearray | memoryview, dtype: DType) -> Floats:
    """The values in `data`, flat, without loss of range: float64 for F64, I32 and I64, float32 for all others.

    `data` is whole blocks of `dtype`. The array may be a read-only view of `data`. Raises UnsupportedDType.
    """
    size_bytes = memoryview(data).nbytes
    assert size_bytes % dtype.block_bytes == 0
    if size_bytes == 0:
        return np.empty(0, np.float32)
    if dtype.name == "BF16":
        bits = np.frombuffer(data, "<u2").astype(np.uint32)
        bits <<= np.uint32(16)  # in place: a second array of fresh pages costs as much as the work
        return bits.view(np.float32)
    plain = _PLAIN.get(dtype.name)
    if plain is None:
        return _dequantize_blocks(np.frombuffer(data, np.uint8), dtype)
    values = np.frombuffer(data, plain)
    with np.errstate(invalid="ignore"):  # a signalling NaN in F16
        if dtype.name in _WIDE:
            return values.astype(np.float64, copy=False)
        return values.astype(np.float32, copy=False)


def dequantize(data: bytes | bytearray | memoryview, dtype: DType) -> NDArray[np.float32]:
    """The values in `data` as float32, flat.

    `data` is whole blocks of `dtype`. Finite values beyond float32's range (F64 only) become its largest, never
    infinite. The array may be a read-only view of `data`. Raises UnsupportedDType.
    """
    values = decode(data, dtype)
    if values.dtype == np.float32:
        return values.astype(np.float32, copy=False)
    return _saturated(values, FLOAT32_MAX).astype(np.float32)


def quantize(values: Floats, dtype: DType) -> bytes:
    """`values` (flat, whole blocks) as bytes of `dtype`; raises UnsupportedDType where `can_quantize` is false.

    Rounds to nearest even. Finite values beyond the range of F32, F16 and BF16 become the largest that it holds.
    """
    assert values.ndim == 1
    assert values.size % dtype.block_elements == 0
    with np.errstate(invalid="ignore"):  # signalling NaNs
        if dtype.name == "F64":
            return values.astype("<f8").tobytes()
        if dtype.name == "F32":
            return _saturated(values, FLOAT32_MAX).astype("<f4").tobytes()
        if dtype.name == "F16":
            return _saturated(values, FLOAT16_MAX).astype("<f2").tobytes()
        if dtype.name == "BF16":
            return _bfloat16(_saturated(values, BFLOAT16_MAX).astype(np.float32, copy=False)).tobytes()
        return _quantize_blocks(_saturated(values, FLOAT32_MAX).astype(np.float32, copy=False), dtype)


def _saturated(values: Floats, limit: float) -> Floats:
    """`values` with every finite one within ± `limit`; NaN and infinities stay."""
    if values.size == 0 or (values.max() <= limit and values.min() >= -limit):  # false where there is a NaN
        return values
    bound = values.dtype.type(limit)
    clipped: Floats = np.where(np.isinf(values), values, np.clip(values, -bound, bound))
    return clipped


def _bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves of `values`, rounded to nearest even; NaN stays NaN (made quiet, as ggml does)."""
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
    return np.where(np.isnan(values), quiet, rounded).astype("<u2")


def _dequantize_blocks(blocks: NDArray[np.uint8], dtype: DType) -> NDArray[np.float32]:
    if not _has_kernel(dtype, "dequantize"):
        raise UnsupportedDType(f"no kernel reads the values of tensor type {dtype.name}")
    kernels, types = _package()
    kind = types[dtype.name]
    chunk_bytes = CHUNK_ELEMENTS // dtype.block_elements * dtype.block_bytes
    values = np.empty(blocks.size // dtype.block_bytes * dtype.block_elements, np.float32)
    with np.errstate(all="ignore"):
        for index, start in enumerate(range(0, blocks.size, chunk_bytes)):
            part = kernels.dequantize(blocks[start : start + chunk_bytes], kind)
            values[index * CHUNK_ELEMENTS : index * CHUNK_ELEMENTS + part.size] = part
    return values


def _quantize_blocks(values: NDArray[np.float32], dtype: DType) -> bytes:
    if not _has_kernel(dtype, "quantize"):
        raise UnsupportedDType(f"no kernel writes values as tensor type {dtype.name}")
    kernels, types = _package()
    kind = types[dtype.name]
    with np.errstate(all="ignore"):
        parts = [
            kernels.quantize(values[start : start + CHUNK_ELEMENTS], kind).tobytes()
            for start in range(0, values.size, CHUNK_ELEMENTS)
        ]
    return b"".join(parts)


@cache
def _has_kernel(dtype: DType, verb: str) -> bool:
    """Whether the `gguf` package can `verb` ("quantize", "dequantize") this dtype: a block of zeros is tried."""
    kernels, types = _package()
    if dtype.name not in types.__members__:
        return False
    reading = verb == "dequantize"
    block = np.zeros(dtype.block_bytes, np.uint8) if reading else np.zeros(dtype.block_elements, np.float32)
    try:
        with np.errstate(all="ignore"):
            getattr(kernels, verb)(block, types[dtype.name])
    except NotImplementedError:
        return False
    return True


def _package() -> tuple[Any, Any]:
    """The kernels of the `gguf` package and its enumeration of tensor types."""
    from gguf import GGMLQuantizationType, quants

    return quants, GGMLQuantizationType
