"""Residuals of quantised blocks, of casts and of dequantised weights: what a source, the same weights in another type,
does not determine.

ggml's last step computes each quant from a weight and from scales that are stored beside it. With the weight from the
source and with the stored scales, the quant is predicted. A residual block has the size and the fields of a plain
block; a field that is predicted correctly is zero. A wrong prediction costs stored bytes, never exactness: every
plain block has one residual block for each source block, whatever the bytes are.

Floats that were made from a quantisation, for example to merge models, are its values, rounded to their type.

Predictions are the same on every machine: float32 operations one at a time, no sums, and no bits of a NaN.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from organs.registry.gguf.types import DType
from organs.registry.store.codec import fast
from organs.registry.store.codec.fast import Bytes, Floats, Halves

PIECE_ELEMENTS = 1 << 16
"""Weights that are transformed in one step: so few that their float32 values stay in the cache between passes."""

Blocks: TypeAlias = NDArray[np.uint8]
"""Bytes in two dimensions: a row for each block."""

_ROUNDING = np.float32(3 << 22)
"""Added to a float32 below 2**22, it leaves the nearest integer (half to even) in the low bits of the sum."""
_BELOW_HALF = np.uint32(0x3EFFFFFF)
"""Bits of the float32 before 0.5. Added before a truncation it rounds half away from zero, as C's `roundf`."""
_SIGN = np.uint32(1 << 31)
_MAGNITUDE = np.uint32((1 << 31) - 1)
_QUIET_NAN = np.uint32(0x7FC00000)
_QUIET_NAN_F16 = np.uint16(0x7E00)
_NON_LINEAR = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The values of the levels of IQ4_NL and IQ4_XS."""


def can_derive(source: DType, target: DType) -> bool:
    """Return whether blocks of `target` can be stored as residuals of the same weights in `source`."""
    if is_dequantised(source, target):
        return True
    if source.name not in _SOURCES or source == target:
        return False
    return target.name in _QUANTISED or (source.name, target.name) in _CASTS


def is_dequantised(source: DType, target: DType) -> bool:
    """Return whether floats of `target` can be predicted from blocks of `source`, a quantisation.

    This is only smaller if they were made from it, to the last bits.
    """
    return source.name in _QUANTISED and target.name in _FLOATS


def to_residual(source: DType, target: DType, source_bytes: Bytes, plain: Bytes, residual: Bytes) -> None:
    """Fill `residual` from `plain`, whole blocks of `target`, and from the same elements in `source_bytes`.

    The three arrays are contiguous and do not overlap.
    """
    _transform(source, target, source_bytes, plain, residual, restore=False)


def from_residual(source: DType, target: DType, source_bytes: Bytes, residual: Bytes, plain: Bytes) -> None:
    """Fill `plain` from `residual` and from the same elements in `source_bytes`: the inverse of `to_residual`."""
    _transform(source, target, source_bytes, residual, plain, restore=True)


def _transform(
    source: DType, target: DType, source_bytes: Bytes, before: Bytes, after: Bytes, *, restore: bool
) -> None:
    """Fill `after` with residual blocks from plain blocks, or, if `restore`, with plain blocks from residual blocks."""
    assert can_derive(source, target)
    elements = len(before) // target.block_bytes * target.block_elements
    assert len(before) == len(after) == target.size_bytes(elements)
    assert len(source_bytes) == source.size_bytes(elements)
    kernels, numbers = fast.kernels(), _numbers(target)
    if kernels is not None and numbers is not None:
        kind = fast.SOURCES.index(source.name)
        kernels.quants(source_bytes, kind, before, after, restore, *numbers, _nearest_of_non_linear)
        return
    widen = _SOURCES.get(source.name) or partial(_widen_quantised, _QUANTISED[source.name], source.block_bytes)
    with np.errstate(all="ignore"):
        for start in range(0, elements, PIECE_ELEMENTS):
            end = min(start + PIECE_ELEMENTS, elements)
            values = _scratch.values[: end - start]
            widen(source_bytes[source.size_bytes(start) : source.size_bytes(end)], values)
            first, last = target.size_bytes(start), target.size_bytes(end)
            if target.name in _QUANTISED:
                shape = (-1, target.block_bytes)
                blocks = before[first:last].reshape(shape), after[first:last].reshape(shape)
                _quantised(_QUANTISED[target.name], values, *blocks, restore=restore)
            else:
                _cast(target.name, values, before[first:last], after[first:last], restore=restore)


class _DeriveScratch(threading.local):
    """Memory of each thread for one piece, because the first use of new memory is slow."""

    def __init__(self) -> None:
        self.values: Floats = np.empty(PIECE_ELEMENTS, np.float32)
        self.words: NDArray[np.uint32] = np.empty(PIECE_ELEMENTS, np.uint32)
        self.predicted: Bytes = np.empty(PIECE_ELEMENTS, np.uint8)
        self.levels: Bytes = np.empty(PIECE_ELEMENTS, np.uint8)
        self.upper: Bytes = np.empty(PIECE_ELEMENTS, np.uint8)
        self.packed: Bytes = np.empty(PIECE_ELEMENTS, np.uint8)
        self.slot: Bytes = np.empty(PIECE_ELEMENTS, np.uint8)


_scratch = _DeriveScratch()


# Sources as float32


def _widen_f32(source_bytes: Bytes, values: Floats) -> None:
    np.copyto(values, source_bytes.view("<f4"))


def _widen_bf16(source_bytes: Bytes, values: Floats) -> None:
    bits = values.view(np.uint32)
    np.copyto(bits, source_bytes.view("<u2"))
    np.left_shift(bits, 16, out=bits)


def _widen_f16(source_bytes: Bytes, values: Floats) -> None:
    # A table is faster than numpy's cast, and has the same bits for a signalling NaN on every machine.
    np.take(_widened_f16, source_bytes.view("<u2"), out=values.view(np.uint32), mode="clip")


def _widen_q8_0(source_bytes: Bytes, values: Floats) -> None:
    blocks = source_bytes.reshape(-1, 34)
    rows = values.reshape(-1, 32)
    np.copyto(rows, blocks[:, 2:].view(np.int8))
    np.multiply(rows, _scale(blocks, 0), out=rows)


def _widen_quantised(source: _Quantised, block_bytes: int, source_bytes: Bytes, values: Floats) -> None:
    blocks, levels = source_bytes.reshape(-1, block_bytes), _scratch.levels[: len(values)]
    _unpack(source.parts, blocks, levels)
    source.rule.values(blocks, levels, values)
    is_nan = np.isnan(values)
    if is_nan.any():  # its sign differs from machine to machine
        values.view(np.uint32)[is_nan] = _QUIET_NAN


def _table_of_f16() -> NDArray[np.uint32]:
    """Return the bits of the float32 that is equal to each F16; a NaN is quiet."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):
        bits = halves.astype(np.float32).view(np.uint32)
    return np.where(np.isnan(halves), bits | np.uint32(1 << 22), bits)


