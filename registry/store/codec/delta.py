"""The difference of an organ to a parent with the same tensor type and the same number of values.

A *residual* has the size and the fields of the blocks that it describes. Each function is exact for all bytes.

- Floats and integers: their bit patterns as ordered integers, the difference modulo their range, and zigzag (0, -1, 1,
  -2 become 0, 1, 2, 3), so that small differences are small numbers. The size of a difference depends on the exponent
  of the value, because training changes small and large weights by similar amounts. So differences are sorted by the
  exponent of the parent's value; a reader has the parent, and needs no further data.
- Quantised blocks: field by field, the difference of scales as above, of bytes, of 4-bit and of 2-bit numbers modulo
  their range; packed fields by exclusive or.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from organs.registry.gguf.types import DType
from organs.registry.store.codec import fast
from organs.registry.store.codec.fast import Bytes
from organs.registry.store.codec.planes import CACHE_BLOCK_BYTES

Integers = NDArray[Any]

_SIGNED: dict[int, str] = {1: "<i1", 2: "<i2", 4: "<i4", 8: "<i8"}
_FLOATS = frozenset({"BF16", "F16", "F32", "F64"})
_EXPONENT_SHIFTS = {"BF16": 7, "F16": 10, "F32": 23, "F64": 55}
_EXPONENT_MASKS = {"BF16": 0xFF, "F16": 0x1F}
"""The bits below the exponent, and for 16-bit floats the bits of it. Of the 11 bits of F64's exponent, the upper 8 are
used."""

_HIGH_BITS = {4: np.uint8(0x88), 2: np.uint8(0xAA)}
"""The highest bit of each number in a byte, by the bits of a number."""

_FIELDS: dict[str, str] = {
    "Q4_0": "half nibbles:16",
    "Q4_1": "half half nibbles:16",
    "Q5_0": "half bits:4 nibbles:16",
    "Q5_1": "half half bits:4 nibbles:16",
    "Q8_0": "half bytes:32",
    "Q2_K": "nibbles:16 pairs:64 half half",
    "Q3_K": "bits:32 pairs:64 bits:12 half",
    "Q4_K": "half half bits:12 nibbles:128",
    "Q5_K": "half half bits:12 bits:32 nibbles:128",
    "Q6_K": "nibbles:128 pairs:64 bytes:16 half",
    "IQ4_NL": "half nibbles:16",
    "IQ4_XS": "half bits:2 nibbles:4 nibbles:128",
    "MXFP4": "bytes:1 nibbles:16",
    "TQ2_0": "pairs:64 half",
}
"""The fields of a block. A block of another quantised type is one field of bits; if it begins with a scale, that is a
field of its own."""
_BEGIN_WITH_SCALE = frozenset({"IQ3_XXS", "IQ3_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S"})


def subtract_parent(dtype: DType, parent: Bytes, plain: Bytes, residual: Bytes) -> None:
    """Fill `residual` with the difference of `plain` to `parent`. All three have the same number of whole blocks."""
    assert len(parent) == len(plain) == len(residual)
    if dtype.block_elements == 1:
        _subtract_numbers(dtype, parent, plain, residual)
    else:
        for own, other, out, subtract, _ in _columns(dtype, plain, parent, residual):
            out[...] = subtract(own, other)


def add_parent(dtype: DType, parent: Bytes, residual: Bytes, plain: Bytes) -> None:
    """Fill `plain` from `residual`: the inverse of `subtract_parent`."""
    assert len(parent) == len(plain) == len(residual)
    if dtype.block_elements == 1:
        _add_numbers(dtype, parent, residual, plain)
    else:
        for difference, other, out, _, add in _columns(dtype, residual, parent, plain):
            out[...] = add(difference, other)


def _subtract_numbers(dtype: DType, parent: Bytes, plain: Bytes, residual: Bytes) -> None:
    kernels = fast.kernels()
    if kernels is not None and dtype.name in _EXPONENT_MASKS:
        numbers = parent.view("<u2"), plain.view("<u2"), residual.view("<u2")
        kernels.subtract_halves(*numbers, _EXPONENT_SHIFTS[dtype.name], _EXPONENT_MASKS[dtype.name])
        return
    signed = _SIGNED[dtype.block_bytes]
    own, other, out = plain.view(signed), parent.view(signed), residual.view(signed)
    if dtype.name not in _FLOATS:
        out[:] = _zigzag(own - other)
        return
    for block, order, places in _sorted_blocks(dtype, other):
        difference = _zigzag(_ordered(own[block]) - _ordered(other[block]))[order]
        for here, there in places:
            out[there] = difference[here]


def _add_numbers(dtype: DType, parent: Bytes, residual: Bytes, plain: Bytes) -> None:
    kernels = fast.kernels()
    if kernels is not None and dtype.name in _EXPONENT_MASKS:
        numbers = parent.view("<u2"), residual.view("<u2"), plain.view("<u2")
        kernels.add_halves(*numbers, _EXPONENT_SHIFTS[dtype.name], _EXPONENT_MASKS[dtype.name])
        return
    signed = _SIGNED[dtype.block_bytes]
    difference, other, out = residual.view(signed), parent.view(signed), plain.view(signed)
    if dtype.name not in _FLOATS:
        np.add(_unzigzag(difference), other, out=out)
        return
    sorted_block = np.empty(min(_SORTED_VALUES, len(other)), signed)
    for block, order, places in _sorted_blocks(dtype, other):
        for here, there in places:
            sorted_block[here] = difference[there]
        values = out[block]
        values[order] = _unzigzag(sorted_block[: len(values)])
        values += _ordered(other[block])
        values[:] = _ordered(values)


def _ordered(numbers: Integers) -> Integers:
    """Return the bit patterns of floats as integers in the order of the floats; also the inverse of this."""
    width = 8 * numbers.dtype.itemsize
    magnitude = numbers.dtype.type((1 << (width - 1)) - 1)
    result: Integers = numbers ^ ((numbers >> (width - 1)) & magnitude)
    return result


def _zigzag(numbers: Integers) -> Integers:
    result: Integers = (numbers << 1) ^ (numbers >> (8 * numbers.dtype.itemsize - 1))
    return result


def _unzigzag(numbers: Integers) -> Integers:
    unsigned = numbers.view(f"u{numbers.dtype.itemsize}")
    result: Integers = (unsigned >> 1).view(numbers.dtype) ^ -(numbers & 1)
    return result


_SORTED_VALUES = 1 << 16
"""Values that are sorted at once: their positions stay in the cache. All at once would take 40 bytes for each value."""


def _sorted_blocks(
    dtype: DType, numbers: Integers
) -> Iterator[tuple[slice, NDArray[np.intp], list[tuple[slice, slice]]]]:
    """Yield each block of `numbers`, its positions sorted by exponent, and where the runs of one exponent lie.

    A run has a place in the sorted block, and one among all numbers, sorted by exponent, equal ones in their order.
    """
    blocks = [slice(begin, begin + _SORTED_VALUES) for begin in range(0, len(numbers), _SORTED_VALUES)]
    counts = np.array([np.bincount(_exponents(dtype, numbers[block]), minlength=256) for block in blocks])
    begins = np.cumsum(counts.sum(axis=0)) - counts.sum(axis=0) + np.cumsum(counts, axis=0) - counts
    for block, sizes, begin in zip(blocks, counts, begins, strict=True):
        ends = np.cumsum(sizes)
        used = np.flatnonzero(sizes)
        runs = zip(ends[used].tolist(), sizes[used].tolist(), begin[used].tolist(), strict=True)
        places = [(slice(end - size, end), slice(start, start + size)) for end, size, start in runs]
        yield block, np.argsort(_exponents(dtype, numbers[block]), kind="stable"), places


def _exponents(dtype: DType, numbers: Integers) -> Bytes:
    exponents = (numbers >> _EXPONENT_SHIFTS[dtype.name]).astype(np.uint8)
    exponents &= np.uint8(_EXPONENT_MASKS.get(dtype.name, 0xFF))
    return exponents


_Operation = Callable[[Integers, Integers], Integers]


def _subtract_scales(own: Integers, other: Integers) -> Integers:
    return _zigzag(_ordered(own) - _ordered(other))


def _add_scales(difference: Integers, other: Integers) -> Integers:
    return _ordered(_unzigzag(difference) + _ordered(other))


def _subtract_packed(bits: int) -> _Operation:
    high = _HIGH_BITS[bits]

    def subtract(own: Integers, other: Integers) -> Integers:
        # With its highest bit set, no number borrows from its neighbour.
        result: Integers = ((own | high) - (other & ~high)) ^ ((own ^ ~other) & high)
        return result

    return subtract


def _add_packed(bits: int) -> _Operation:
    high = _HIGH_BITS[bits]

    def add(difference: Integers, other: Integers) -> Integers:
        result: Integers = ((difference & ~high) + (other & ~high)) ^ ((difference ^ other) & high)
        return result

    return add


_OPERATIONS: dict[str, tuple[_Operation, _Operation]] = {
    "half": (_subtract_scales, _add_scales),
    "bytes": (np.subtract, np.add),
    "nibbles": (_subtract_packed(4), _add_packed(4)),
    "pairs": (_subtract_packed(2), _add_packed(2)),
    "bits": (np.bitwise_xor, np.bitwise_xor),
}


@cache
def _layout(dtype: DType) -> tuple[np.dtype[np.void], tuple[str, ...]]:
    """Return the type of a block as a record, and the kind of each field."""
    rest = f"half bits:{dtype.block_bytes - 2}" if dtype.name in _BEGIN_WITH_SCALE else f"bits:{dtype.block_bytes}"
    fields = [field.partition(":") for field in _FIELDS.get(dtype.name, rest).split()]
    kinds = tuple(kind for kind, _, _ in fields)
    record = np.dtype(
        [
            (str(index), "<i2") if kind == "half" else (str(index), np.uint8, (int(size),))
            for index, (kind, _, size) in enumerate(fields)
        ]
    )
    assert record.itemsize == dtype.block_bytes
    return record, kinds


def _columns(
    dtype: DType, own: Bytes, parent: Bytes, out: Bytes
) -> Iterator[tuple[Integers, Integers, Integers, _Operation, _Operation]]:
    """Yield the fields of some blocks at a time, with the operations of their kind."""
    record, kinds = _layout(dtype)
    step = CACHE_BLOCK_BYTES // 4 // dtype.block_bytes * dtype.block_bytes
    for begin in range(0, len(own), step):
        blocks = [data[begin : begin + step].view(record) for data in (own, parent, out)]
        for name, kind in zip(record.names or (), kinds, strict=True):
            first, second, third = (block[name] for block in blocks)
            subtract, add = _OPERATIONS[kind]
            yield first, second, third, subtract, add
