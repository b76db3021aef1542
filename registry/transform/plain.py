"""An organ as it comes in, and its values by the window."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from organs.registry.errors import BadOrgan
from organs.registry.gguf.quants import FLOAT32_MAX, decode
from organs.registry.gguf.types import DType

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
                raise BadOrgan(f"of the {count:,} values from the {start:,}th on, one is no number that F32 holds")
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
