"""Taking blocks apart into planes and putting them together, in numpy.

Everything runs over cache blocks (`CACHE_BLOCK_BYTES` of plain bytes). For floats every step is one contiguous numpy
loop: five of them together are faster than copying every second byte once. numpy lets go of the interpreter's lock in
each, so threads do run side by side.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from organs.registry.store.codec.layout import CACHE_BLOCK_BYTES, Codec, Kind

Bytes = NDArray[np.uint8]
"""One-dimensional and contiguous wherever it stands here."""
Words = NDArray[np.uint16]

_EXPONENT_SHIFT = 7
_SIGN_AND_MANTISSA = 0x807F
"""A BF16 without its exponent."""


def split_planes(codec: Codec, plain: Bytes, planes: Sequence[Bytes]) -> None:
    """Fill `planes`, sized by `codec.plane_sizes_bytes`, from the whole blocks in `plain`. Not for the kind WHOLE."""
    if codec.kind is Kind.FIELDS:
        for in_plain, in_plane in _fields(codec, plain, planes, 0):
            np.copyto(in_plane, in_plain)
    else:
        split, _ = _FLOAT_LOOPS[codec.kind]
        for part, pieces in _cache_blocks(codec, plain, planes, 0):
            split(part, pieces)


def join_planes(codec: Codec, planes: Sequence[Bytes], plain: Bytes, *, first_block: int = 0) -> None:
    """The inverse of `split_planes`: fill `plain` with as many blocks as it has room for, from `first_block` on."""
    if codec.kind is Kind.WHOLE:
        start = first_block * codec.block_bytes
        np.copyto(plain, planes[0][start : start + len(plain)])
    elif codec.kind is Kind.FIELDS:
        for in_plain, in_plane in _fields(codec, plain, planes, first_block):
            np.copyto(in_plain, in_plane)
    else:
        _, join = _FLOAT_LOOPS[codec.kind]
        for part, pieces in _cache_blocks(codec, plain, planes, first_block):
            join(part, pieces)


def _fields(
    codec: Codec, plain: Bytes, planes: Sequence[Bytes], first_block: int
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Pairs of equal shape, cache block by cache block: a field in the blocks, and the same in its plane."""
    records = plain.view(_record_dtype(codec))
    pairs: list[tuple[NDArray[Any], NDArray[Any]]] = []
    for plane, content in zip(codec.planes, planes, strict=True):
        if plane.transposed:
            column: NDArray[Any] = content.reshape(plane.size_bytes, -1).T
        else:
            column = content.view(records.dtype[plane.name])
        pairs.append((records[plane.name], column[first_block : first_block + len(records)]))
    step = CACHE_BLOCK_BYTES // codec.block_bytes
    for start in range(0, len(records), step):
        for in_plain, in_plane in pairs:
            yield in_plain[start : start + step], in_plane[start : start + step]


@lru_cache(maxsize=64)
def _record_dtype(codec: Codec) -> np.dtype[np.void]:
    """A block as a record. A field of several bytes is one opaque item: numpy moves it whole, up to 13 times faster."""
    return np.dtype(
        [
            (plane.name, np.uint8, (plane.size_bytes,)) if plane.transposed else (plane.name, f"V{plane.size_bytes}")
            for plane in codec.planes
        ]
    )


