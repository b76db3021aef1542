"""Decoding and encoding of tensor types: numpy for plain numbers, the `gguf` package for quantised blocks.

The types that this package cannot encode are encoded by `libgguf`, the extra `quantize`, as ggml does it. Packages are
imported on first use of a quantised type, because they are slow to import. Hostile blocks (infinite scales,
signalling NaNs) decode to the result of the arithmetic, without a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import version
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from organs.registry.errors import UnsupportedDType
from organs.registry.gguf.types import DType

Floats: TypeAlias = NDArray[np.float32] | NDArray[np.float64]

CHUNK_ELEMENTS = 1 << 16
"""Values per call of a kernel: so few that its scratch arrays stay in the cache (4 times faster than 512 Ki)."""

PIECE_ELEMENTS = 1 << 18
"""Values in one step of decoding. The limit is necessary: a chunk of 1-bit weights is twenty times as large in
float32."""

ENCODED_TOGETHER = 256
"""The values of the largest block. No encoder without an importance matrix looks at others."""

FLOAT32_MAX = float(np.finfo(np.float32).max)
FLOAT16_MAX = float(np.finfo(np.float16).max)
BFLOAT16_MAX = 3.3895313892515355e38

_PLAIN = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8"}
_WIDE = frozenset({"F64", "I32", "I64"})
_ENCODED_HERE = frozenset({"F32", "F16", "BF16", "F64"})


def can_dequantize(dtype: DType) -> bool:
    """Return whether values of `dtype` can be decoded."""
    return dtype.name in _PLAIN or dtype.name == "BF16" or _has_kernel(dtype, "dequantize")


def can_quantize(dtype: DType) -> bool:
    """Return whether values can be encoded as `dtype`; False for integers, because rounded weights are useless."""
    return dtype.name in _ENCODED_HERE or _has_kernel(dtype, "quantize")


def decode(data: bytes | bytearray | memoryview, dtype: DType) -> Floats:
    """Return the values in `data` as a flat array without loss of range: float64 for F64, I32 and I64, else float32.

    `data` must be whole blocks of `dtype`. The array may be a read-only view of `data`. Raises UnsupportedDType.
    """
    size_bytes = memoryview(data).nbytes
    assert size_bytes % dtype.block_bytes == 0
    if size_bytes == 0:
        return np.empty(0, np.float32)
    if dtype.name == "BF16":
        bits = np.frombuffer(data, "<u2").astype(np.uint32)
        bits <<= np.uint32(16)  # in place: allocating a second array takes as long as the shift
        return bits.view(np.float32)
    if dtype.name == "F16":
        return _float32_of_f16().take(np.frombuffer(data, "<u2"), mode="wrap")
    plain = _PLAIN.get(dtype.name)
    if plain is not None:
        numbers = np.frombuffer(data, plain)
        if dtype.name in _WIDE:
            return numbers.astype(np.float64, copy=False)
        return numbers.astype(np.float32, copy=False)
    if not _has_kernel(dtype, "dequantize"):
        raise UnsupportedDType(f"no kernel reads the values of tensor type {dtype.name}")
    kernels, types = _package()
    blocks = np.frombuffer(data, np.uint8)
    chunk_bytes = CHUNK_ELEMENTS // dtype.block_elements * dtype.block_bytes
    values = np.empty(blocks.size // dtype.block_bytes * dtype.block_elements, np.float32)
    with np.errstate(all="ignore"):
        for index, start in enumerate(range(0, blocks.size, chunk_bytes)):
            part = kernels.dequantize(blocks[start : start + chunk_bytes], types[dtype.name])
            values[index * CHUNK_ELEMENTS : index * CHUNK_ELEMENTS + part.size] = part
    return values


@cache
def _float32_of_f16() -> NDArray[np.float32]:
    """Return the value of each F16. To look up a value takes a third of the time of numpy's cast."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def dequantize(data: bytes | bytearray | memoryview, dtype: DType) -> NDArray[np.float32]:
    """Return the values in `data` as a flat float32 array.

    `data` must be whole blocks of `dtype`. Finite values outside the range of float32 (only in F64) become its largest
    value, not infinite. The array may be a read-only view of `data`. Raises UnsupportedDType.
    """
    values = decode(data, dtype)
    if values.dtype == np.float32:
        return values.astype(np.float32, copy=False)
    return _saturated(values, FLOAT32_MAX).astype(np.float32)


