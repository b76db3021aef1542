"""Codecs: splitting the blocks of each tensor type into planes, and joining planes, with numpy."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from organs.registry.gguf.types import DType, dtype_by_name
from organs.registry.store.codec import fast
from organs.registry.store.codec.fast import Bytes, Halves

CHUNK_TARGET_BYTES = 4 << 20
"""The maximum size of a chunk, which is as many whole blocks as fit."""
REFERENCE_ELEMENTS = 1 << 20
"""Values in a chunk of an organ that is stored by its difference. Chunks of other organs are a multiple, if they can
be, so that a chunk in memory can be stored in either way."""
CACHE_BLOCK_BYTES = 512 << 10
"""Plain bytes that are split in one step: so few that they stay in the cache between passes."""
CODEC_VERSION = 1
NAME_MAX_BYTES = 24
RAW_NAME = "raw"


class Layout(Enum):
    """The way in which blocks are split into planes."""

    WHOLE = "whole"  # one plane with all bytes, unchanged
    BF16 = "bf16"  # sign 1, exponent 8, mantissa 7
    F32 = "f32"  # sign 1, exponent 8, mantissa 23
    PAIRS = "pairs"  # low byte, high byte
    FIELDS = "fields"  # consecutive fields of each block


class Coder(Enum):
    """The compression of a plane."""

    NONE = "none"  # no compression
    SPARSE = "sparse"  # positions and values of the bytes that are not zero, where these are few
    ENTROPY = "entropy"  # Zstandard as a plain entropy coder, if a sample shows that it saves enough
    TEXT = "text"  # Zstandard with matches, for vocabularies and other metadata


@dataclass(frozen=True, slots=True)
class Plane:
    """`size_bytes` bytes of every block. Transposed: first byte 0 of all blocks, then byte 1 of all blocks."""

    name: str
    size_bytes: int
    transposed: bool = False


class Encoding(Enum):
    """Whether an organ is stored alone, or by its difference to another organ, its *parent*."""

    SOLO = "solo"  # alone
    DELTA = "delta"  # the difference to a parent with the same tensor type
    DERIVE = "derive"  # what a parent with another tensor type does not determine: a rounding, or dequantised weights


@dataclass(frozen=True, slots=True)
class Codec:
    """A way to store the bytes of a tensor type. Rows and heads contain its name and version, which are never reused.

    `dtype` is None for bytes that are not a tensor. The sum of the sizes of the planes is `block_bytes`; `chunk_bytes`
    is a multiple of it. `source` is the tensor type of the parent, None for `Encoding.SOLO`.
    """

    name: str
    version: int
    dtype: DType | None
    block_bytes: int
    chunk_bytes: int
    layout: Layout
    coder: Coder
    planes: tuple[Plane, ...]
    encoding: Encoding = Encoding.SOLO
    source: DType | None = None

    def kept_raw(self) -> Codec:
        """Return the codec with the same chunks and without compression, for an organ that does not shrink."""
        planes = (Plane("bytes", self.block_bytes),)
        return replace(self, name=RAW_NAME, layout=Layout.WHOLE, coder=Coder.NONE, planes=planes)

    def with_chunks_of(self, chunk_bytes: int) -> Codec:
        """Return the codec with chunks of another size, which must be whole blocks."""
        assert 0 < chunk_bytes <= CHUNK_TARGET_BYTES
        assert chunk_bytes % self.block_bytes == 0
        return self if chunk_bytes == self.chunk_bytes else replace(self, chunk_bytes=chunk_bytes)

    def source_bytes(self, plain_size_bytes: int) -> int:
        """Return the number of bytes of the parent that have the values of `plain_size_bytes`."""
        assert self.dtype is not None
        assert self.source is not None
        elements = plain_size_bytes // self.dtype.block_bytes * self.dtype.block_elements
        return elements // self.source.block_elements * self.source.block_bytes

    def chunk_count(self, plain_size_bytes: int) -> int:
        """Return the number of chunks of `plain_size_bytes`."""
        return -(-plain_size_bytes // self.chunk_bytes)

    def chunk_sizes_bytes(self, plain_size_bytes: int) -> list[int]:
        """Return the plain size of each chunk; all but the last have `chunk_bytes`."""
        full, rest = divmod(plain_size_bytes, self.chunk_bytes)
        return [self.chunk_bytes] * full + [rest] * (rest > 0)

    def plane_sizes_bytes(self, chunk_size_bytes: int) -> list[int]:
        """Return the plain size of each plane of a chunk of `chunk_size_bytes`, which must be whole blocks."""
        blocks, rest = divmod(chunk_size_bytes, self.block_bytes)
        assert rest == 0, f"{chunk_size_bytes} bytes are not a whole number of blocks of {self.block_bytes}"
        return [blocks * plane.size_bytes for plane in self.planes]


def codec_for(dtype_name: str) -> Codec:
    """Return the codec for tensors of ggml's type `dtype_name`, such as "Q4_K"; raises UnsupportedDType.

    Types for which a split into fields saves nothing get the codec `opaque`: one plane, which is stored raw if encoding
    does not save enough. Foreign types are bytes without a type.
    """
    known = _CODECS.get(dtype_name)
    if known is None:
        dtype = dtype_by_name(dtype_name)
        fields = f"bytes:{dtype.block_bytes}"
        known = BYTES_CODEC if dtype.is_foreign else _solo_codec(dtype, "opaque", Layout.WHOLE, fields)
    return known


@cache
def delta_codec(dtype_name: str) -> Codec:
    """Return the codec for the difference to a parent with the same tensor type; raises UnsupportedDType."""
    dtype = dtype_by_name(dtype_name)
    return _reference_codec(dtype, f"{dtype.name.lower()}-delta", Encoding.DELTA, dtype)


@cache
def derive_codec(dtype_name: str, source_name: str) -> Codec:
    """Return the codec for an organ that is derived from a parent with a finer tensor type; raises UnsupportedDType."""
    dtype, source = dtype_by_name(dtype_name), dtype_by_name(source_name)
    return _reference_codec(dtype, f"{dtype.name.lower()}-from-{source.name.lower()}", Encoding.DERIVE, source)


def _reference_codec(dtype: DType, name: str, encoding: Encoding, source: DType) -> Codec:
    if dtype.block_elements > 1:
        layout, fields = Layout.FIELDS, _REFERENCE_FIELDS.get(dtype.name, f"bytes:{dtype.block_bytes}")
    elif dtype.block_bytes == 2:
        layout, fields = Layout.PAIRS, "low high"
    else:
        layout, fields = Layout.FIELDS, " ".join(f"b{byte}" for byte in range(dtype.block_bytes))
    elements = min(REFERENCE_ELEMENTS, CHUNK_TARGET_BYTES // dtype.block_bytes * dtype.block_elements)
    chunk_bytes = dtype.size_bytes(elements)
    return _codec(dtype, name, layout, fields, chunk_bytes, Coder.SPARSE, encoding, source)


def _solo_codec(dtype: DType, name: str, layout: Layout, fields: str) -> Codec:
    unit_bytes = dtype.block_bytes * max(1, REFERENCE_ELEMENTS // dtype.block_elements)
    if unit_bytes > CHUNK_TARGET_BYTES:
        unit_bytes = dtype.block_bytes
    chunk_bytes = CHUNK_TARGET_BYTES // unit_bytes * unit_bytes
    return _codec(dtype, name, layout, fields, chunk_bytes, Coder.ENTROPY)


def _codec(
    dtype: DType,
    name: str,
    layout: Layout,
    fields: str,
    chunk_bytes: int,
    coder: Coder,
    encoding: Encoding = Encoding.SOLO,
    source: DType | None = None,
) -> Codec:
    """Return a codec; `fields` lists the planes as `name:size`, by default of size 1; `name:size/T` is transposed."""
    parsed = [re.fullmatch(r"(\w+?)(?::(\d+)(/T)?)?", field) for field in fields.split()]
    planes = tuple(Plane(field[1], int(field[2] or 1), field[3] is not None) for field in parsed if field is not None)
    assert sum(plane.size_bytes for plane in planes) == dtype.block_bytes
    block_bytes = dtype.block_bytes
    return Codec(name, CODEC_VERSION, dtype, block_bytes, chunk_bytes, layout, coder, planes, encoding, source)


_FLOAT_PLANES = (
    ("BF16", Layout.BF16, "exponent sign_mantissa"),
    ("F16", Layout.PAIRS, "low high"),
    ("F32", Layout.F32, "exponent sign_mantissa middle low"),
    ("F64", Layout.FIELDS, "b0 b1 b2 b3 b4 b5 b6 b7"),
    ("I16", Layout.PAIRS, "low high"),
    ("I32", Layout.FIELDS, "b0 b1 b2 b3"),
    ("I64", Layout.FIELDS, "b0 b1 b2 b3 b4 b5 b6 b7"),
)
# A scale is an F16. Its two bytes are separate planes, because only the high byte shrinks.
_QUANTISED_FIELDS = (
    ("Q4_0", "d_low d_high quants:16"),
    ("Q4_1", "d_low d_high m_low m_high quants:16"),
    ("Q5_0", "d_low d_high high_bits:4 quants:16"),
    ("Q5_1", "d_low d_high m_low m_high high_bits:4 quants:16"),
    ("Q8_0", "d_low d_high quants:32"),
    ("Q2_K", "scales:16 quants:64 d_low d_high m_low m_high"),
    ("Q4_K", "d_low d_high m_low m_high scales:12/T quants:128"),
    ("Q5_K", "d_low d_high m_low m_high scales:12/T high_bits:32 quants:128"),
    ("Q6_K", "low_bits:128 high_bits:64 scales:16 d_low d_high"),
    ("IQ4_NL", "d_low d_high quants:16"),
    ("MXFP4", "exponent quants:16"),
)
_REFERENCE_FIELDS: dict[str, str] = dict(_QUANTISED_FIELDS) | {
    "Q3_K": "high_bits:32 quants:64 scales:12/T d_low d_high",
    "IQ4_XS": "d_low d_high scales_high:2 scales_low:4 quants:128",
    "IQ3_XXS": "d_low d_high quants:64 scales:32",
    "IQ3_S": "d_low d_high quants:64 high_bits:8 signs:32 scales:4",
    "IQ2_XXS": "d_low d_high quants:64",
    "IQ2_XS": "d_low d_high quants:64 scales:8",
    "IQ2_S": "d_low d_high quants:64 high_bits:8 scales:8",
    "IQ1_S": "d_low d_high quants:32 high_bits:16",
    "IQ1_M": "quants:32 high_bits:16 scales:8",
    "TQ1_0": "quants:48 high_quants:4 d_low d_high",
    "TQ2_0": "quants:64 d_low d_high",
}
"""The fields of the blocks of all quantised tensor types, for organs that are stored by their difference."""
_CODECS: dict[str, Codec] = {
    name: _solo_codec(dtype_by_name(name), f"{name.lower()}-planes", layout, fields)
    for name, layout, fields in _FLOAT_PLANES
} | {
    name: _solo_codec(dtype_by_name(name), f"{name.lower()}-fields", Layout.FIELDS, fields)
    for name, fields in _QUANTISED_FIELDS
}

BYTES_CODEC = Codec("bytes", CODEC_VERSION, None, 1, CHUNK_TARGET_BYTES, Layout.WHOLE, Coder.TEXT, (Plane("bytes", 1),))
"""The codec for metadata arrays and other bytes that are not a tensor, of any length."""


_EXPONENT_SHIFT = 7
_SIGN_AND_MANTISSA = 0x807F
"""A BF16 without its exponent."""


def split_planes(codec: Codec, plain: Bytes, planes: Sequence[Bytes]) -> None:
    """Fill `planes` from the whole blocks in `plain`; not for Layout.WHOLE. Their sizes: `codec.plane_sizes_bytes`."""
    if codec.layout is Layout.FIELDS:
        for in_plain, in_plane in _fields(codec, plain, planes, 0):
            np.copyto(in_plane, in_plain)
    else:
        split, _ = _FLOAT_LOOPS[codec.layout]
        for part, pieces in _cache_blocks(codec, plain, planes, 0):
            split(part, pieces)


def join_planes(codec: Codec, planes: Sequence[Bytes], plain: Bytes, *, first_block: int = 0) -> None:
    """Fill `plain` with blocks from `planes`, beginning with `first_block`: the inverse of `split_planes`."""
    if codec.layout is Layout.WHOLE:
        start = first_block * codec.block_bytes
        np.copyto(plain, planes[0][start : start + len(plain)])
    elif codec.layout is Layout.FIELDS:
        for in_plain, in_plane in _fields(codec, plain, planes, first_block):
            np.copyto(in_plain, in_plane)
    else:
        _, join = _FLOAT_LOOPS[codec.layout]
        for part, pieces in _cache_blocks(codec, plain, planes, first_block):
            join(part, pieces)


def _fields(
    codec: Codec, plain: Bytes, planes: Sequence[Bytes], first_block: int
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Yield pairs of equal shape for each cache block: a field in the blocks, and the same field in its plane."""
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
    """Return the type of a block as a record.

    A field of several bytes is one opaque item, because numpy copies it up to 13 times faster than single bytes.
    """
    return np.dtype(
        [
            (plane.name, np.uint8, (plane.size_bytes,)) if plane.transposed else (plane.name, f"V{plane.size_bytes}")
            for plane in codec.planes
        ]
    )