_widened_f16 = _table_of_f16()

_SOURCES: dict[str, Callable[[Bytes, Floats], None]] = {
    "F32": _widen_f32,
    "F16": _widen_f16,
    "BF16": _widen_bf16,
    "Q8_0": _widen_q8_0,
}


# Casts between floats

_FLOATS = frozenset({"F32", "F16", "BF16"})
_CASTS = frozenset({("F32", "F16"), ("F32", "BF16"), ("F16", "BF16"), ("BF16", "F16"), ("F16", "F32"), ("BF16", "F32")})


def _cast(target: str, values: Floats, before: Bytes, after: Bytes, *, restore: bool) -> None:
    """Transform floats: the residual is the difference of the bits to those of the cast value, small if it is small."""
    if target == "F32":
        _difference(values.view(np.uint32), before.view("<u4"), after.view("<u4"), restore=restore)
        return
    predicted = _scratch.words.view(np.uint16)[: len(values)]
    if target == "F16":
        _narrow_f16(values, predicted)
    else:
        _narrow_bf16(values, predicted)
    _difference(predicted, before.view("<u2"), after.view("<u2"), restore=restore)


def _difference(predicted: NDArray[Any], before: NDArray[Any], after: NDArray[Any], *, restore: bool) -> None:
    """Transform unsigned integers: their residuals are 0, 1, 2, 3 ... for a difference of 0, -1, 1, -2 ..."""
    signed = after.view(after.dtype.str.replace("u", "i"))
    if restore:
        np.bitwise_and(before, 1, out=after)
        np.negative(signed, out=signed)
        np.bitwise_xor(after, before >> 1, out=after)
        np.add(after, predicted, out=after)
    else:
        np.subtract(before, predicted, out=after)
        sign = signed >> (8 * after.itemsize - 1)
        np.left_shift(after, 1, out=after)
        np.bitwise_xor(signed, sign, out=signed)


