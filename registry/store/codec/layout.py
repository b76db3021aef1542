"""Which planes the blocks of a tensor type are taken apart into.

Bytes that mean the same look alike: all exponents of a tensor are close to each other, all mantissas are noise. Kept
apart, the first shrink to a third and the second are copied as they are. The order of the fields in a quantised block
is that of ggml's `ggml-common.h`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum

from organs.registry.gguf.types import DType, dtype_by_name

CHUNK_TARGET_BYTES = 4 << 20
"""A chunk is the most whole blocks that fit in this many plain bytes."""
CACHE_BLOCK_BYTES = 512 << 10
"""Plain bytes that are taken apart at a time, so that they stay in a near cache from one pass over them to the next."""
CODEC_VERSION = 1
NAME_MAX_BYTES = 24
RAW_NAME = "raw"


class Kind(Enum):
    """How blocks and planes correspond."""

    WHOLE = "whole"  # one plane: the bytes as they are
    BF16 = "bf16"  # sign 1, exponent 8, mantissa 7
    F32 = "f32"  # sign 1, exponent 8, mantissa 23
    PAIRS = "pairs"  # low byte, high byte
    FIELDS = "fields"  # consecutive fields of each block


class Coder(Enum):
    """What turns a plane into stored bytes."""

    NONE = "none"  # nothing: kept as it is
    ENTROPY = "entropy"  # Zstandard as a bare entropy coder, where a sample says that it pays
    TEXT = "text"  # Zstandard with matches, for vocabularies and other metadata


@dataclass(frozen=True, slots=True)
class Plane:
    """`size_bytes` bytes out of every block. Transposed: the first byte of all blocks, then the second of all."""

    name: str
    size_bytes: int
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class Codec:
    """A way to store the bytes of one tensor type. Its name and version stand in rows and heads, and are never reused.

    `dtype` is None for bytes that are no tensor. The planes' sizes add up to `block_bytes`; `chunk_bytes` is whole
    blocks.
    """

    name: str
    version: int
    dtype: DType | None
    block_bytes: int
    chunk_bytes: int
    kind: Kind
    coder: Coder
    planes: tuple[Plane, ...]

    def kept_raw(self) -> Codec:
        """The codec that keeps the same chunks as they are: for an organ that does not shrink."""
        whole = (Plane("bytes", self.block_bytes),)
        return replace(self, name=RAW_NAME, kind=Kind.WHOLE, coder=Coder.NONE, planes=whole)

    def chunk_count(self, plain_size_bytes: int) -> int:
        """How many chunks that many plain bytes make."""
        return -(-plain_size_bytes // self.chunk_bytes)

    def chunk_sizes_bytes(self, plain_size_bytes: int) -> list[int]:
        """The plain size of every chunk; all but the last are `chunk_bytes`."""
        full, rest = divmod(plain_size_bytes, self.chunk_bytes)
        return [self.chunk_bytes] * full + [rest] * (rest > 0)

    def plane_sizes_bytes(self, chunk_size_bytes: int) -> list[int]:
        """The plain size of every plane of a chunk of that many plain bytes, which must be whole blocks."""
        blocks, rest = divmod(chunk_size_bytes, self.block_bytes)
        assert rest == 0, f"{chunk_size_bytes} bytes are no whole blocks of {self.block_bytes}"
        return [blocks * plane.size_bytes for plane in self.planes]


def codec_for(dtype_name: str) -> Codec:
    """The codec for tensors of ggml's type `dtype_name`, such as "Q4_K"; raises UnsupportedDType for an unknown one.

    A type without fields worth keeping apart gets the codec `opaque`: one plane, and raw where that does not pay.
    """
    return _CODECS.get(dtype_name) or _codec(dtype_by_name(dtype_name), "opaque", Kind.WHOLE, "bytes")


def _codec(dtype: DType, name: str, kind: Kind, fields: str) -> Codec:
    """`fields` lists the planes as `name:size`, size 1 where it is left out; `name:size/T` is transposed."""
    if kind is Kind.WHOLE:
        planes: tuple[Plane, ...] = (Plane(fields, dtype.block_bytes),)
    else:
        planes = tuple(_plane(field) for field in fields.split())
    assert sum(plane.size_bytes for plane in planes) == dtype.block_bytes
    chunk_bytes = CHUNK_TARGET_BYTES // dtype.block_bytes * dtype.block_bytes
    return Codec(name, CODEC_VERSION, dtype, dtype.block_bytes, chunk_bytes, kind, Coder.ENTROPY, planes)


def _plane(field: str) -> Plane:
    parts = re.fullmatch(r"(\w+?)(?::(\d+)(/T)?)?", field)
    assert parts is not None
    return Plane(parts[1], int(parts[2] or 1), parts[3] is not None)


_FLOAT_PLANES = (
    ("BF16", Kind.BF16, "exponent sign_mantissa"),
    ("F16", Kind.PAIRS, "low high"),
    ("F32", Kind.F32, "exponent sign_mantissa middle low"),
    ("F64", Kind.FIELDS, "b0 b1 b2 b3 b4 b5 b6 b7"),
    ("I16", Kind.PAIRS, "low high"),
    ("I32", Kind.FIELDS, "b0 b1 b2 b3"),
    ("I64", Kind.FIELDS, "b0 b1 b2 b3 b4 b5 b6 b7"),
)
# A scale is an F16: its two bytes are planes of their own, because only the high one shrinks.
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
_CODECS: dict[str, Codec] = {
    name: _codec(dtype_by_name(name), f"{name.lower()}-planes", kind, fields) for name, kind, fields in _FLOAT_PLANES
} | {
    name: _codec(dtype_by_name(name), f"{name.lower()}-fields", Kind.FIELDS, fields)
    for name, fields in _QUANTISED_FIELDS
}

BYTES_CODEC = Codec("bytes", CODEC_VERSION, None, 1, CHUNK_TARGET_BYTES, Kind.WHOLE, Coder.TEXT, (Plane("bytes", 1),))
"""For metadata arrays and anything else that is no tensor; any length."""
