"""Reading the values of an organ window by window, and encoding computed values as a tensor type."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from organs.registry.errors import BadOrgan, EncoderMissing, UnsupportedDType
from organs.registry.gguf.quants import (
    BFLOAT16_MAX,
    FLOAT16_MAX,
    FLOAT32_MAX,
    can_dequantize,
    can_encode,
    decode,
    encode,
    encode_weighted,
    has_encoder,
    needs_importance,
    quantize,
)
from organs.registry.gguf.types import DType, dtype_by_name

Read: TypeAlias = Callable[[int, int], bytes | bytearray | memoryview]
"""`read(offset_bytes, size_bytes)` returns exactly these plain bytes of an organ; its first byte has the offset 0."""
Window: TypeAlias = NDArray[np.float64]
"""Consecutive values of an organ, flat."""

WINDOW_ELEMENTS = 1 << 20
"""Whole blocks of every dtype; 8 MiB in float64."""


class Readable(Protocol):
    """The values of a tensor."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of its dimensions, row length first, as in GGUF."""
        ...

    def values(self, start: int, count: int) -> Window:
        """Return `count` values from number `start`, whole rows and whole blocks. The array is the caller's."""
        ...


class Stream:
    """The values of a tensor that are read once, from the first to the last."""

    def __init__(self, shape: tuple[int, ...], bands: Iterator[Window]) -> None:
        self.shape = shape
        self._bands, self._rest, self._position = bands, np.empty(0), 0

    def values(self, start: int, count: int) -> Window:
        """Return the next `count` values; `start` must be the number of those that were read."""
        assert start == self._position
        parts = [self._rest]
        while sum(part.size for part in parts) < count:
            parts.append(next(self._bands))
        values = np.concatenate(parts)
        self._rest, self._position = values[count:], start + count
        return values[:count]


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
        with np.errstate(invalid="ignore"):  # signalling NaNs, and a NaN, which fails the comparison
            values = decode(data, self.dtype)
            # F32 is the widest type that is written, so a larger value could not be stored.
            if values.size and not (values.max() <= FLOAT32_MAX and values.min() >= -FLOAT32_MAX):
                raise BadOrgan(f"one of the {count:,} values from number {start:,} on cannot be stored as F32")
            return values.astype(np.float64)

    def part(self, start: int, shape: tuple[int, ...]) -> Plain:
        """Return consecutive values from number `start`, whole blocks, as a tensor of `shape`."""
        begin = self.dtype.size_bytes(start)
        return Plain(lambda offset, size: self.read(begin + offset, size), self.dtype, shape)

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
"""Types that can be written without another encoder, and hold weights of any distribution."""
SAME, FINER = "same", "finer"
"""Computed organs get the type of the organ that they replace, or the smallest one that keeps most of the change."""
WANTED = (
    *("F32", "BF16", "F16", "Q8_0", "Q6_K", "Q5_1", "Q5_K", "Q5_0", "Q4_1", "Q4_K", "Q4_0", "IQ4_NL", "IQ4_XS"),
    *("Q3_K", "IQ3_S", "Q2_K", "IQ2_S"),
)
"""The types that can be chosen, the largest first."""

FLUSHED = 2.0**-100
"""Types with blocks write a smaller absolute value as 0."""

_WHOLE_NUMBERS = frozenset({"I8", "I16", "I32", "I64"})
_LARGEST = {"F16": FLOAT16_MAX, "BF16": BFLOAT16_MAX, "F32": FLOAT32_MAX}


def holds_weights(dtype: DType) -> bool:
    """Return whether weights can be computed from organs of `dtype`: its values can be decoded, and are no integers."""
    return dtype.name not in _WHOLE_NUMBERS and can_dequantize(dtype)


