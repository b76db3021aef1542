"""Headers as an attacker would write them, by their fault."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from organs.registry.gguf.types import NAME_MAX_BYTES
from tests.gguf_files import (
    every_value_type,
    file_bytes,
    raw_array,
    raw_field,
    raw_file,
    raw_header,
    raw_tensor,
    raw_text,
    tensor,
)

U8, U32, STRING, ARRAY, F64 = 0, 4, 8, 9, 12

_WHOLE = file_bytes(every_value_type(), [tensor("a", (3, 5)), tensor("b.weight", (7,))])
_KEY = raw_field(b"k", U8, b"\1")
_TWO = [raw_tensor(b"a", (8,)), raw_tensor(b"b", (8,), 0, 32)]


def _one(shape: tuple[int, ...], dtype_id: int = 0, offset: int = 0, dimensions: int | None = None) -> bytes:
    return raw_header(tensors=[raw_tensor(b"t", shape, dtype_id, offset, dimensions)])


def _at(offset: int) -> bytes:
    """Return a second tensor at that offset."""
    return raw_file(tensors=[raw_tensor(b"a", (16,)), raw_tensor(b"b", (16,), 0, offset)], data=b"\1" * 256)


def _named(name: bytes) -> bytes:
    return raw_file(tensors=[raw_tensor(name, (8,))], data=b"\1" * 32)


def _entry(value_type: int, value: bytes, key: bytes = b"k") -> bytes:
    return raw_header([raw_field(key, value_type, value)])


HEADERS: Mapping[str, bytes] = {
    "two bytes": b"GG",
    "big-endian": b"FUGG" + _WHOLE[4:],
    "big-endian by its version": b"GGUF\0\0\0\3" + _WHOLE[8:],
    "a terminal's commands for a magic": b"\x1b[2J" + _WHOLE[4:],
    "version 1": b"GGUF" + struct.pack("<I", 1) + _WHOLE[8:],
    "version 4294967295": b"GGUF" + struct.pack("<I", 2**32 - 1) + _WHOLE[8:],
    "2^64-1 tensors": raw_header(tensors=_TWO, tensor_count=2**64 - 1),
    "2^40 tensors": raw_header(tensors=_TWO, tensor_count=2**40),
    "a tensor more": raw_header(tensors=_TWO, tensor_count=3),
    "2^64-1 fields": raw_header([_KEY], field_count=2**64 - 1),
    "a field more": raw_header([_KEY], field_count=2),
    "a huge key": raw_header([raw_text(b"key", 2**63) + struct.pack("<I", U8) + b"\1"]),
    "a huge text": _entry(STRING, raw_text(b"short", 2**62)),
    "a huge text in a list": _entry(ARRAY, raw_array(STRING, raw_text(b"short", 2**62), 1)),
    "a huge list": _entry(ARRAY, raw_array(F64, b"\1" * 16, 2**61)),
    "a list of 5,000,000 doubles without them": _entry(ARRAY, raw_array(F64, b"", 5_000_000)),
    "20,000 lists in each other": _entry(ARRAY, struct.pack("<IQ", ARRAY, 1) * 20_000 + raw_array(U8, b"\1", 1)),
    "an unknown type of value": _entry(99, b"\1" * 64),
    "a key twice": raw_header([_KEY, _KEY]),
    "an empty key": _entry(U8, b"\1", b""),
    "a key with a line": _entry(U8, b"\1", b"a\r\nb"),
    "a key of a terminal's commands": _entry(U8, b"\1", b"\x1b[31m"),
    "an alignment of 0": raw_file([raw_field(b"general.alignment", U32, bytes(4))], [raw_tensor(b"t")], b"\1" * 32),
    "an alignment of 2^31": raw_file([raw_field(b"general.alignment", U32, struct.pack("<I", 2**31))], _TWO, bytes(64)),
    "2^32-1 dimensions": _one((1, 1), dimensions=2**32 - 1),
    "no dimension": _one((), dimensions=0),
    "a dimension of 0": _one((4, 0)),
    "a dimension of 2^64-1": _one((1, 2**64 - 1)),
    "a product that wraps": _one((4_194_305, 4_194_305, 211_106_198_978_564)),
    "a size that wraps when it is padded": _one((2**63 - 3,), 24),
    "half a block": _one((16,), 2),
    "an unknown type of tensor": _one((256,), 2**31),
    "an offset beyond any file": _at(2**64 - 32),
    "a misaligned offset": _at(65),
    "overlapping tensors": _at(32),
    "a hole between tensors": _at(128),
    "two tensors of one name": raw_file(
        tensors=[raw_tensor(b"a", (8,)), raw_tensor(b"a", (8,), 0, 32)], data=bytes(64)
    ),
    "a tensor without its data": _one((8,)),
    "an empty name": _named(b""),
    "a name with a NUL": _named(b"a\0b"),
    "a name that is too long": _named(b"a" * (NAME_MAX_BYTES + 1)),
    "a name that runs backwards": _named("\u202egnp.exe".encode()),
    "a name that is not valid UTF-8": _named(b"\xff\xfe"),
}
