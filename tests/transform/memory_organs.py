"""Organs in memory, in the form that the store returns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from organs.registry.gguf import DType, dtype_by_name
from organs.registry.gguf.quants import decode, quantize
from organs.registry.transform import Computation, Plain, Purification, PurifyMethod, computed
from organs.registry.transform.purify import KEEP_DEFAULT, Moments, cleaned, is_unchanged, moments, restored
from organs.registry.transform.values import WINDOW_ELEMENTS

F32, F16, BF16, Q8_0, Q4_0, F64 = map(dtype_by_name, ("F32", "F16", "BF16", "Q8_0", "Q4_0", "F64"))

Values = NDArray[np.float64]


@dataclass(slots=True)
class Reads:
    """Bytes that are read like a blob, and a list of the reads: offset and size."""

    data: bytes
    made: list[tuple[int, int]]

    def __call__(self, offset_bytes: int, size_bytes: int) -> bytes:
        assert 0 <= offset_bytes <= offset_bytes + size_bytes <= len(self.data), "read beyond the end"
        self.made.append((offset_bytes, size_bytes))
        return self.data[offset_bytes : offset_bytes + size_bytes]


def organ(values: ArrayLike, dtype: DType = F32, shape: tuple[int, ...] = ()) -> Plain:
    """Return `values` as an organ of `dtype`; the default shape is that of the array, the row length first."""
    array = np.asarray(values, np.float64)
    return Plain(Reads(quantize(array.ravel(), dtype), []), dtype, shape or tuple(reversed(array.shape)))


def values_of(organ: Plain) -> Values:
    """Return all decoded values of an organ, flat."""
    return decode(organ.read(0, organ.size_bytes), organ.dtype).astype(np.float64)


def computed_bytes(computation: Computation) -> bytes:
    """Return all bytes of a computed organ."""
    data = b"".join(computed(computation))
    assert len(data) == computation.size_bytes
    return data


def values_in(data: bytes, dtype: DType) -> Values:
    """Return the decoded values of `data`."""
    return decode(data, dtype).astype(np.float64)


def weights(count: int, seed: int = 0) -> Values:
    """Return values distributed like those of a trained matrix, with heavier tails than a normal distribution."""
    return np.random.default_rng(seed).standard_t(6, count) * 0.02


def correlation(left: Values, right: Values) -> float:
    """Return Pearson's correlation of two flat arrays."""
    return float(np.corrcoef(left, right)[0, 1])


def purified(values: Values, method: PurifyMethod, keep: float = KEEP_DEFAULT) -> Values:
    """Return a purified copy of an array, with the same shape, mean and deviation."""
    purification, flat = Purification(method, keep), values.ravel()
    before = after = Moments()
    windows = []
    for start in range(0, flat.size, WINDOW_ELEMENTS):
        window = flat[start : start + WINDOW_ELEMENTS]
        windows.append(cleaned(window, purification))
        before, after = before.with_more(moments(window)), after.with_more(moments(windows[-1]))
    if is_unchanged(before):
        return values.copy()
    return np.concatenate([restored(window, before, after) for window in windows]).reshape(values.shape)