def _narrow_f16(values: Floats, narrow: Halves) -> None:
    """Round to the nearest F16, half to even; the payload of a NaN is kept, as far as it fits, and made quiet."""
    np.copyto(narrow.view(np.float16), values, casting="unsafe")
    is_nan = np.isnan(values)
    if is_nan.any():
        bits = values.view(np.uint32)[is_nan]
        narrow[is_nan] = (bits >> 16 & 0x8000 | bits >> 13 & 0x3FF | _QUIET_NAN_F16).astype(np.uint16)


def _narrow_bf16(values: Floats, narrow: Halves) -> None:
    """Round to the nearest BF16, half to even; the payload of a NaN is cut off and made quiet."""
    bits = values.view(np.uint32)
    rounded = bits >> 16
    np.bitwise_and(rounded, 1, out=rounded)
    np.add(rounded, 0x7FFF, out=rounded)
    np.add(rounded, bits, out=rounded)
    np.right_shift(rounded, 16, out=rounded)
    np.copyto(narrow, rounded, casting="unsafe")
    is_nan = np.isnan(values)
    if is_nan.any():
        narrow[is_nan] = (bits[is_nan] >> 16 | 0x40).astype(np.uint16)


# Quantised blocks


@dataclass(frozen=True, slots=True)
class _Part:
    """Bits of all levels of a block, in `groups` of `width` bytes, beginning with the byte `offset`.

    A byte has `8 // bits` slots. The elements of a group are first slot 0 of all its bytes, then slot 1, and so on. The
    lowest of these bits is bit `shift` of a level.
    """

    offset: int
    groups: int
    width: int
    bits: int
    shift: int = 0


class _RoundingRule(ABC):
    """The prediction of a quantised type."""

    def scales(self, values: Floats) -> Floats | None:
        """Return the predicted scales as columns, before they are rounded to F16; None if a search found them."""
        return None

    @abstractmethod
    def levels(self, values: Floats, blocks: Blocks, scales: Floats | None, levels: Bytes) -> None:
        """Fill `levels` with the predictions from plain scales in `blocks`. The content of `values` is lost."""

    @abstractmethod
    def values(self, blocks: Blocks, levels: Bytes, values: Floats) -> None:
        """Fill `values` with the weights that ggml reads from `blocks`, whose levels are `levels`."""


@dataclass(frozen=True, slots=True)
class _Quantised:
    """A quantised type. A level is a quant as an unsigned number of `bits`, and `parts` are its place in a block."""

    bits: int
    parts: tuple[_Part, ...]
    rule: _RoundingRule
    kernel: tuple[int, int, int, int, int, int] | None
    """For the compiled kernel: elements of a sub-block, family, packing and place of the scales, lowest and highest."""


