"""Compiled kernels, if numba is installed: the same bytes as the loops in numpy, several times faster.

The functions after `_compiled` are written in the part of Python that numba compiles. Without numba, or where its cache
has no folder to write to, `kernels` returns None, and numpy does the work. Only `warm` imports numba.

Float operations are compiled as they stand: numba reorders none and fuses no multiplication with an addition.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

log = logging.getLogger(__name__)

Bytes: TypeAlias = NDArray[np.uint8]
Halves: TypeAlias = NDArray[np.uint16]
Bits: TypeAlias = NDArray[np.uint32]
Words: TypeAlias = NDArray[np.uint64]
Floats: TypeAlias = NDArray[np.float32]
Numbers: TypeAlias = NDArray[np.int64]
Integer: TypeAlias = Any
"""An integer: Python's, or one of numpy's in compiled code."""

SOURCES = ("F32", "F16", "BF16", "Q8_0")
"""Types of a source; a kernel takes the index."""
SCALE_AND_MINIMUM, SCALE, NON_LINEAR, ABSOLUTE, EXTREME, RANGE = range(6)
"""Families of quantised types; the order is that of the branches in the kernel."""
PACKED_Q2_K, PACKED_Q3_K, PACKED_Q4_K, PACKED_Q6_K, PACKED_IQ4_XS, PACKED_NONE = range(6)
"""Places of the scales of sub-blocks."""
NO_CACHE = (
    "numba has no folder for compiled code, so numpy does the work: set NUMBA_CACHE_DIR to a folder that this user can "
    "write"
)
TOGETHER = 4096
"""Elements that are transformed at a time: their float32 values stay in the fastest cache."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Compiled functions. They release the interpreter's lock."""

    quants: Callable[[Bytes, int, Bytes, Bytes, bool, Numbers, Numbers, Bytes], None]
    """Transforms blocks of quants to residuals, and back; see `_quants`."""
    subtract_halves: Callable[[Halves, Halves, Halves, int, int], None]
    """Fills residuals of 16-bit floats; see `_subtract_halves`."""
    add_halves: Callable[[Halves, Halves, Halves, int, int], None]
    """The inverse of `subtract_halves`."""
    join_bf16: Callable[[Bytes, Bytes, Halves], None]
    """Fills values of BF16 from their planes; see `_join_bf16`."""


class _State:
    """The kernels of the process, once they were asked for."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_tried = False
        self.kernels: Kernels | None = None


_state = _State()


def kernels() -> Kernels | None:
    """Return the compiled kernels, or None before `warm` has ended and where they cannot be compiled."""
    return _state.kernels


def warm() -> None:
    """Compile the kernels, or load them from numba's cache; the first call takes seconds, further calls nothing."""
    with _state.lock:
        if not _state.is_tried:
            _state.is_tried = True
            _state.kernels = _compiled()


def use(kernels: Kernels | None) -> None:
    """Use these kernels from now on, or numpy: for tests and benchmarks."""
    with _state.lock:
        _state.is_tried, _state.kernels = True, kernels


def warm_in_background() -> None:
    """Start a thread that calls `warm`, unless one was started before."""
    if not _state.is_tried:
        threading.Thread(target=warm, name="warm", daemon=True).start()


def interpreted() -> Kernels:
    """Return the kernels as functions that Python runs, thousands of times slower: tests need no numba."""
    return Kernels(_quants, _subtract_halves, _add_halves, _join_bf16)


def has_cache() -> bool:
    """Return whether numba finds a folder where it can keep compiled code. Raises ImportError without numba."""
    import numba

    try:
        numba.njit(cache=True)(_join_bf16)  # which compiles nothing yet
    except RuntimeError:
        return False
    return True


