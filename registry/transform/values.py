"""Reading the values of an organ window by window, and encoding computed values as a tensor type."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from organs.registry.errors import BadOrgan, UnsupportedDType
from organs.registry.gguf.quants import BFLOAT16_MAX, FLOAT16_MAX, FLOAT32_MAX, can_dequantize, decode, quantize
from organs.registry.gguf.types import DType, dtype_by_name

Read: TypeAlias = Callable[[int, int], bytes | bytearray | memoryview]
"""`read(offset_bytes, size_bytes)` returns exactly these plain bytes of an organ; its first byte has the offset 0."""
Window: TypeAlias = NDArray[np.float64]
"""Consecutive values of an organ, flat."""

WINDOW_ELEMENTS = 1 << 20
"""Whole blocks of every dtype; 8 MiB in float64."""


@dataclass(frozen=True, slots=True)
class Plain:
    """The plain bytes of an organ, with its dtype and shape."""

    read: Read
    dtype: DType
    shape: tuple[int, ...]
    """Row length first, as in GGUF."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.dtype.size_bytes(self.elements)

    def values(self, start: int, count: int) -> Window:
        """Return `count` values from number `start`; both are whole blocks.

        Raises BadOrgan for a value that is NaN, infinite or out of range for float32, and UnsupportedDType if no kernel
        decodes the dtype.
        """
        size_bytes = self.dtype.size_bytes(count)
        data = self.read(self.dtype.size_bytes(start), size_bytes)
        assert memoryview(data).nbytes == size_bytes
        with np.errstate(invalid="ignore"):  # signalling NaNs
            values = decode(data, self.dtype).astype(np.float64)
        # F32 is the widest type that is written, so a larger value could not be stored.
        with np.errstate(invalid="ignore"):  # a NaN, which fails the comparison
            if values.size and not (values.max() <= FLOAT32_MAX and values.min() >= -FLOAT32_MAX):
                raise BadOrgan(f"one of the {count:,} values from number {start:,} on cannot be stored as F32")
        return values

    def windows(self) -> Iterator[Window]:
        """Yield all values, in order."""
        for start in range(0, self.elements, WINDOW_ELEMENTS):
            yield self.values(start, min(WINDOW_ELEMENTS, self.elements - start))


def in_windows(bands: Iterable[Window]) -> Iterator[Window]:
    """Yield the values of `bands` in windows of WINDOW_ELEMENTS; the last may be shorter. Bands may have any size."""
    parts: list[Window] = []
    missing = WINDOW_ELEMENTS
    for band in bands:
        rest = band
        while rest.size:
            parts.append(rest[:missing])
            rest = rest[missing:]
            missing -= parts[-1].size
            if missing == 0:
                yield np.concatenate(parts)
                parts, missing = [], WINDOW_ELEMENTS
    if parts:
        yield np.concatenate(parts)


WRITTEN_AS_THEY_ARE = ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")
"""Types that can be written here and hold weights of any distribution.

The kernels also write TQ1_0, TQ2_0 and MXFP4. These have few levels, which only suit weights that were trained for
them: a sum or a filtered organ was not.
"""
WANTED = ("Q8_0", "F16", "BF16", "F32")
"""The types that can be chosen for organs of other types."""

FLUSHED = 2.0**-100
"""Types with blocks write a smaller absolute value as 0."""

_WHOLE_NUMBERS = frozenset({"I8", "I16", "I32", "I64"})
_LARGEST = {"F16": FLOAT16_MAX, "BF16": BFLOAT16_MAX, "F32": FLOAT32_MAX}


def encoded_dtype(dtype: DType, row_length: int, wanted: str = "Q8_0") -> DType:
    """Return the type of an organ computed from an organ of `dtype`: `dtype` if it can be written, else `wanted`.

    F64 always becomes F32, because runtimes crash on an F64 feed-forward. If the row is not a whole number of blocks,
    the type is F16. `wanted` must be in `WANTED`. Raises UnsupportedDType for types of whole numbers, which hold no
    weights, and for types that cannot be decoded.
    """
    assert wanted in WANTED
    if dtype.name in _WHOLE_NUMBERS or not can_dequantize(dtype):
        raise UnsupportedDType(f"no weights can be computed from tensor type {dtype.name}")
    if dtype.name in WRITTEN_AS_THEY_ARE:
        return dtype
    other = dtype_by_name("F32" if dtype.name == "F64" else wanted)
    return other if row_length % other.block_elements == 0 else dtype_by_name("F16")


def encoded(values: Window, dtype: DType) -> tuple[bytes, Window]:
    """Return `values` (flat, whole blocks) as bytes of `dtype`, and the values that decoding these bytes gives.

    Raises BadOrgan if a value is not finite or too large for `dtype`: no value is clipped silently.
    """
    _refuse_beyond(_LARGEST.get(dtype.name, FLOAT32_MAX), values, dtype)
    if dtype.block_elements > 1:
        # The reciprocal of a very small scale would be infinite, and processors convert infinity to different whole
        # numbers. If a block has only values this small, its scale in F16 is 0 in any case.
        values = np.where(np.abs(values) < FLUSHED, 0.0, values)
    data = quantize(values, dtype)
    decoded = decode(data, dtype).astype(np.float64)
    _refuse_beyond(FLOAT32_MAX, decoded, dtype)  # the scale of a block is F16 and may be infinite
    return data, decoded


def _refuse_beyond(largest: float, values: Window, dtype: DType) -> None:
    with np.errstate(invalid="ignore"):  # a NaN, which fails the comparison
        if values.size and not (values.max() <= largest and values.min() >= -largest):
            raise BadOrgan(f"a computed value is not a number that {dtype.name} can store")