@cache
def _numbers(target: DType) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return a quantised type as the numbers that the compiled kernel takes; None for a type that it does not do."""
    quantised = _QUANTISED.get(target.name)
    if quantised is None or quantised.kernel is None:
        return None
    shape = [target.block_elements, target.block_bytes, *quantised.kernel, quantised.bits]
    parts = [(part.offset, part.groups, part.width, part.bits, part.shift) for part in quantised.parts]
    return np.array(shape, np.int64), np.array(parts, np.int64).reshape(-1)


def _quantised(target: _Quantised, values: Floats, before: Blocks, after: Blocks, *, restore: bool) -> None:
    """Transform whole blocks: first the scales, then the levels with the plain scales."""
    elements = len(values)
    predicted, levels = _scratch.predicted[:elements], _scratch.levels[:elements]
    np.copyto(after, before)
    scales = target.rule.scales(values)
    if scales is not None:
        size = 2 * scales.shape[1]
        _difference(_as_f16(scales), before[:, :size].view("<u2"), after[:, :size].view("<u2"), restore=restore)
    target.rule.levels(values, after if restore else before, scales, predicted)
    if restore and not any(
        before[:, part.offset : part.offset + part.groups * part.width].any() for part in target.parts
    ):
        _pack(target.parts, predicted, after)  # every level was predicted
        return
    _unpack(target.parts, before, levels)
    if restore:
        _add_residuals(target, predicted, levels)
    else:
        _subtract_predictions(target, predicted, levels)
    _pack(target.parts, levels, after)


def _subtract_predictions(target: _Quantised, predicted: Bytes, levels: Bytes) -> None:
    """Replace levels with their residuals. In several parts: 0, 1, 2 for a difference of 0, -1, 1: upper bits are 0."""
    np.subtract(levels, predicted, out=levels)
    if len(target.parts) > 1:
        signed, sign = levels.view(np.int8), _scratch.upper[: len(levels)].view(np.int8)
        np.multiply(levels, 1 << (8 - target.bits), out=levels)  # numpy shifts bytes to the left one by one
        np.right_shift(signed, 7, out=sign)
        np.right_shift(signed, 7 - target.bits, out=signed)
        np.bitwise_and(signed, -2, out=signed)
        np.bitwise_xor(signed, sign, out=signed)
    elif target.bits < 8:
        np.bitwise_and(levels, (1 << target.bits) - 1, out=levels)


def _add_residuals(target: _Quantised, predicted: Bytes, levels: Bytes) -> None:
    """Replace residuals with levels: the inverse of `_subtract_predictions`."""
    if len(target.parts) > 1:
        sign = _scratch.upper[: len(levels)]
        np.bitwise_and(levels, 1, out=sign)
        np.negative(sign, out=sign)
        np.right_shift(levels, 1, out=levels)
        np.bitwise_xor(levels, sign, out=levels)
    np.add(levels, predicted, out=levels)
    if target.bits < 8:
        np.bitwise_and(levels, (1 << target.bits) - 1, out=levels)


def _unpack(parts: tuple[_Part, ...], blocks: Blocks, levels: Bytes) -> None:
    """Fill `levels` with a byte for each element."""
    for index, part in enumerate(parts):
        out = _scratch.upper[: len(levels)] if index else levels
        packed, slot, size = _slots(part, len(levels))
        np.copyto(packed.view(f"V{size}"), _field(blocks, part.offset, size))
        for number, place in enumerate(_places(part, out)):
            np.right_shift(packed, part.bits * number, out=slot)
            np.bitwise_and(slot, (1 << part.bits) - 1, out=slot)
            if part.shift:
                np.multiply(slot, 1 << part.shift, out=slot)
            np.copyto(place, slot.view(place.dtype))
        if index:
            np.bitwise_or(levels, out, out=levels)


def _pack(parts: tuple[_Part, ...], levels: Bytes, blocks: Blocks) -> None:
    """Write `levels` to their places in `blocks`: the inverse of `_unpack`."""
    for part in parts:
        packed, slot, size = _slots(part, len(levels))
        if part.bits == 8:
            packed = levels
        else:
            packed[:] = 0
            for number, place in enumerate(_places(part, levels)):
                np.copyto(slot.view(place.dtype), place)
                if part.shift:
                    np.right_shift(slot, part.shift, out=slot)
                np.bitwise_and(slot, (1 << part.bits) - 1, out=slot)
                np.multiply(slot, 1 << (part.bits * number), out=slot)
                np.bitwise_or(packed, slot, out=packed)
        np.copyto(_field(blocks, part.offset, size), packed.view(f"V{size}"))


def _slots(part: _Part, elements: int) -> tuple[Bytes, Bytes, int]:
    """Return memory for the packed bytes of `elements` and for one of their slots, and the bytes of a block."""
    count = elements * part.bits // 8
    return _scratch.packed[:count], _scratch.slot[:count], part.groups * part.width


def _places(part: _Part, levels: Bytes) -> list[NDArray[np.void]]:
    """Return the elements of each slot, with those of a group as one item: numpy copies it faster than single bytes."""
    items = levels.view(f"V{part.width}").reshape(-1, 8 // part.bits)
    return [items[:, number] for number in range(8 // part.bits)]


def _field(blocks: Blocks, offset: int, size: int) -> NDArray[np.void]:
    """Return a field of every block, each as one item."""
    return blocks[:, offset : offset + size].view(f"V{size}")[:, 0]


# Rules


def _scale(blocks: Blocks, offset: int) -> Floats:
    """Return the F16 at `offset` of every block as a column."""
    return blocks[:, offset : offset + 2].view("<f2").astype(np.float32)


def _as_f16(scales: Floats) -> Halves:
    """Return the bits of scales that are rounded to F16; every NaN has the same bits."""
    words = scales.astype(np.float16).view(np.uint16)
    return np.where(np.isnan(scales), _QUIET_NAN_F16, words)


def _nearest(values: Floats, low: int, high: int, levels: Bytes) -> None:
    """Fill `levels` with the integers nearest to `values` within `low` and `high`, less `low`. A NaN becomes `low`."""
    _clip(values, low, high)
    np.add(values, _ROUNDING - np.float32(low), out=values)
    np.copyto(levels, values.view(np.uint32), casting="unsafe")


def _clip(values: Floats, low: int, high: int) -> None:
    """Replace smaller values and NaN by `low`, larger ones by `high`. Twice as fast as `fmax` and `fmin`."""
    np.clip(values, np.float32(low), np.float32(high), out=values)
    is_nan = np.isnan(values)
    if is_nan.any():
        values[is_nan] = low


def _clear_where_zero(scales: Floats, levels: Bytes) -> None:
    """Clear the levels of sub-blocks whose scale is 0: ggml leaves there what its search found, often 0."""
    is_zero = scales[:, 0] == 0
    if is_zero.any():
        levels.reshape(len(scales), -1)[is_zero] = 0


def _scales_of_q4_k(blocks: Blocks) -> tuple[Blocks, Blocks]:
    """Return the eight 6-bit scales and the eight 6-bit minima of each block of Q4_K or Q5_K."""
    low, middle, high = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([low & 63, high & 15 | low >> 6 << 4], axis=1)
    minima = np.concatenate([middle & 63, high >> 4 | middle >> 6 << 4], axis=1)
    return scales, minima


def _scales_of_q2_k(blocks: Blocks) -> tuple[Blocks, Blocks]:
    """Return the 16 scales and the 16 minima of each block of Q2_K."""
    packed = blocks[:, :16]
    return packed & np.uint8(15), packed >> np.uint8(4)


def _scales_of_q3_k(blocks: Blocks) -> NDArray[np.int8]:
    """Return the 16 signed 6-bit scales of each block of Q3_K."""
    low, high = blocks[:, 96:104], blocks[:, 104:108]
    upper = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=1)
    lower = np.concatenate([low & 15, low >> 4], axis=1)
    scales: NDArray[np.int8] = (lower | upper << 4).view(np.int8) - np.int8(32)
    return scales


def _scales_of_q6_k(blocks: Blocks) -> NDArray[np.int8]:
    return blocks[:, 192:208].view(np.int8)


@dataclass(frozen=True, slots=True)
class _ScaleAndMinimum(_RoundingRule):
    """Q2_K, Q4_K and Q5_K: an element is its level times a scale, less a minimum."""

    highest: int
    offset: int
    """The place of the F16 scale of a block; that of its minima follows."""
    packed: Callable[[Blocks], tuple[Blocks, Blocks]]

    def levels(self, values: Floats, blocks: Blocks, scales: Floats | None, levels: Bytes) -> None:
        """Fill `levels` as ggml does after it rounded the scales."""
        step, minimum = self._columns(blocks)
        rows = values.reshape(len(step), -1)
        np.add(rows, minimum, out=rows)
        np.divide(rows, step, out=rows)
        _nearest(values, 0, self.highest, levels)
        _clear_where_zero(step, levels)

    def values(self, blocks: Blocks, levels: Bytes, values: Floats) -> None:
        """Fill `values` with the levels times the scale of their sub-block, less its minimum."""
        step, minimum = self._columns(blocks)
        np.copyto(values, levels)
        rows = values.reshape(len(step), -1)
        np.multiply(rows, step, out=rows)
        np.subtract(rows, minimum, out=rows)

    def _columns(self, blocks: Blocks) -> tuple[Floats, Floats]:
        """Return the scales and the minima of all sub-blocks as columns."""
        steps, minima = self.packed(blocks)
        step = (_scale(blocks, self.offset) * steps).reshape(-1, 1)
        return step, (_scale(blocks, self.offset + 2) * minima).reshape(-1, 1)


def _steps(blocks: Blocks, offset: int, packed: Callable[[Blocks], NDArray[np.int8]] | None) -> Floats:
    """Return the scales of all sub-blocks as a column: the F16 at `offset`, times the packed ones of a super-block."""
    scale = _scale(blocks, offset)
    return scale if packed is None else (scale * packed(blocks)).reshape(-1, 1)


@dataclass(frozen=True, slots=True)
class _Scale(_RoundingRule):
    """Q3_K and Q6_K: an element is a signed quant times a scale."""

    lowest: int
    offset: int
    """The place of the F16 scale of a block."""
    packed: Callable[[Blocks], NDArray[np.int8]] | None

    def levels(self, values: Floats, blocks: Blocks, scales: Floats | None, levels: Bytes) -> None:
        """Fill `levels` as ggml does after it rounded the scales."""
        step = _steps(blocks, self.offset, self.packed)
        rows = values.reshape(len(step), -1)
        np.divide(rows, step, out=rows)
        _nearest(values, self.lowest, -self.lowest - 1, levels)
        _clear_where_zero(step, levels)

    def values(self, blocks: Blocks, levels: Bytes, values: Floats) -> None:
        """Fill `values` with the signed quants times the scale of their block or sub-block."""
        step = _steps(blocks, self.offset, self.packed)
        np.copyto(values, levels)
        np.add(values, np.float32(self.lowest), out=values)
        rows = values.reshape(len(step), -1)
        np.multiply(rows, step, out=rows)


class _Absolute(_RoundingRule):
    """Q8_0: the scale is the largest magnitude of a block over 127."""

    def scales(self, values: Floats) -> Floats:
        """Return the scales as a column."""
        magnitudes = _scratch.words[: len(values)]
        np.bitwise_and(values.view(np.uint32), _MAGNITUDE, out=magnitudes)
        largest = _by_halves(np.maximum, magnitudes).view(np.float32)
        return (largest / np.float32(127)).reshape(-1, 1)

    def levels(self, values: Floats, blocks: Blocks, scales: Floats | None, levels: Bytes) -> None:
        """Fill `levels` with signed quants; half is rounded away from zero."""
        assert scales is not None
        rows = values.reshape(len(blocks), -1)
        np.multiply(rows, _inverse(_refined(scales, blocks, 0)), out=rows)
        _clip(values, -127, 127)
        halves = _scratch.words[: len(values)]
        np.bitwise_and(values.view(np.uint32), _SIGN, out=halves)
        np.bitwise_or(halves, _BELOW_HALF, out=halves)
        np.add(values, halves.view(np.float32), out=values)
        np.copyto(levels.view(np.int8), values, casting="unsafe")

    def values(self, blocks: Blocks, levels: Bytes, values: Floats) -> None:
        """Fill `values` with the signed quants times the scale of their block."""
        np.copyto(values, levels.view(np.int8))
        rows = values.reshape(len(blocks), -1)
        np.multiply(rows, _scale(blocks, 0), out=rows)


class _Extreme(_Scale):
    """Q4_0 and Q5_0: the element of the largest magnitude has the lowest quant."""

    def scales(self, values: Floats) -> Floats:
        """Return the scales as a column."""
        largest, smallest = _by_halves(np.fmax, values), _by_halves(np.fmin, values)
        extreme = np.where(largest > -smallest, largest, smallest)
        both = np.flatnonzero(largest == -smallest)
        if len(both):  # the first one counts
            rows = values.reshape(len(largest), -1)[both]
            first = (np.abs(rows) == largest[both, np.newaxis]).argmax(axis=1)
            extreme[both] = rows[np.arange(len(rows)), first]
        return _without_negative_zero(extreme).reshape(-1, 1) / np.float32(self.lowest)

    def levels(self, values: Floats, blocks: Blocks, scales: Floats | None, levels: Bytes) -> None:
        """Fill `levels`; half is rounded up."""
        assert scales is not None
        rows = values.reshape(len(blocks), -1)
        np.multiply(rows, _inverse(_refined(scales, blocks, 0)), out=rows)
        _half_up(values, -self.lowest, -2 * self.lowest - 1, levels)
        is_zero = (_as_f16(scales) != 0) & (blocks[:, :2].view("<u2") == 0)
        if is_zero.any():  # zeros that were searched for a scale: ggml leaves the level 0
            levels.reshape(len(blocks), -1)[is_zero[:, 0]] = 0


class _Range(_RoundingRule):
    """Q4_1 and Q5_1: the smallest element of a block is its minimum, and the largest has the highest level."""

    def __init__(self, highest: int) -> None:
        self.highest = highest

    def scales(self, values: Floats) -> Floats:
        """Return the scales and the minima as columns."""
        largest, smallest = _by_halves(np.fmax, values), _by_halves(np.fmin, values)
        scales = (largest - smallest) / np.float32(self.highest)
        return np.stack([scales, _without_negative_zero(smallest)], axis=1)

    def levels(self, values: Floats, blocks: Blocks, scales: Floats | None, levels: Bytes) -> None:
        """Fill `levels`; half is rounded up."""
        assert scales is not None
        rows = values.reshape(len(blocks), -1)
        np.subtract(rows, _refined(scales[:, 1:], blocks, 2), out=rows)
        np.multiply(rows, _inverse(_refined(scales[:, :1], blocks, 0)), out=rows)
        _half_up(values, 0, self.highest, levels)

    def values(self, blocks: Blocks, levels: Bytes, values: Floats) -> None:
        """Fill `values` with the levels times the scale of their block, and its minimum."""
        np.copyto(values, levels)
        rows = values.reshape(len(blocks), -1)
        np.multiply(rows, _scale(blocks, 0), out=rows)
        np.add(rows, _scale(blocks, 2), out=rows)


def _half_up(values: Floats, zero: int, highest: int, levels: Bytes) -> None:
    """Fill `levels` with the integers nearest to `values` plus `zero`, from 0 to `highest`. A NaN becomes 0."""
    np.add(values, np.float32(zero + 0.5), out=values)
    _clip(values, 0, highest)
    np.copyto(levels, values, casting="unsafe")


def _without_negative_zero(values: Floats) -> Floats:
    """Return `values` with 0 for -0: which of the two is the smaller one differs from machine to machine."""
    return values + np.float32(0)


@dataclass(frozen=True, slots=True)
class _NonLinear(_RoundingRule):
    """IQ4_NL and IQ4_XS: a level is the place of the nearest of 16 values."""

    packed: Callable[[Blocks], NDArray[np.int8]] | None

    def levels(self, values: Floats, blocks: Blocks, scales: Floats | None, levels: Bytes) -> None:
        """Fill `levels` with the places of the values that are nearest to the scaled elements."""
        step = _steps(blocks, 0, self.packed)
        rows = values.reshape(len(step), -1)
        np.multiply(rows, _inverse(step), out=rows)
        np.multiply(values, np.float32(2), out=values)
        np.floor(values, out=values)
        _clip(values, _TABLE_FIRST, _TABLE_LAST)
        places = _scratch.words[: len(values)].view(np.int32)
        np.subtract(values, np.float32(_TABLE_FIRST), out=values)
        np.copyto(places, values, casting="unsafe")
        np.take(_nearest_of_non_linear, places, out=levels, mode="clip")

    def values(self, blocks: Blocks, levels: Bytes, values: Floats) -> None:
        """Fill `values` with the values of the levels times the scale of their sub-block."""
        step = _steps(blocks, 0, self.packed)
        np.take(np.array(_NON_LINEAR, np.float32), levels, out=values, mode="clip")
        rows = values.reshape(len(step), -1)
        np.multiply(rows, step, out=rows)


_TABLE_FIRST, _TABLE_LAST = 2 * _NON_LINEAR[0] - 1, 2 * _NON_LINEAR[-1] + 1
"""Twice the scaled elements that the table of levels begins and ends with: levels meet at multiples of a half."""
_nearest_of_non_linear = np.searchsorted(
    np.array(_NON_LINEAR[:-1]) + np.array(_NON_LINEAR[1:]), np.arange(_TABLE_FIRST, _TABLE_LAST + 1), side="right"
).astype(np.uint8)


def _scales_of_iq4_xs(blocks: Blocks) -> NDArray[np.int8]:
    """Return the eight signed 6-bit scales of each block of IQ4_XS."""
    low, high = blocks[:, 4:8], blocks[:, 2:4]
    lower = np.stack([low & 15, low >> 4], axis=2).reshape(-1, 8)
    upper = np.stack([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=2).reshape(-1, 8)
    scales: NDArray[np.int8] = (lower | upper << 4).view(np.int8) - np.int8(32)
    return scales


def _by_halves(ufunc: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
    """Return `ufunc` of each 32 values. Halves are faster than a reduction of short rows."""
    for _ in range(5):
        values = ufunc(values[::2], values[1::2])
    return values


def _refined(scales: Floats, blocks: Blocks, offset: int) -> Floats:
    """Return the predicted scales where they are those at `offset` of `blocks`, and the stored scales elsewhere."""
    stored = blocks[:, offset : offset + 2].view("<u2")
    return np.where(_as_f16(scales) == stored, scales, _scale(blocks, offset))


def _inverse(scales: Floats) -> Floats:
    return np.where(scales == 0, np.float32(0), np.float32(1) / scales)


_NIBBLES_OF_256 = 4, 32, 4
_NIBBLES_OF_32 = 1, 16, 4

_QUANTISED: dict[str, _Quantised] = {
    "Q8_0": _Quantised(8, (_Part(2, 1, 32, 8),), _Absolute(), (32, fast.ABSOLUTE, fast.PACKED_NONE, 0, -127, 127)),
    "Q4_K": _Quantised(
        4,
        (_Part(16, *_NIBBLES_OF_256),),
        _ScaleAndMinimum(15, 0, _scales_of_q4_k),
        (32, fast.SCALE_AND_MINIMUM, fast.PACKED_Q4_K, 0, 0, 15),
    ),
    "Q5_K": _Quantised(
        5,
        (_Part(48, *_NIBBLES_OF_256), _Part(16, 1, 32, 1, 4)),
        _ScaleAndMinimum(31, 0, _scales_of_q4_k),
        (32, fast.SCALE_AND_MINIMUM, fast.PACKED_Q4_K, 0, 0, 31),
    ),
    "Q6_K": _Quantised(
        6,
        (_Part(0, 2, 64, 4), _Part(128, 2, 32, 2, 4)),
        _Scale(-32, 208, _scales_of_q6_k),
        (16, fast.SCALE, fast.PACKED_Q6_K, 208, -32, 31),
    ),
    "Q3_K": _Quantised(
        3,
        (_Part(32, 2, 32, 2), _Part(0, 1, 32, 1, 2)),
        _Scale(-4, 108, _scales_of_q3_k),
        (16, fast.SCALE, fast.PACKED_Q3_K, 108, -4, 3),
    ),
    "Q2_K": _Quantised(
        2,
        (_Part(16, 2, 32, 2),),
        _ScaleAndMinimum(3, 80, _scales_of_q2_k),
        (16, fast.SCALE_AND_MINIMUM, fast.PACKED_Q2_K, 80, 0, 3),
    ),
    "Q4_0": _Quantised(
        4,
        (_Part(2, *_NIBBLES_OF_32),),
        _Extreme(-8, 0, None),
        (32, fast.EXTREME, fast.PACKED_NONE, 0, -8, 15),
    ),
    "Q4_1": _Quantised(4, (_Part(4, *_NIBBLES_OF_32),), _Range(15), (32, fast.RANGE, fast.PACKED_NONE, 0, 0, 15)),
    "Q5_0": _Quantised(
        5,
        (_Part(6, *_NIBBLES_OF_32), _Part(2, 4, 1, 1, 4)),
        _Extreme(-16, 0, None),
        (32, fast.EXTREME, fast.PACKED_NONE, 0, -16, 31),
    ),
    "Q5_1": _Quantised(
        5,
        (_Part(8, *_NIBBLES_OF_32), _Part(4, 4, 1, 1, 4)),
        _Range(31),
        (32, fast.RANGE, fast.PACKED_NONE, 0, 0, 31),
    ),
    "IQ4_NL": _Quantised(
        4,
        (_Part(2, *_NIBBLES_OF_32),),
        _NonLinear(None),
        None,  # numpy is faster
    ),
    "IQ4_XS": _Quantised(
        4,
        (_Part(8, 8, 16, 4),),
        _NonLinear(_scales_of_iq4_xs),
        (32, fast.NON_LINEAR, fast.PACKED_IQ4_XS, 0, _TABLE_FIRST, _TABLE_LAST),
    ),
}