def _compiled() -> Kernels | None:
    try:
        import numba
        from numba.extending import register_jitable
    except ImportError:
        return None
    try:
        if not has_cache():
            log.warning(NO_CACHE)
            return None
        for helper in _HELPERS:
            register_jitable(error_model="numpy")(helper)
        read = numba.types.Array(numba.types.uint8, 1, "C", readonly=True)
        written, numbers = numba.types.uint8[::1], numba.types.int64[::1]
        quants = numba.types.void(read, numba.int64, read, written, numba.boolean, numbers, numbers, read)
        halves = numba.types.Array(numba.types.uint16, 1, "C", readonly=True)
        floats = numba.types.void(halves, halves, numba.types.uint16[::1], numba.int64, numba.int64)
        join = numba.types.void(read, read, numba.types.uint16[::1])

        def compiled(form: Any, loop: Callable[..., None]) -> Any:
            return numba.njit(form, cache=True, nogil=True, error_model="numpy")(loop)

        # The longest last: if the process ends before that, the next one continues, because each is in the cache.
        join_bf16 = compiled(join, _join_bf16)
        halves = compiled(floats, _subtract_halves), compiled(floats, _add_halves)
        return Kernels(compiled(quants, _quants), *halves, join_bf16)
    except Exception:  # numba raises errors of many kinds
        log.exception("the kernels cannot be compiled, numpy is used instead")
        return None


# Floats


def _from_f16(word: Integer) -> np.float32:
    """Return the value of the bits of an F16."""
    if word & 0x7C00 == 0:
        magnitude = np.float32(word & 0x3FF) * _F16_STEP
    elif word & 0x7C00 < 0x7C00:
        magnitude = np.uint32(((word & 0x7FFF) << 13) + _F16_BIAS).view(np.float32)
    else:
        magnitude = np.uint32(((word & 0x7FFF) << 13) + 2 * _F16_BIAS).view(np.float32)
    return np.float32(-magnitude) if word & 0x8000 else magnitude


_F16_STEP = np.float32(2.0**-24)
_F16_BIAS = 112 << 23


def _to_f16(value: np.float32) -> Integer:
    """Return the bits of the nearest F16, half to even; every NaN has the same bits."""
    bits = np.int64(np.float32(value).view(np.uint32))
    sign, magnitude = bits >> 16 & 0x8000, bits & 0x7FFFFFFF
    if magnitude > 0x7F800000:
        return 0x7E00
    if magnitude >= 0x47800000:
        return sign | 0x7C00
    if magnitude >= 0x38800000:
        return sign | (magnitude + 0xFFF + (magnitude >> 13 & 1) - _F16_BIAS) >> 13
    small = np.uint32(magnitude).view(np.float32) * np.float32(2.0**24) + np.float32(1 << 23)
    return sign | np.int64(np.float32(small).view(np.uint32)) & 0x7FF


def _word(block: Bytes, offset: Integer) -> Integer:
    return np.int64(block[offset]) | np.int64(block[offset + 1]) << 8


def _set_word(block: Bytes, offset: Integer, word: Integer) -> None:
    block[offset] = word & 0xFF
    block[offset + 1] = word >> 8 & 0xFF


