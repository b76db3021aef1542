"""A tensor's file: `[name_len:u32][name][n_dims:u32][dims:u64 x n][dtype:u32][data]`.

Numbers are little-endian, dims have the row length first, dtype is ggml's number.
"""

from __future__ import annotations

import re
import struct

from organs.registry.errors import UnsupportedDType
from organs.registry.gguf import TensorSpec, dtype_by_id
from organs.registry.gguf.types import DIMENSIONS_MAX, NAME_MAX_BYTES, SIZE_MAX, DType

HEAD_MAX_BYTES = 4 + NAME_MAX_BYTES + 4 + 8 * DIMENSIONS_MAX + 4

_U32 = struct.Struct("<I")
_NAME = re.compile(rb"[\x20-\x7e]+")


def encode_head(spec: TensorSpec) -> bytes:
    """What stands before the data of `spec`."""
    name = spec.name.encode("ascii")
    dims = struct.pack(f"<I{len(spec.shape)}Q", len(spec.shape), *spec.shape)
    return _U32.pack(len(name)) + name + dims + _U32.pack(spec.dtype.id)


def parse_head(data: bytes, file_size_bytes: int) -> tuple[TensorSpec, int]:
    """The tensor that a file of `file_size_bytes` says it is, and where its bytes begin.

    `data` is the file's beginning, HEAD_MAX_BYTES of it or all. Raises ValueError with what is wrong.
    """
    name_size = _number(data, 0, "name length")
    if not 1 <= name_size <= NAME_MAX_BYTES:
        raise ValueError(f"a tensor name has 1 to {NAME_MAX_BYTES} bytes, it says {name_size}")
    raw = data[4 : 4 + name_size]
    if len(raw) != name_size:
        raise ValueError("it ends within its name")
    if not _NAME.fullmatch(raw):
        raise ValueError(f"a tensor name is printable ASCII, its is {raw!r}")
    position = 4 + name_size
    count = _number(data, position, "number of dimensions")
    if not 1 <= count <= DIMENSIONS_MAX:
        raise ValueError(f"it says {count} dimensions; 1 to {DIMENSIONS_MAX} are allowed")
    position += 4
    if len(data) < position + 8 * count:
        raise ValueError("it ends within its dimensions")
    shape = struct.unpack_from(f"<{count}Q", data, position)
    position += 8 * count
    dtype_id = _number(data, position, "type")
    spec = TensorSpec(raw.decode("ascii"), shape, _dtype(dtype_id))
    check_shape(shape, spec.dtype)
    position += 4
    if file_size_bytes != position + spec.size_bytes:
        had = file_size_bytes - position
        raise ValueError(f"{spec.dtype.name} of {list(shape)} takes {spec.size_bytes} bytes, it has {had}")
    return spec, position


def check_shape(shape: tuple[int, ...], dtype: DType) -> None:
    """Raise ValueError for a shape that no file can hold, or whose rows are no whole blocks of `dtype`."""
    elements = 1
    for length in shape:
        if length < 1:
            raise ValueError("a dimension is 0")
        elements *= length
        if elements > SIZE_MAX:
            raise ValueError("the shape has more elements than any file can hold")
    if shape[0] % dtype.block_elements:
        raise ValueError(
            f"the row length {shape[0]} is not a multiple of {dtype.name}'s block of {dtype.block_elements}"
        )
    if dtype.size_bytes(elements) > SIZE_MAX:
        raise ValueError("the shape is larger than any file")


def _number(data: bytes, offset: int, what: str) -> int:
    if len(data) < offset + 4:
        raise ValueError(f"it ends before its {what}")
    value: int = _U32.unpack_from(data, offset)[0]
    return value


def _dtype(dtype_id: int) -> DType:
    try:
        return dtype_by_id(dtype_id)
    except UnsupportedDType as error:
        raise ValueError(str(error)) from error