def _cache_blocks(
    codec: Codec, plain: Bytes, planes: Sequence[Bytes], first_block: int
) -> Iterator[tuple[Bytes, list[Bytes]]]:
    """Yield cache blocks of `plain`, each with its part of every plane. A plane of floats has one byte per value."""
    step = CACHE_BLOCK_BYTES // codec.block_bytes
    for start in range(0, len(plain) // codec.block_bytes, step):
        part = plain[start * codec.block_bytes : (start + step) * codec.block_bytes]
        begin, end = first_block + start, first_block + start + len(part) // codec.block_bytes
        yield part, [plane[begin:end] for plane in planes]


class _PlaneScratch(threading.local):
    """Memory of each thread for three cache blocks of 16-bit words, because the first use of new memory is slow."""

    def __init__(self) -> None:
        self.first: Halves = np.empty(CACHE_BLOCK_BYTES // 2, np.uint16)
        self.second: Halves = np.empty(CACHE_BLOCK_BYTES // 2, np.uint16)
        self.third: Halves = np.empty(CACHE_BLOCK_BYTES // 2, np.uint16)


_scratch = _PlaneScratch()


def _split_bf16(plain: Bytes, planes: list[Bytes]) -> None:
    _split_upper_half(plain.view("<u2"), planes[0], planes[1])


def _join_bf16(plain: Bytes, planes: list[Bytes]) -> None:
    kernels = fast.kernels()
    if kernels is not None:
        kernels.join_bf16(planes[0], planes[1], plain.view("<u2"))
        return
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


def _split_upper_half(words: Halves, exponent: Bytes, sign_mantissa: Bytes) -> None:
    """Split BF16 values, or the upper halves of F32 values, into the exponent and the sign with 7 bits of mantissa."""
    first, second = _scratch.first[: len(words)], _scratch.second[: len(words)]
    np.right_shift(words, _EXPONENT_SHIFT, out=first)
    np.copyto(exponent, first, casting="unsafe")
    np.bitwise_and(words, _SIGN_AND_MANTISSA, out=first)
    np.right_shift(first, 8, out=second)
    np.bitwise_or(first, second, out=first)
    np.copyto(sign_mantissa, first, casting="unsafe")


def _join_upper_half(exponent: Bytes, sign_mantissa: Bytes, words: Halves) -> None:
    first, second = _scratch.first[: len(words)], _scratch.second[: len(words)]
    # Sign extension copies the sign from bit 7 to bit 15, its final place. The mask clears the bits between.
    np.copyto(first.view(np.int16), sign_mantissa.view(np.int8))
    np.bitwise_and(first, _SIGN_AND_MANTISSA, out=first)
    np.copyto(second, exponent)
    np.left_shift(second, _EXPONENT_SHIFT, out=second)
    np.bitwise_or(first, second, out=words)


def _split_word(words: Halves, low: Bytes, high: Bytes) -> None:
    first = _scratch.first[: len(words)]
    np.copyto(low, words, casting="unsafe")
    np.right_shift(words, 8, out=first)
    np.copyto(high, first, casting="unsafe")


def _join_word(low: Bytes, high: Bytes, words: Halves) -> None:
    first, second = _scratch.first[: len(words)], _scratch.second[: len(words)]
    np.copyto(first, high)
    np.left_shift(first, 8, out=first)
    np.copyto(second, low)
    np.bitwise_or(first, second, out=words)


_Loop = Callable[[Bytes, list[Bytes]], None]
_FLOAT_LOOPS: dict[Layout, tuple[_Loop, _Loop]] = {
    Layout.BF16: (_split_bf16, _join_bf16),
    Layout.F32: (_split_f32, _join_f32),
    Layout.PAIRS: (_split_pairs, _join_pairs),
}
