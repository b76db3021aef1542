"""The values of an organ, window by window, and writing computed values as a tensor type."""

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
"""`read(offset_bytes, size_bytes)`: exactly that many plain bytes of one organ, the offset relative to its start."""
Window: TypeAlias = NDArray[np.float64]
"""Consecutive values of an organ, flat."""

WINDOW_ELEMENTS = 1 << 20
"""Whole blocks of every dtype; 8 MiB in float64."""


@dataclass(frozen=True, slots=True)
class Plain:
    """An organ's plain bytes, and what they are."""

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

    def bytes_at(self, start: int, count: int) -> bytes | bytearray | memoryview:
        """The bytes of `count` values from the `start`th on, both whole blocks."""
        size_bytes = self.dtype.size_bytes(count)
        data = self.read(self.dtype.size_bytes(start), size_bytes)
        assert memoryview(data).nbytes == size_bytes
        return data

    def values(self, start: int, count: int) -> Window:
        """`count` values from the `start`th on, both whole blocks.

        Raises BadOrgan for a value that is NaN, infinite or beyond float32, and UnsupportedDType without a kernel.
        """
        with np.errstate(invalid="ignore"):  # signalling NaNs
            values = decode(self.bytes_at(start, count), self.dtype).astype(np.float64)
        # Nothing is written wider than F32, so a larger value could not be kept.
        with np.errstate(invalid="ignore"):  # a NaN, which fails the comparison
            if values.size and not (values.max() <= FLOAT32_MAX and values.min() >= -FLOAT32_MAX):
                raise BadOrgan(
                    f"of the {count:,} values from the {start:,}th on, one is not a number that F32 can store"
                )
        return values

    def windows(self) -> Iterator[Window]:
        """All values, in order."""
        for start in range(0, self.elements, WINDOW_ELEMENTS):
            yield self.values(start, min(WINDOW_ELEMENTS, self.elements - start))


def in_windows(bands: Iterable[Window]) -> Iterator[Window]:
    """The same values in the same order, in whole windows but for the last; `bands` may be cut anywhere."""
    waiting: list[Window] = []
    missing = WINDOW_ELEMENTS
    for band in bands:
        rest = band
        while rest.size:
            waiting.append(rest[:missing])
            rest = rest[missing:]
            missing -= waiting[-1].size
            if missing == 0:
                yield np.concatenate(waiting)
                waiting, missing = [], WINDOW_ELEMENTS
    if waiting:
        yield np.concatenate(waiting)


WRITTEN_AS_THEY_ARE = ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0")
"""Types that can be written here and hold weights of any distribution. The kernels also write TQ1_0, TQ2_0 and MXFP4,
whose few levels suit only weights that were trained for them: a sum or a filtered organ is none of those."""
WANTED = ("Q8_0", "F16", "BF16", "F32")
"""What other types may become by choice."""

FLUSHED = 2.0**-100
"""Values below it are written as 0 in types with blocks."""

_WHOLE_NUMBERS = frozenset({"I8", "I16", "I32", "I64"})
_LARGEST = {"F16": FLOAT16_MAX, "BF16": BFLOAT16_MAX, "F32": FLOAT32_MAX}


def encoded_dtype(dtype: DType, row_length: int, wanted: str = "Q8_0") -> DType:
    """The type that an organ computed from one of `dtype` is written as: its own where that can be, else `wanted`.

    F64 becomes F32 (runtimes crash on an F64 feed-forward), whatever is wanted; where the row is no whole number of
    blocks it is F16. `wanted` is one of `WANTED`. Raises UnsupportedDType for whole numbers, which are no weights, and
    for a type whose values cannot be read.
    """
    assert wanted in WANTED
    if dtype.name in _WHOLE_NUMBERS or not can_dequantize(dtype):
        raise UnsupportedDType(f"no weights can be computed from tensor type {dtype.name}")
    if dtype.name in WRITTEN_AS_THEY_ARE:
        return dtype
    chosen = dtype_by_name("F32" if dtype.name == "F64" else wanted)
    return chosen if row_length % chosen.block_elements == 0 else dtype_by_name("F16")


def encoded(values: Window, dtype: DType) -> tuple[bytes, Window]:
    """`values` (flat, whole blocks) as bytes of `dtype`, and the values that a reader of those bytes will see.

    Raises BadOrgan where one of them is not finite or `dtype` cannot hold it: nothing is cut off silently.
    """
    _refuse_beyond(_LARGEST.get(dtype.name, FLOAT32_MAX), values, dtype)
    if dtype.block_elements > 1:
        # The reciprocal of a block's tiny scale would be infinite, and what infinity becomes as a whole number differs
        # between processors. A block of nothing larger has the scale 0 in F16 anyway.
        values = np.where(np.abs(values) < FLUSHED, 0.0, values)
    data = quantize(values, dtype)
    back = decode(data, dtype).astype(np.float64)
    _refuse_beyond(FLOAT32_MAX, back, dtype)  # a block's scale is F16, and may be infinite
    return data, back


def _refuse_beyond(largest: float, values: Window, dtype: DType) -> None:
    with np.errstate(invalid="ignore"):  # a NaN, which fails the comparison
        if values.size and not (values.max() <= largest and values.min() >= -largest):
            raise BadOrgan(f"a computed value is not a number that {dtype.name} can store")