def whole_blocks(pieces: Iterable[bytes | bytearray | memoryview], dtype: DType) -> Iterator[memoryview]:
    """Yield the consecutive bytes of a tensor in other pieces: whole blocks with at most PIECE_ELEMENTS values.

    The given pieces may have any length. One of them is not used after the next one is requested, so all may share a
    buffer. Together they must be whole blocks of `dtype`.
    """
    most_bytes = max(1, PIECE_ELEMENTS // dtype.block_elements) * dtype.block_bytes
    rest = b""
    for piece in pieces:
        view = memoryview(piece)
        if rest:
            missing = dtype.block_bytes - len(rest)
            rest += bytes(view[:missing])
            if len(rest) < dtype.block_bytes:
                continue
            yield memoryview(rest)
            view = view[missing:]
        whole = len(view) - len(view) % dtype.block_bytes
        for begin in range(0, whole, most_bytes):
            yield view[begin : min(begin + most_bytes, whole)]
        rest = bytes(view[whole:])
    assert not rest


def quantize(values: Floats, dtype: DType) -> bytes:
    """Return `values` (flat, whole blocks) as bytes of `dtype`; raises UnsupportedDType if `can_quantize` is false.

    Rounds to nearest even. Finite values outside the range of F32, F16 or BF16 become its largest value.
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
            single = _saturated(values, BFLOAT16_MAX).astype(np.float32, copy=False)
            bits = single.view(np.uint32)
            rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
            quiet = (bits >> np.uint32(16)) | np.uint32(0x40)  # a NaN becomes a quiet NaN, as in ggml
            return np.where(np.isnan(single), quiet, rounded).astype("<u2").tobytes()
    if not _has_kernel(dtype, "quantize"):
        raise UnsupportedDType(f"no kernel writes values as tensor type {dtype.name}")
    kernels, types = _package()
    with np.errstate(all="ignore"):
        single = _saturated(values, FLOAT32_MAX).astype(np.float32, copy=False)
        return b"".join(
            kernels.quantize(single[start : start + CHUNK_ELEMENTS], types[dtype.name]).tobytes()
            for start in range(0, single.size, CHUNK_ELEMENTS)
        )


def encoder_of(dtype: DType) -> str | None:
    """Return the name and version of the encoder of `encode` for a quantised `dtype`; None if there is none here."""
    if _encoder_type(dtype) is not None:
        return f"libgguf {version('libgguf')}"
    return f"gguf {version('gguf')}" if dtype.block_elements > 1 and _has_kernel(dtype, "quantize") else None


def has_encoder() -> bool:
    """Return whether the extra `quantize` is installed."""
    return _encoder() is not None


def needs_importance(dtype: DType) -> bool:
    """Return whether the encoder of `dtype` needs an importance matrix."""
    encoder = _encoder()
    kind = None if encoder is None else encoder.GGMLQuantizationType.__members__.get(dtype.name)
    return kind is not None and bool(encoder.quantize_requires_imatrix(kind))


def can_encode(dtype: DType) -> bool:
    """Return whether `encode` works for a quantised `dtype` in this installation."""
    return dtype.block_elements > 1 and (_has_kernel(dtype, "quantize") or _encoder_type(dtype) is not None)


def encode(values: Floats, dtype: DType) -> bytes:
    """Return `values` (flat, whole blocks) as the quantised blocks that ggml makes without an importance matrix.

    Raises UnsupportedDType if `can_encode` is false.
    """
    assert values.ndim == 1
    assert values.size % dtype.block_elements == 0
    kind = _encoder_type(dtype)
    if kind is None:
        return quantize(values, dtype)
    filled = np.pad(_saturated(values, FLOAT32_MAX), (0, -values.size % ENCODED_TOGETHER))
    rows = np.ascontiguousarray(filled, np.float32).reshape(-1, ENCODED_TOGETHER)
    return np.asarray(_encoder().quantize_rows(rows, kind)).tobytes()[: dtype.size_bytes(values.size)]


def can_weigh(dtype: DType) -> bool:
    """Return whether `encode_weighted` works for a quantised `dtype` in this installation."""
    return _weighted_type(dtype) is not None


def encode_weighted(rows: Floats, dtype: DType, importances: NDArray[np.float32]) -> bytes:
    """Return `rows` (count × length) as the blocks that ggml makes with an importance matrix.

    `importances` has one value of at least 0 for each column. Raises UnsupportedDType if `can_weigh` is false.
    """
    assert rows.shape[1:] == importances.shape
    kind = _weighted_type(dtype)
    if kind is None:
        raise UnsupportedDType(f"no encoder writes {dtype.name} by an importance matrix")
    single = np.ascontiguousarray(_saturated(rows, FLOAT32_MAX), np.float32)
    return np.asarray(_encoder().quantize_rows(single, kind, importances)).tobytes()


def _saturated(values: Floats, limit: float) -> Floats:
    """Return `values` with all finite values limited to ± `limit`; NaN and infinities are not changed."""
    if values.size == 0 or (values.max() <= limit and values.min() >= -limit):  # False if there is a NaN
        return values
    bound = values.dtype.type(limit)
    clipped: Floats = np.where(np.isinf(values), values, np.clip(values, -bound, bound))
    return clipped


@cache
def _has_kernel(dtype: DType, verb: str) -> bool:
    """Return whether the `gguf` package can `verb` ("quantize", "dequantize") this dtype; it tries a block of zeros."""
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


@cache
def _encoder_type(dtype: DType) -> Any:
    """Return the type of the encoder's enumeration; None if it cannot encode `dtype` without an importance matrix."""
    encoder = _encoder()
    kind = None if encoder is None else encoder.GGMLQuantizationType.__members__.get(dtype.name)
    if kind is None:
        return None
    try:
        if encoder.quantize_requires_imatrix(kind):
            return None
        found = np.asarray(encoder.quantize_rows(np.zeros((1, ENCODED_TOGETHER), np.float32), kind))
    except (ValueError, NotImplementedError, RuntimeError):
        return None
    return kind if found.nbytes == dtype.size_bytes(ENCODED_TOGETHER) else None


@cache
def _weighted_type(dtype: DType) -> Any:
    """Return the type of the encoder's enumeration; None if it cannot encode `dtype` with an importance matrix."""
    encoder = _encoder()
    kind = None if encoder is None else encoder.GGMLQuantizationType.__members__.get(dtype.name)
    if kind is None or dtype.block_elements == 1:
        return None
    try:
        row, weights = np.zeros((1, ENCODED_TOGETHER), np.float32), np.ones(ENCODED_TOGETHER, np.float32)
        found = np.asarray(encoder.quantize_rows(row, kind, weights))
    except (ValueError, NotImplementedError, RuntimeError):
        return None
    return kind if found.nbytes == dtype.size_bytes(ENCODED_TOGETHER) else None


@cache
def _encoder() -> Any:
    """Import `libgguf`; return None if it is not installed."""
    try:
        import libgguf
    except ImportError:
        return None
    return libgguf


def _package() -> tuple[Any, Any]:
    """Import the `gguf` package; return its kernels and its enumeration of tensor types."""
    from gguf import GGMLQuantizationType, quants

    return quants, GGMLQuantizationType