def _widen(source: Bytes, kind: Integer, first: Integer, bits: Bits) -> None:
    """Fill `bits` with float32 values of `source`, beginning with the element `first`."""
    count = len(bits)
    if kind == 0:
        words = source[4 * first : 4 * (first + count)].view(np.uint32)
        for index in range(count):
            bits[index] = words[index]
    elif kind == 1:
        values = bits.view(np.float32)
        halves = source[2 * first : 2 * (first + count)].view(np.uint16)
        for index in range(count):
            values[index] = _from_f16(np.int32(halves[index]))
    elif kind == 2:
        halves = source[2 * first : 2 * (first + count)].view(np.uint16)
        for index in range(count):
            bits[index] = np.uint32(halves[index]) << np.uint32(16)
    else:
        values = bits.view(np.float32)
        for group in range(count // 32):
            start = (first // 32 + group) * 34
            step = _from_f16(_word(source, start))
            quants = source[start + 2 : start + 34].view(np.int8)
            for index in range(32):
                values[32 * group + index] = np.float32(quants[index]) * step


# Scales


def _packed_scale(block: Bytes, packing: Integer, number: Integer) -> Integer:
    """Return the packed scale `number` of a super-block, with its sign."""
    if packing == PACKED_Q2_K:
        return block[number] & 15
    if packing == PACKED_Q6_K:
        return np.int64(np.int8(block[192 + number]))
    if packing == PACKED_Q3_K:
        low = block[96 + number % 8] >> 4 * (number // 8) & 15
        return np.int64(low | (block[104 + number % 4] >> 2 * (number // 4) & 3) << 4) - 32
    if packing == PACKED_IQ4_XS:
        low = block[4 + number // 2] >> 4 * (number % 2) & 15
        return np.int64(low | (block[2 + number // 4] >> 2 * (number % 4) & 3) << 4) - 32
    if number < 4:
        return block[4 + number] & 63
    return block[8 + number] & 15 | block[number] >> 6 << 4


def _packed_minimum(block: Bytes, packing: Integer, number: Integer) -> Integer:
    """Return the packed minimum `number` of a super-block."""
    if packing == PACKED_Q2_K:
        return block[number] >> 4
    if number < 4:
        return block[8 + number] & 63
    return block[8 + number] >> 4 | block[4 + number] >> 6 << 4


def _stored_scales(
    block: Bytes, family: Integer, packing: Integer, offset: Integer, steps: Floats, minima: Floats
) -> None:
    """Fill `steps` and `minima` with the scales of the sub-blocks of a plain block."""
    scale = _from_f16(_word(block, offset))
    for number in range(len(steps)):
        steps[number] = scale * np.float32(_packed_scale(block, packing, number))
    if family == SCALE_AND_MINIMUM:
        minimum = _from_f16(_word(block, offset + 2))
        for number in range(len(steps)):
            minima[number] = minimum * np.float32(_packed_minimum(block, packing, number))
    elif family == NON_LINEAR:
        for number in range(len(steps)):
            steps[number] = _inverse(steps[number])


def _inverse(scale: np.float32) -> np.float32:
    return np.float32(0) if scale == 0 else np.float32(1) / scale


def _largest_magnitude(bits: Bits) -> np.float32:
    largest = np.uint32(0)
    for index in range(len(bits)):
        largest = max(largest, bits[index] & np.uint32(0x7FFFFFFF))
    return np.uint32(largest).view(np.float32)


def _limits(bits: Bits) -> tuple[np.float32, np.float32]:
    """Return the smallest and the largest value; a NaN counts only if all are NaN, and -0 is 0."""
    least: Integer = _KEY_MAX
    most: Integer = -_KEY_MAX
    for index in range(len(bits)):
        key = _key(bits[index])
        is_nan = abs(key) > _KEY_OF_INFINITY
        least = min(least, _KEY_MAX if is_nan else key)
        most = max(most, -_KEY_MAX if is_nan else key)
    return _from_key(least) + np.float32(0), _from_key(most) + np.float32(0)


_KEY_OF_INFINITY, _KEY_MAX = 0x7F800000, 0x7FFFFFFF


def _key(bits: np.uint32) -> Integer:
    """Return an integer that orders floats by their value: the magnitude of the bits with their sign."""
    magnitude = np.int64(bits) & 0x7FFFFFFF
    return -magnitude if bits >> np.uint32(31) else magnitude


def _from_key(key: Integer) -> np.float32:
    magnitude = np.uint32(abs(key)).view(np.float32)
    return np.float32(-magnitude) if key < 0 else magnitude


def _extreme(bits: Bits) -> np.float32:
    """Return the value of the largest magnitude; of two such values the first one."""
    smallest, largest = _limits(bits)
    if largest > -smallest:
        return largest
    if largest == -smallest:
        for index in range(len(bits)):
            value = np.uint32(bits[index]).view(np.float32)
            if value in (largest, smallest):
                return value + np.float32(0)
    return smallest


def _transform_scale(
    old: Bytes, new: Bytes, offset: Integer, predicted: np.float32, restore: bool
) -> tuple[Integer, np.float32]:
    """Transform a predicted scale; return its stored word, and the prediction or, where that is wrong, the word."""
    expected = _to_f16(predicted)
    word = _word(old, offset)
    if restore:
        plain = (word >> 1 ^ -(word & 1)) + expected & 0xFFFF
        _set_word(new, offset, plain)
    else:
        plain = word
        signed = (word - expected & 0xFFFF ^ 0x8000) - 0x8000
        _set_word(new, offset, signed << 1 ^ signed >> 15)
    return plain, predicted if plain == expected else _from_f16(plain)


# Levels


def _predict(
    values: Floats, steps: Floats, minima: Floats, shape: Numbers, table: Bytes, wide: Floats, predicted: Bytes
) -> None:
    """Fill `predicted` with the level of each value. `wide` has memory for two numbers of each value."""
    family, low, high = shape[3], np.float32(shape[6]), np.float32(shape[7])
    if family <= SCALE:
        count = len(values)
        _spread(steps, wide[:count])
        _spread(minima, wide[count:])
        _nearest(values, wide[:count], wide[count:], low, high, predicted)
        return
    size = len(values) // len(steps)
    for number in range(len(steps)):
        part = values[number * size : (number + 1) * size]
        _nearest_of_table(part, steps[number], low, high, table, predicted[number * size : (number + 1) * size])


def _spread(numbers: Floats, wide: Floats) -> None:
    """Repeat each number for all values of its sub-block."""
    size = np.uint64(len(wide) // len(numbers))
    for number in range(np.uint64(len(numbers))):
        value = numbers[number]
        for index in range(number * size, (number + np.uint64(1)) * size):
            wide[index] = value


def _nearest(
    values: Floats, steps: Floats, minima: Floats, low: np.float32, high: np.float32, predicted: Bytes
) -> None:
    """Fill `predicted`; where the step is 0, with 0. One loop over all values of a block is faster than many loops."""
    rounding = np.float32(3 << 22) - low
    for index in range(len(predicted)):
        value = (values[index] + minima[index]) / steps[index]
        value = value if value > low else low
        value = value if value < high else high
        level = np.float32(value + rounding).view(np.uint32)
        predicted[index] = level if steps[index] != 0 else np.uint32(0)


def _half_away(part: Floats, step: np.float32, out: Bytes) -> None:
    for index in range(len(out)):
        value = part[index] * step
        value = value if value > np.float32(-127) else np.float32(-127)
        value = value if value < np.float32(127) else np.float32(127)
        value += _BELOW_HALF if value > 0 else -_BELOW_HALF
        out[index] = np.int32(value)


_BELOW_HALF = np.float32(0.49999997)
"""The float32 before 0.5."""


def _half_up(
    part: Floats, minimum: np.float32, step: np.float32, offset: np.float32, high: np.float32, out: Bytes
) -> None:
    for index in range(len(out)):
        value = (part[index] - minimum) * step
        value = value + offset
        value = value if value > np.float32(0) else np.float32(0)
        value = value if value < high else high
        out[index] = np.int32(value)


def _nearest_of_table(
    part: Floats, step: np.float32, low: np.float32, high: np.float32, table: Bytes, out: Bytes
) -> None:
    for index in range(len(out)):
        value = np.floor(part[index] * step * np.float32(2))
        value = value if value > low else low
        value = value if value < high else high
        out[index] = table[np.int32(value - low)]


# Bits of levels. Eight bytes are one number: no operation carries from a byte to the next. Unsigned indexes are faster,
# because a negative index counts from the end. A loop is faster than an assignment to a slice.


def _each(byte: Integer) -> np.uint64:
    return np.uint64(byte) * np.uint64(0x0101010101010101)


def _clear(levels: Bytes) -> None:
    for index in range(len(levels)):
        levels[index] = 0


def _copy(old: Bytes, new: Bytes) -> None:
    for index in range(len(old)):
        new[index] = old[index]


def _unpack(old: Bytes, size: Integer, parts: Numbers, packed: Words, levels: Words) -> None:
    """Fill `levels` with a byte for each element of the blocks `old` of `size` bytes."""
    for part in range(len(parts) // 5):
        width, bits = parts[5 * part + 2], parts[5 * part + 3]
        groups, shift = np.uint64(parts[5 * part + 1] * (len(old) // size)), np.uint64(parts[5 * part + 4])
        _gather_fields(old, size, parts[5 * part], parts[5 * part + 1] * width, packed.view(np.uint8))
        if width < 8:
            _spread_bits(packed, shift, levels)
            continue
        mask, slots, words = _each((1 << bits) - 1), np.uint64(8 // bits), np.uint64(width // 8)
        for group in range(groups):
            for index in range(words):
                word, place = packed[group * words + index], group * slots * words + index
                for slot in range(slots):
                    level = (word >> np.uint64(bits) * slot & mask) << shift
                    if part:
                        level |= levels[place + slot * words]
                    levels[place + slot * words] = level


def _pack(levels: Words, size: Integer, parts: Numbers, packed: Words, new: Bytes) -> None:
    """Write levels to their places in the blocks `new` of `size` bytes."""
    for part in range(len(parts) // 5):
        if parts[5 * part + 2] < 8:
            _gather_bits(levels, np.uint64(parts[5 * part + 4]), packed)
        else:
            _pack_part(levels, len(new) // size, parts[5 * part : 5 * part + 5], packed)
        _scatter_fields(packed.view(np.uint8), size, parts[5 * part], parts[5 * part + 1] * parts[5 * part + 2], new)


def _pack_part(levels: Words, blocks: Integer, part: Numbers, packed: Words) -> None:
    bits, shift = np.uint64(part[3]), np.uint64(part[4])
    mask, slots, words = _each((1 << part[3]) - 1), np.uint64(8 // part[3]), np.uint64(part[2] // 8)
    for group in range(np.uint64(part[1] * blocks)):
        for index in range(words):
            word, place = np.uint64(0), group * slots * words + index
            for slot in range(slots):
                word |= (levels[place + slot * words] >> shift & mask) << bits * slot
            packed[group * words + index] = word


def _gather_fields(blocks: Bytes, size: Integer, offset: Integer, length: Integer, fields: Bytes) -> None:
    """Copy the field at `offset` of each block of `size` bytes to `fields`."""
    for block in range(np.uint64(len(blocks) // size)):
        begin, place = block * np.uint64(size) + np.uint64(offset), block * np.uint64(length)
        for index in range(np.uint64(length)):
            fields[place + index] = blocks[begin + index]


def _scatter_fields(fields: Bytes, size: Integer, offset: Integer, length: Integer, blocks: Bytes) -> None:
    """Copy `fields` to the field at `offset` of each block of `size` bytes."""
    for block in range(np.uint64(len(blocks) // size)):
        begin, place = block * np.uint64(size) + np.uint64(offset), block * np.uint64(length)
        for index in range(np.uint64(length)):
            blocks[begin + index] = fields[place + index]


def _spread_bits(packed: Words, shift: np.uint64, levels: Words) -> None:
    """Add the 32 bits in the first word to the levels of Q5_0 or Q5_1, in the order of the elements."""
    for index in range(4):
        eight = packed[0] >> np.uint64(8 * index) & np.uint64(0xFF)
        word = np.uint64(0)
        for bit in range(8):
            word |= (eight >> np.uint64(bit) & np.uint64(1)) << np.uint64(8 * bit)
        levels[index] |= word << shift


def _gather_bits(levels: Words, shift: np.uint64, packed: Words) -> None:
    """Write the upper bits of 32 levels to the first word: the inverse of `_spread_bits`."""
    bits = np.uint64(0)
    for index in range(4):
        word = levels[index] >> shift & _each(1)
        for bit in range(8):
            bits |= (word >> np.uint64(8 * bit) & np.uint64(1)) << np.uint64(8 * index + bit)
    packed[0] = bits


def _subtract(levels: Words, predicted: Words, bits: Integer) -> None:
    """Replace levels with residuals: 0, 1, 2 ... for a difference of 0, -1, 1 ..."""
    mask, ones, top = _each((1 << bits) - 1), _each(1), np.uint64(bits - 1)
    for index in range(len(levels)):
        word = (levels[index] | _each(0x80)) - predicted[index] & mask
        sign = word >> top & ones
        levels[index] = word << np.uint64(1) & mask ^ (sign << np.uint64(bits)) - sign


def _add(levels: Words, predicted: Words, bits: Integer) -> None:
    """Replace residuals with levels: the inverse of `_subtract`."""
    mask, ones = _each((1 << bits) - 1), _each(1)
    for index in range(len(levels)):
        sign = levels[index] & ones
        word = levels[index] >> np.uint64(1) & mask >> np.uint64(1) ^ (sign << np.uint64(bits)) - sign
        levels[index] = word + predicted[index] & mask


def _quants(
    source: Bytes,
    kind: Integer,
    before: Bytes,
    after: Bytes,
    restore: bool,
    shape: Numbers,
    parts: Numbers,
    table: Bytes,
) -> None:
    """Fill `after` with residual blocks of the plain blocks `before`, or, if `restore`, the other way.

    `kind` is the place of the type of `source` in `SOURCES`. `shape` is: elements and bytes of a block, elements of a
    sub-block, family, packing of the scales, offset of the F16 scale, lowest and highest quant, bits of a level.
    `parts` has five numbers for each part of a level; `table` has the levels of a non-linear type.
    """
    if shape[3] < ABSOLUTE:
        _super_blocks(source, kind, before, after, restore, shape, parts, table)
    else:
        _small_blocks(source, kind, before, after, restore, shape, parts)


def _super_blocks(
    source: Bytes,
    kind: Integer,
    before: Bytes,
    after: Bytes,
    restore: bool,
    shape: Numbers,
    parts: Numbers,
    table: Bytes,
) -> None:
    """Transform blocks whose scales are not predicted, some at a time: calls for each block cost more than the work."""
    elements, size = shape[0], shape[1]
    scales, together, total = elements // shape[2], max(1, TOGETHER // elements), len(before) // size
    memory = _memory(together, elements, scales)
    for first in range(0, total, together):
        count = min(together, total - first)
        if count < together:
            memory = _memory(count, elements, scales)
        bits, predicted, levels, packed, steps, minima, wide = memory
        old, new = before[first * size : (first + count) * size], after[first * size : (first + count) * size]
        _widen(source, kind, first * elements, bits)
        _copy(old, new)
        for number in range(count):
            own = steps[number * scales : (number + 1) * scales], minima[number * scales : (number + 1) * scales]
            _stored_scales(old[number * size : (number + 1) * size], shape[3], shape[4], shape[5], *own)
        _predict(bits.view(np.float32), steps, minima, shape, table, wide, predicted)
        guesses = predicted.view(np.uint64)
        if restore and _all_clear(old, size, parts, packed):
            _pack(guesses, size, parts, packed, new)
        else:
            _transform_levels(old, new, size, guesses, shape[8], parts, restore, packed, levels)


def _memory(
    count: Integer, elements: Integer, scales: Integer
) -> tuple[Bits, Bytes, Words, Words, Floats, Floats, Floats]:
    """Return the workspace of `_super_blocks` for `count` blocks."""
    return (
        np.empty(count * elements, np.uint32),
        np.empty(count * elements, np.uint8),
        np.empty(count * elements // 8, np.uint64),
        np.empty(count * elements // 8, np.uint64),
        np.zeros(count * scales, np.float32),
        np.zeros(count * scales, np.float32),
        np.empty(2 * count * elements, np.float32),
    )


def _small_blocks(
    source: Bytes, kind: Integer, before: Bytes, after: Bytes, restore: bool, shape: Numbers, parts: Numbers
) -> None:
    """Transform blocks of 32 elements whose scales are predicted."""
    size, family = shape[1], shape[3]
    widened, levels, packed = np.empty(256, np.uint32), np.empty(4, np.uint64), np.empty(4, np.uint64)
    predicted = np.empty(32, np.uint8)
    guesses, count = predicted.view(np.uint64), len(before) // size
    for number in range(count):
        if number % 8 == 0:
            _widen(source, kind, number * 32, widened[: 32 * min(8, count - number)])
        bits = widened[32 * (number % 8) : 32 * (number % 8) + 32]
        old, new = before[number * size : (number + 1) * size], after[number * size : (number + 1) * size]
        if family == ABSOLUTE:
            _, scale = _transform_scale(old, new, 0, np.float32(_largest_magnitude(bits) / np.float32(127)), restore)
            _half_away(bits.view(np.float32), _inverse(scale), predicted)
            _transform_bytes(old, new, predicted, restore)
        else:
            if family == EXTREME:
                _predict_from_extreme(old, new, bits, np.float32(shape[6]), np.float32(shape[7]), restore, predicted)
            else:
                _predict_from_range(old, new, bits, np.float32(shape[7]), restore, predicted)
            _transform_levels(old, new, size, guesses, shape[8], parts, restore, packed, levels)


def _predict_from_extreme(
    old: Bytes, new: Bytes, bits: Bits, low: np.float32, high: np.float32, restore: bool, predicted: Bytes
) -> None:
    """Transform the scale of a block of Q4_0 or Q5_0, and fill `predicted`."""
    expected = np.float32(_extreme(bits) / low)
    plain, scale = _transform_scale(old, new, 0, expected, restore)
    if plain == 0 and _to_f16(expected) != 0:
        _clear(predicted)
    else:
        _half_up(bits.view(np.float32), np.float32(0), _inverse(scale), np.float32(0.5) - low, high, predicted)


def _predict_from_range(old: Bytes, new: Bytes, bits: Bits, high: np.float32, restore: bool, predicted: Bytes) -> None:
    """Transform the scale and the minimum of a block of Q4_1 or Q5_1, and fill `predicted`."""
    smallest, largest = _limits(bits)
    _, scale = _transform_scale(old, new, 0, np.float32((largest - smallest) / high), restore)
    _, minimum = _transform_scale(old, new, 2, smallest, restore)
    _half_up(bits.view(np.float32), minimum, _inverse(scale), np.float32(0.5), high, predicted)


def _transform_levels(
    old: Bytes,
    new: Bytes,
    size: Integer,
    guesses: Words,
    bits: Integer,
    parts: Numbers,
    restore: bool,
    packed: Words,
    levels: Words,
) -> None:
    """Transform the levels of the blocks `old` of `size` bytes."""
    if len(parts) == 5:
        _transform_packed(old, new, size, guesses, bits, parts, restore, packed, levels)
        return
    _unpack(old, size, parts, packed, levels)
    if restore:
        _add(levels, guesses, bits)
    else:
        _subtract(levels, guesses, bits)
    _pack(levels, size, parts, packed, new)


def _transform_packed(
    old: Bytes,
    new: Bytes,
    size: Integer,
    guesses: Words,
    bits: Integer,
    parts: Numbers,
    restore: bool,
    packed: Words,
    words: Words,
) -> None:
    """Transform levels of one part without unpacking them: the upper bit of each is computed apart from the others."""
    blocks, length = len(old) // size, parts[1] * parts[2]
    _pack_part(guesses, blocks, parts, packed)
    _gather_fields(old, size, parts[0], length, words.view(np.uint8))
    upper = _each(0x88 if bits == 4 else 0xAA)
    for index in range(blocks * length // 8):
        word, guess = words[index], packed[index]
        if restore:
            words[index] = (word & ~upper) + (guess & ~upper) ^ (word ^ guess) & upper
        else:
            words[index] = (word | upper) - (guess & ~upper) ^ (word ^ ~guess) & upper
    _scatter_fields(words.view(np.uint8), size, parts[0], length, new)


def _all_clear(blocks: Bytes, size: Integer, parts: Numbers, packed: Words) -> bool:
    """Return whether all levels are 0: as residuals, if all were predicted."""
    found = np.uint64(0)
    for part in range(len(parts) // 5):
        length = parts[5 * part + 1] * parts[5 * part + 2]
        _gather_fields(blocks, size, parts[5 * part], length, packed.view(np.uint8))
        for index in range(np.uint64(len(blocks) // size * length // 8)):
            found |= packed[index]
    return bool(found == 0)


def _transform_bytes(old: Bytes, new: Bytes, predicted: Bytes, restore: bool) -> None:
    """Transform the signed bytes of Q8_0."""
    if restore:
        for index in range(len(predicted)):
            new[2 + index] = old[2 + index] + predicted[index]
    else:
        for index in range(len(predicted)):
            new[2 + index] = old[2 + index] - predicted[index]


# Differences of 16-bit floats


def _ordered(word: Integer) -> Integer:
    """Return the bits of a float as a signed integer in the order of the floats."""
    signed = (np.int64(word) ^ 0x8000) - 0x8000
    return signed ^ (signed >> 15 & 0x7FFF)


def _starts(parent: Halves, shift: Integer, mask: Integer) -> Numbers:
    """Return the number of values with a smaller exponent, by exponent."""
    counts = np.zeros(257, np.int64)
    for index in range(len(parent)):
        counts[(np.int64(parent[index]) >> shift & mask) + 1] += 1
    for exponent in range(256):
        counts[exponent + 1] += counts[exponent]
    return counts


def _subtract_halves(parent: Halves, plain: Halves, residual: Halves, shift: int, mask: int) -> None:
    """Fill `residual` as `delta` does: zigzag differences, sorted by the exponent of the parent's value.

    The exponent of a value is `value >> shift & mask`.
    """
    places = _starts(parent, shift, mask)
    for index in range(len(parent)):
        exponent = np.int64(parent[index]) >> shift & mask
        difference = _ordered(plain[index]) - _ordered(parent[index])
        signed = (difference & 0xFFFF ^ 0x8000) - 0x8000
        residual[places[exponent]] = (signed << 1 ^ signed >> 15) & 0xFFFF
        places[exponent] += 1


def _add_halves(parent: Halves, residual: Halves, plain: Halves, shift: int, mask: int) -> None:
    """Fill `plain`: the inverse of `_subtract_halves`."""
    places = _starts(parent, shift, mask)
    for index in range(len(parent)):
        exponent = np.int64(parent[index]) >> shift & mask
        zigzag = np.int64(residual[places[exponent]])
        places[exponent] += 1
        value = _ordered(parent[index]) + (zigzag >> 1 ^ -(zigzag & 1))
        plain[index] = _ordered(value & 0xFFFF) & 0xFFFF


# Planes


def _join_bf16(exponents: Bytes, signs_and_mantissas: Bytes, words: Halves) -> None:
    """Fill `words` as `planes` does."""
    for index in range(len(words)):
        rest = np.uint16(signs_and_mantissas[index])
        exponent = np.uint16(exponents[index])
        words[index] = (rest & np.uint16(0x80)) << np.uint16(8) | exponent << np.uint16(7) | rest & np.uint16(0x7F)


_HELPERS: tuple[Callable[..., Any], ...] = (
    *(_from_f16, _to_f16, _word, _set_word, _widen, _each, _inverse, _largest_magnitude),
    *(_key, _from_key, _limits, _extreme),
    *(_packed_scale, _packed_minimum, _stored_scales, _transform_scale),
    *(_spread, _nearest, _half_away, _half_up, _nearest_of_table, _predict),
    *(_clear, _copy, _spread_bits, _gather_bits, _gather_fields, _scatter_fields, _unpack, _pack_part, _pack),
    *(_subtract, _add, _all_clear, _transform_packed, _transform_levels, _transform_bytes),
    *(_predict_from_extreme, _predict_from_range, _memory, _super_blocks, _small_blocks),
    *(_ordered, _starts),
)
"""Functions that kernels call; a helper comes before those that call it."""
