"""Constants of GGUF: value types, tensor types (dtypes), file types, and the limits of the reader.

Numbers are from the GGUF specification and ggml's type table; block sizes are from the `gguf` package.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum

from organs.registry.errors import UnsupportedDType

MAGIC = b"GGUF"
VERSIONS_READ = (2, 3)
VERSION_WRITTEN = 3
ALIGNMENT_KEY = "general.alignment"
ALIGNMENT_DEFAULT = 32

ALIGNMENT_MAX = 1 << 20
DIMENSIONS_MAX = 4
NAME_MAX_BYTES = 127
"""The longest name of a tensor in files for images and sound."""
LOADED_NAME_MAX_BYTES = 63
"""The longest name of a tensor that llama.cpp loads."""
KEY_MAX_BYTES = 65_535
VALUE_MAX = 1 << 30
"""The longest string in bytes and the longest array in elements."""
EAGER_STRING_MAX_BYTES = 64 * 1024
"""Longer strings stay in the file until they are needed."""
DTYPE_ID_MAX = (1 << 32) - 1
FOREIGN_VALUE_MAX_BYTES = 8
FOREIGN_REST_MAX_BYTES = 64
"""Bytes of a tensor of a foreign type in addition to those of its values, such as a scale."""
SIZE_MAX = (1 << 63) - 1
"""Offsets and sizes are signed 64-bit numbers in every loader and database."""


class ValueType(IntEnum):
    """The type of a metadata value."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


SCALAR_FORMATS: dict[ValueType, str] = {
    ValueType.UINT8: "<B",
    ValueType.INT8: "<b",
    ValueType.UINT16: "<H",
    ValueType.INT16: "<h",
    ValueType.UINT32: "<I",
    ValueType.INT32: "<i",
    ValueType.FLOAT32: "<f",
    ValueType.BOOL: "<B",
    ValueType.UINT64: "<Q",
    ValueType.INT64: "<q",
    ValueType.FLOAT64: "<d",
}
SCALAR_SIZES = {kind: struct.calcsize(form) for kind, form in SCALAR_FORMATS.items()}


@dataclass(frozen=True, slots=True)
class DType:
    """A tensor type: `block_elements` values are stored in `block_bytes` bytes."""

    id: int
    name: str
    block_elements: int
    block_bytes: int
    is_foreign: bool = False
    """Whether its bytes are only kept: the type is unknown here, or its numbers are big-endian."""

    @property
    def is_sized(self) -> bool:
        """Whether the type alone gives the size of a tensor; else it is known only where the tensor is."""
        return self.id in DTYPES

    @property
    def is_big_endian(self) -> bool:
        """Whether the numbers of the tensor are big-endian."""
        return self.name.endswith(BIG_ENDIAN)

    @property
    def bits_per_value(self) -> float:
        """The bits of a value, including its share of the common data of a block."""
        return 8 * self.block_bytes / self.block_elements

    def size_bytes(self, elements: int) -> int:
        """Return the size of `elements` values, which must be whole blocks."""
        assert elements % self.block_elements == 0
        return elements // self.block_elements * self.block_bytes


_DTYPES = (
    DType(0, "F32", 1, 4),
    DType(1, "F16", 1, 2),
    DType(2, "Q4_0", 32, 18),
    DType(3, "Q4_1", 32, 20),
    DType(6, "Q5_0", 32, 22),
    DType(7, "Q5_1", 32, 24),
    DType(8, "Q8_0", 32, 34),
    DType(9, "Q8_1", 32, 40),
    DType(10, "Q2_K", 256, 84),
    DType(11, "Q3_K", 256, 110),
    DType(12, "Q4_K", 256, 144),
    DType(13, "Q5_K", 256, 176),
    DType(14, "Q6_K", 256, 210),
    DType(15, "Q8_K", 256, 292),
    DType(16, "IQ2_XXS", 256, 66),
    DType(17, "IQ2_XS", 256, 74),
    DType(18, "IQ3_XXS", 256, 98),
    DType(19, "IQ1_S", 256, 50),
    DType(20, "IQ4_NL", 32, 18),
    DType(21, "IQ3_S", 256, 110),
    DType(22, "IQ2_S", 256, 82),
    DType(23, "IQ4_XS", 256, 136),
    DType(24, "I8", 1, 1),
    DType(25, "I16", 1, 2),
    DType(26, "I32", 1, 4),
    DType(27, "I64", 1, 8),
    DType(28, "F64", 1, 8),
    DType(29, "IQ1_M", 256, 56),
    DType(30, "BF16", 1, 2),
    DType(34, "TQ1_0", 256, 54),
    DType(35, "TQ2_0", 256, 66),
    DType(39, "MXFP4", 32, 17),
    DType(40, "NVFP4", 64, 36),
    DType(41, "Q1_0", 128, 18),
)
# 4, 5, 31-33 and 36-38 were removed from ggml, and other programs use some of these numbers: they are foreign types.
DTYPES: dict[int, DType] = {dtype.id: dtype for dtype in _DTYPES}
_DTYPES_BY_NAME = {dtype.name: dtype for dtype in _DTYPES}