def _cache_blocks(
    codec: Codec, plain: Bytes, planes: Sequence[Bytes], first_block: int
) -> Iterator[tuple[Bytes, list[Bytes]]]:
    """Cache blocks of `plain`, each with its piece of every plane; a plane of the floats has one byte a block."""
    step = CACHE_BLOCK_BYTES // codec.block_bytes
    for start in range(0, len(plain) // codec.block_bytes, step):
        part = plain[start * codec.block_bytes : (start + step) * codec.block_bytes]
        begin, end = first_block + start, first_block + start + len(part) // codec.block_bytes
        yield part, [plane[begin:end] for plane in planes]


class _Scratch(threading.local):
    """Room for one cache block of 16-bit words, three times, for each thread: fresh memory is slow at first touch."""

    def __init__(self) -> None:
        self.first: Words = np.empty(CACHE_BLOCK_BYTES // 2, np.uint16)
        self.second: Words = np.empty(CACHE_BLOCK_BYTES // 2, np.uint16)
        self.third: Words = np.empty(CACHE_BLOCK_BYTES // 2, np.uint16)


_scratch = _Scratch()


def _split_bf16(plain: Bytes, planes: list[Bytes]) -> None:
    _split_upper_half(plain.view("<u2"), planes[0], planes[1])


def _join_bf16(plain: Bytes, planes: list[Bytes]) -> None:
    _join_upper_half(planes[0], planes[1], plain.view("<u2"))


def _split_f32(plain: Bytes, planes: list[Bytes]) -> None:
    exponent, sign_mantissa, middle, low = planes
    values = plain.view("<u4")
    half = _scratch.third[: len(values)]
    np.right_shift(values, 16, out=half, casting="unsafe")
    _split_upper_half(half, exponent, sign_mantissa)
    np.copyto(half, values, casting="unsafe")
    _split_word(half, low, middle)


def _join_f32(plain: Bytes, planes: list[Bytes]) -> None:
    exponent, sign_mantissa, middle, low = planes
    values = plain.view("<u4")
    half = _scratch.third[: len(values)]
    _join_upper_half(exponent, sign_mantissa, half)
    np.copyto(values, half)
    np.left_shift(values, 16, out=values)
    _join_word(low, middle, half)
    np.bitwise_or(values, half, out=values)


def _split_pairs(plain: Bytes, planes: list[Bytes]) -> None:
    _split_word(plain.view("<u2"), planes[0], planes[1])


def _join_pairs(plain: Bytes, planes: list[Bytes]) -> None:
    _join_word(planes[0], planes[1], plain.view("<u2"))


def _split_upper_half(words: Words, exponent: Bytes, sign_mantissa: Bytes) -> None:
    """The upper half of an F32, which is a BF16: its exponent, and its sign above its seven bits of mantissa."""
    first, second = _scratch.first[: len(words)], _scratch.second[: len(words)]
    np.right_shift(words, _EXPONENT_SHIFT, out=first)
    np.copyto(exponent, first, casting="unsafe")
    np.bitwise_and(words, _SIGN_AND_MANTISSA, out=first)
    np.right_shift(first, 8, out=second)
    np.bitwise_or(first, second, out=first)
    np.copyto(sign_mantissa, first, casting="unsafe")


def _join_upper_half(exponent: Bytes, sign_mantissa: Bytes, words: Words) -> None:
    first, second = _scratch.first[: len(words)], _scratch.second[: len(words)]
    # Sign-extending copies the sign from bit 7 to bit 15, where it belongs; the mask clears what lies between.
    np.copyto(first.view(np.int16), sign_mantissa.view(np.int8))
    np.bitwise_and(first, _SIGN_AND_MANTISSA, out=first)
    np.copyto(second, exponent)
    np.left_shift(second, _EXPONENT_SHIFT, out=second)
    np.bitwise_or(first, second, out=words)


def _split_word(words: Words, low: Bytes, high: Bytes) -> None:
    first = _scratch.first[: len(words)]
    np.copyto(low, words, casting="unsafe")
    np.right_shift(words, 8, out=first)
    np.copyto(high, first, casting="unsafe")


def _join_word(low: Bytes, high: Bytes, words: Words) -> None:
    first, second = _scratch.first[: len(words)], _scratch.second[: len(words)]
    np.copyto(first, high)
    np.left_shift(first, 8, out=first)
    np.copyto(second, low)
    np.bitwise_or(first, second, out=words)


_Loop = Callable[[Bytes, list[Bytes]], None]
_FLOAT_LOOPS: dict[Kind, tuple[_Loop, _Loop]] = {
    Kind.BF16: (_split_bf16, _join_bf16),
    Kind.F32: (_split_f32, _join_f32),
    Kind.PAIRS: (_split_pairs, _join_pairs),
}