def encoded_dtype(dtype: DType, shape: Sequence[int], wanted: str = SAME) -> DType:
    """Return the type of an organ computed from an organ of `dtype` and `shape` (row length first).

    That is its own type for SAME and FINER, else `wanted`, one of `WANTED`; a vector always keeps its type. F64 becomes
    F32, because runtimes crash on an F64 feed-forward. If the row is not a whole number of blocks, the type is F16.
    Raises UnsupportedDType for types of whole numbers, which hold no weights, for types that cannot be decoded, and for
    those that cannot be written; EncoderMissing if an extra can write them.
    """
    if not holds_weights(dtype):
        raise UnsupportedDType(f"no weights can be computed from tensor type {dtype.name}")
    is_matrix = sum(length > 1 for length in shape) > 1
    other = dtype_by_name(wanted) if wanted in WANTED and is_matrix else dtype
    if other.name == "F64":
        return dtype_by_name("F32")
    if shape[0] % other.block_elements:
        return dtype_by_name("F16")
    if other.name in WRITTEN_AS_THEY_ARE or can_encode(other):
        return other
    if needs_importance(other):
        finer = next(name for name in reversed(WANTED) if can_encode(dtype_by_name(name)))
        raise UnsupportedDType(f"{other.name} is only written with an importance matrix: write encode: {finer}")
    if has_encoder():
        raise UnsupportedDType(f"no encoder writes {other.name}: write encode: Q8_0")
    raise EncoderMissing(f"{other.name} is written by an encoder that is not installed: pip install '.[quantize]'")


FINER_TYPES = ("Q5_K", "Q5_1", "Q6_K", "Q8_0", "F16")
"""The types that FINER chooses from, the smallest first."""


def finer_dtypes(dtype: DType, rows: Iterable[int]) -> list[DType]:
    """Return the types of FINER_TYPES with more bits than `dtype` that hold rows of these lengths."""
    lengths = list(rows)
    found = []
    for other in map(dtype_by_name, FINER_TYPES):
        is_finer = other.block_bytes * dtype.block_elements > dtype.block_bytes * other.block_elements
        is_written = other.name in WRITTEN_AS_THEY_ARE or can_encode(other)
        if is_finer and is_written and not any(length % other.block_elements for length in lengths):
            found.append(other)
    return found


def encoded(values: Window, dtype: DType, importances: NDArray[np.float32] | None = None) -> tuple[bytes, Window]:
    """Return `values` (flat, whole blocks) as bytes of `dtype`, and the values that decoding these bytes gives.

    With `importances` of the columns, the values are whole rows, and the errors of rounding are weighed by them. Raises
    BadOrgan if a value is not finite or too large for `dtype`: no value is clipped silently.
    """
    data = _rounded(values, dtype, importances)
    decoded = decode(data, dtype).astype(np.float64)
    _refuse_beyond(FLOAT32_MAX, decoded, dtype)  # the scale of a block is F16 and may be infinite
    return data, decoded


def written(values: Window, dtype: DType) -> bytes:
    """Return the bytes that `encoded` returns, without decoding them if `dtype` has no blocks. Raises BadOrgan."""
    return encoded(values, dtype)[0] if dtype.block_elements > 1 else _rounded(values, dtype, None)


def _rounded(values: Window, dtype: DType, importances: NDArray[np.float32] | None) -> bytes:
    _refuse_beyond(_LARGEST.get(dtype.name, FLOAT32_MAX), values, dtype)
    if dtype.block_elements > 1:
        # The reciprocal of a very small scale would be infinite, and processors convert infinity to different whole
        # numbers. If a block has only values this small, its scale in F16 is 0 in any case.
        values = np.where(np.abs(values) < FLUSHED, 0.0, values)
    if importances is None and dtype.name in WRITTEN_AS_THEY_ARE:
        return quantize(values, dtype)
    _refuse_beyond(FLOAT16_MAX, values, dtype)  # encoders of others may stop the program
    if importances is not None:
        return encode_weighted(values.reshape(-1, importances.size), dtype, importances)
    return encode(values, dtype)


def _refuse_beyond(largest: float, values: Window, dtype: DType) -> None:
    with np.errstate(invalid="ignore"):  # a NaN, which fails the comparison
        if values.size and not (values.max() <= largest and values.min() >= -largest):
            raise BadOrgan(f"a computed value is not a number that {dtype.name} can store")