FOREIGN_PREFIX, BIG_ENDIAN = "TYPE_", "_BE"
"""The beginning of the names of unknown types, and the ending of those of big-endian ones."""
_FOREIGN_NAME = re.compile(rf"{FOREIGN_PREFIX}(?P<id>[0-9]{{1,10}})", re.ASCII)

UNQUANTISED = frozenset({"F32", "F16", "BF16", "F64", "I8", "I16", "I32", "I64"})


def dtype_by_id(dtype_id: int) -> DType:
    """Return the dtype with ggml's number `dtype_id`; raises UnsupportedDType if it is unknown or was removed."""
    try:
        return DTYPES[dtype_id]
    except KeyError:
        raise UnsupportedDType(f"tensor type {dtype_id} is unknown or was removed from ggml") from None


def dtype_by_name(name: str) -> DType:
    """Return the dtype with ggml's name, such as "Q4_K", or with a name of `foreign_dtype` or `big_endian`.

    The name of a foreign type does not tell the size of its tensors; it counts as one byte for each value. Raises
    UnsupportedDType.
    """
    known = _DTYPES_BY_NAME.get(name)
    if known is not None:
        return known
    swapped = _DTYPES_BY_NAME.get(name.removesuffix(BIG_ENDIAN))
    if swapped is not None:
        return big_endian(swapped)
    foreign = _FOREIGN_NAME.fullmatch(name)
    if foreign is None:
        raise UnsupportedDType(f"tensor type {name!r} is unknown")
    return DType(int(foreign["id"]), name, 1, 1, is_foreign=True)


def dtype_at(dtype_id: int, elements: int, room_bytes: int, alignment: int, is_big_endian: bool = False) -> DType:
    """Return the dtype of a tensor with ggml's number `dtype_id` and `elements` values in a file.

    A tensor of a foreign type takes all of `room_bytes`, from its offset to the next tensor or the end of the file.
    Raises UnsupportedDType if no type can need so much, or so little, for its values.
    """
    known = DTYPES.get(dtype_id)
    if known is not None:
        return big_endian(known) if is_big_endian else known
    if not 0 < room_bytes <= FOREIGN_VALUE_MAX_BYTES * elements + FOREIGN_REST_MAX_BYTES + alignment:
        raise UnsupportedDType(
            f"tensor type {dtype_id} is unknown or was removed from ggml, and {room_bytes} bytes cannot be {elements} "
            "values of any type"
        )
    return foreign_dtype(dtype_id, elements, room_bytes)


def foreign_dtype(dtype_id: int, elements: int, size_bytes: int) -> DType:
    """Return a dtype that is unknown here, for a tensor of `elements` values that takes `size_bytes`: `TYPE_156`."""
    return DType(dtype_id, f"{FOREIGN_PREFIX}{dtype_id}", elements, size_bytes, is_foreign=True)


def big_endian(dtype: DType) -> DType:
    """Return the dtype of a tensor of `dtype` in a big-endian file: `F32_BE`."""
    return dtype if dtype.is_foreign else replace(dtype, name=dtype.name + BIG_ENDIAN, is_foreign=True)


FILE_TYPES: dict[int | None, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4",
}
"""Names of the values of `general.file_type`."""
FILE_TYPE_KEY = "general.file_type"

_MIXTURES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
_FILE_TYPE_NUMBERS = {name: number for number, name in FILE_TYPES.items()}
_VARIANT = re.compile(r"(Q\d_K)_[SML]")
_IQ = re.compile(r"IQ\d")


def file_type_of(dtype: str) -> int | None:
    """Return the file type of a file whose bytes are mostly `dtype`; None if no file type is known for `dtype`."""
    return _FILE_TYPE_NUMBERS.get(_MIXTURES.get(dtype, dtype))


def parse_file_type(text: str) -> int | None:
    """Return the file type in a text from outside; None if it is not one."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 5 else None


def main_dtype(sizes: Iterable[tuple[str, int]]) -> str:
    """Return the dtype with the most bytes; if two have the same number of bytes, the first by name."""
    totals: Counter[str] = Counter()
    for dtype, size_bytes in sizes:
        totals[dtype] += size_bytes
    return min(totals, key=lambda name: (-totals[name], name), default="")


def quantisation(file_type: int | None, matrices: Iterable[tuple[str, int]]) -> str | None:
    """Return the quantisation of a file with these `matrices`, each a dtype and a size; None for a file without them.

    It is the stated `file_type` if matrices of its type are there, else the dtype with the most bytes. That one is less
    exact: `Q4_K` may be Q4_K_S or Q4_K_M.
    """
    sizes = list(matrices)
    dtypes = {dtype for dtype, _ in sizes}
    stated = FILE_TYPES.get(file_type)
    if stated is not None:
        mixed = _IQ.match(stated)  # the types IQ mix several dtypes of as many bits
        if any(dtype.startswith(mixed[0]) for dtype in dtypes) if mixed else _VARIANT.sub(r"\1", stated) in dtypes:
            return stated
    return main_dtype(sizes) or None
