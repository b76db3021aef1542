"""Headers as an attacker would write them, by their fault: tests of the parser read all, a server gets one of each."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from organs.registry.gguf.types import DTYPES, KEY_MAX_BYTES, NAME_MAX_BYTES, VALUE_MAX
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

U8, U32, I32, F32, BOOL, STRING, ARRAY, U64, F64 = 0, 4, 5, 6, 7, 8, 9, 10, 12
SCALARS = (0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12)
"""The types of values of a fixed size."""
HUGE = 2**62
UNKNOWN = (2**31, 4, 5, 31, 32, 33, 36, 37, 38, 99, 2**32 - 1)
"""The types of tensors that are not known, or were removed."""
UNKNOWN_VALUES = (99, 13, 14, 255, 2**31, 2**32 - 1)
BLOCKS = [(dtype, dtype.block_elements) for dtype in DTYPES.values() if dtype.block_elements > 1]

WHOLE = file_bytes(every_value_type(), [tensor("a", (3, 5)), tensor("b.weight", (7,)), tensor("c", (1, 2, 3, 1))])
"""A valid file with every value type, several tensors, and a last tensor that ends off the alignment."""
_KEY = raw_field(b"k", U8, b"\1")
_TWO = [raw_tensor(b"a", (8,)), raw_tensor(b"b", (8,), 0, 32)]


@dataclass(frozen=True, slots=True)
class BadHeader:
    """Files with one fault: the field that the parser names, and a part of its reason."""

    field: str
    files: tuple[bytes, ...]
    reason: str = ""
    sizes: tuple[int, ...] = (0, HUGE)
    """The sizes that the file seems to have; 0 is the number of its bytes."""
    numbers: tuple[int, ...] = ()
    """The number in the reason of each file, at the braces."""

    def reasons(self) -> list[str]:
        """Return a part of the reason for each file."""
        return [self.reason.format(number) for number in self.numbers or (0,) * len(self.files)]


def one_tensor(shape: tuple[int, ...], dtype_id: int = 0, offset: int = 0, dimensions: int | None = None) -> bytes:
    return raw_header(tensors=[raw_tensor(b"t", shape, dtype_id, offset, dimensions)])


def two_tensors(second_offset: int) -> bytes:
    infos = [raw_tensor(b"a", (16,)), raw_tensor(b"b", (16,), 0, second_offset)]
    return raw_file(tensors=infos, data=b"\1" * 256)


def one_field(value_type: int, value: bytes, key: bytes = b"k") -> bytes:
    return raw_header([raw_field(key, value_type, value)])


def _counted(field: str, counts: Iterable[int], sizes: tuple[int, ...]) -> BadHeader:
    if field == "n_tensors":
        return BadHeader(field, tuple(raw_header(tensors=_TWO, tensor_count=count) for count in counts), sizes=sizes)
    return BadHeader(field, tuple(raw_header([_KEY], field_count=count) for count in counts), sizes=sizes)


def _versions(*versions: int) -> BadHeader:
    files = tuple(b"GGUF" + struct.pack("<I", version) + WHOLE[8:] for version in versions)
    return BadHeader("version", files, sizes=(0,))


def _dimensions(*numbers: int) -> BadHeader:
    files = tuple(one_tensor((1, 1, 1, 1, 1)[:number], dimensions=number) for number in numbers)
    return BadHeader("t", files, "{} dimensions", numbers=numbers)


def _shapes(*shapes: tuple[int, ...], dtypes: Iterable[int] = (0, 24)) -> BadHeader:
    return BadHeader("t", tuple(one_tensor(shape, dtype) for shape in shapes for dtype in dtypes))


def _alignments(*values: tuple[int, bytes]) -> BadHeader:
    entries = (raw_field(b"general.alignment", kind, value) for kind, value in values)
    files = tuple(raw_file([entry], [raw_tensor(b"t")], b"\1" * 32) for entry in entries)
    return BadHeader("general.alignment", files, sizes=(0,))


def _names(*names: bytes) -> BadHeader:
    return BadHeader("tensor 0", tuple(raw_file(tensors=[raw_tensor(name, (8,))], data=b"\1" * 32) for name in names))


def _key(*keys: bytes) -> BadHeader:
    return BadHeader("key 0", tuple(one_field(U8, b"\1", key) for key in keys), sizes=(0,))


BAD_HEADERS: Mapping[str, BadHeader] = {
    "two bytes": BadHeader("magic", (b"GG", b"G", b"GGU", b""), sizes=(0,)),
    "big-endian": BadHeader("magic", (b"FUGG" + WHOLE[4:],), "not a GGUF file", (0,)),
    "big-endian by its version": BadHeader("n_tensors", (b"GGUF\0\0\0\3" + WHOLE[8:],), sizes=(0,)),
    "a terminal's commands for a magic": BadHeader(
        "magic",
        tuple(magic + WHOLE[4:] for magic in (b"\x1b[2J", b"GGML", b"gguf", bytes(4))),
        "not a GGUF file",
        (0,),
    ),
    "version 1": _versions(1, 0),
    "version 4294967295": _versions(2**32 - 1, 4, 99),
    "2^64-1 tensors": _counted("n_tensors", (2**64 - 1, 2**63, 2**60), (0, HUGE)),
    "2^40 tensors": _counted("n_tensors", (2**40,), (0,)),
    "a tensor more": _counted("n_tensors", (3,), (0,)),
    "2^64-1 fields": _counted("n_kv", (2**64 - 1, 2**63, 2**60, 2**40), (0, HUGE)),
    "a field more": _counted("n_kv", (2,), (0,)),
    "tensors whose infos are absent": BadHeader(
        "tensor 2", tuple(raw_header(tensors=_TWO, tensor_count=count) for count in (2**40, 3)), sizes=(HUGE,)
    ),
    "fields that are absent": BadHeader("key 1", (raw_header([_KEY], field_count=2),), sizes=(HUGE,)),
    "a huge key": BadHeader(
        "key 0",
        tuple(
            raw_header([raw_text(b"key", size) + struct.pack("<I", U8) + b"\1"])
            for size in (2**63, 2**64 - 1, 2**40, KEY_MAX_BYTES + 1)
        ),
    ),
    "a huge text": BadHeader(
        "k", tuple(one_field(STRING, raw_text(b"short", size)) for size in (HUGE, 2**64 - 1, 2**63, VALUE_MAX + 1))
    ),
    "a huge text in a list": BadHeader(
        "k",
        tuple(
            one_field(ARRAY, raw_array(STRING, raw_text(b"short", size), 1))
            for size in (HUGE, 2**64 - 1, 2**63, VALUE_MAX + 1)
        ),
    ),
    "a huge list": BadHeader(
        "k",
        tuple(
            one_field(ARRAY, raw_array(element, b"\1" * 16, count))
            for count in (2**61, 2**64 - 1, 2**63 - 1, 2**32, VALUE_MAX + 1)
            for element in (F64, *SCALARS, STRING)
        ),
    ),
    "a list of 5,000,000 doubles without them": BadHeader(
        "k", (one_field(ARRAY, raw_array(F64, b"", 5_000_000)),), "cannot fit", (0, 5_000_000)
    ),
    "20,000 lists in each other": BadHeader(
        "k",
        tuple(
            one_field(ARRAY, struct.pack("<IQ", ARRAY, 1) * (depth - 1) + raw_array(U8, b"\1", 1))
            for depth in (20_000, 2)
        ),
        "arrays of arrays",
    ),
    "an unknown type of value": BadHeader(
        "k",
        tuple(
            file
            for kind in UNKNOWN_VALUES
            for file in (one_field(kind, b"\1" * 64), one_field(ARRAY, raw_array(kind, b"\1" * 64, 1)))
        ),
        "{}",
        numbers=tuple(kind for kind in UNKNOWN_VALUES for _ in range(2)),
    ),
    "a key twice": BadHeader(
        "k",
        (raw_header([_KEY, _KEY]), raw_header([_KEY, raw_field(b"x", U8, b"\1"), raw_field(b"k", U32, bytes(4))])),
        "twice",
        (0,),
    ),
    "an empty key": _key(b""),
    "a key with a line": _key(b"a\r\nb", b"a\nb", b"a\x7f", b"a\0b"),
    "a key of a terminal's commands": _key(b"\x1b[31m"),
    "a key that is not ASCII": _key(b"\xff\xfe", b"caf\xc3\xa9"),
    "an alignment of 0": _alignments((U32, bytes(4))),
    "an alignment of 2^31": _alignments(
        *((U32, struct.pack("<I", number)) for number in (2**31, 3, 13, 33, 2**21, 2**32 - 1))
    ),
    "an alignment of another type": _alignments(
        (U64, struct.pack("<Q", 32)),
        (I32, struct.pack("<i", 32)),
        (F32, struct.pack("<f", 32.0)),
        (BOOL, b"\1"),
        (STRING, raw_text(b"32")),
        (ARRAY, raw_array(U32, struct.pack("<I", 32), 1)),
    ),
    "2^32-1 dimensions": _dimensions(2**32 - 1, 5, 10**6, 2**31),
    "no dimension": _dimensions(0),
    "a dimension of 0": _shapes((4, 0), (0,), (0, 0, 0, 0), (4, 1, 1, 0), dtypes=(0,)),
    "a dimension of 2^64-1": _shapes((1, 2**64 - 1), (2**63,), (2**64 - 1,), (1, 2**63), (1, 1, 1, 2**64 - 1)),
    "a product that wraps": _shapes((4194305, 4194305, 211106198978564), (2**32, 2**32), (2**32,) * 4),
    "a row whose stride wraps": _shapes((2**62,), dtypes=(0,)),
    "a size that wraps when it is padded": _shapes((2**63 - 3,), dtypes=(24, 0)),
    "half a block": BadHeader(
        "t",
        tuple(
            one_tensor(shape, dtype.id)
            for dtype, block in BLOCKS
            for shape in ((block // 2, 2), (block - 1,), (block + 1, block), (1, block))
        ),
        "block of {}",
        numbers=tuple(block for _, block in BLOCKS for _ in range(4)),
    ),
    "an unknown type of tensor": BadHeader(
        "t", tuple(one_tensor((256,), kind) for kind in UNKNOWN), "{}", numbers=UNKNOWN
    ),
    "a type of tensor that no offset explains": BadHeader(
        "t",  # more bytes than any type needs for one value
        tuple(one_tensor((1,), kind) + b"\1" * 4096 for kind in UNKNOWN),
        "{}",
        (0,),
        UNKNOWN,
    ),
    "an offset beyond any file": BadHeader(
        "b", tuple(two_tensors(offset) for offset in (2**64 - 32, 2**64 - 1, 2**63)), sizes=(0,)
    ),
    "a first offset beyond any file": BadHeader(
        "t", tuple(one_tensor((8,), 0, offset) for offset in (2**64 - 1, 2**64 - 32, 2**63))
    ),
    "a misaligned offset": BadHeader("b", tuple(map(two_tensors, (65, 63, 72, 16))), "alignment", (0,)),
    "overlapping tensors": BadHeader("b", (two_tensors(32), two_tensors(0)), "overlaps", (0,)),
    "a hole between tensors": BadHeader("b", tuple(map(two_tensors, (128, 96, 2**40))), "hole", (0,)),
    "a hole before the first tensor": BadHeader(
        "t", (raw_file(tensors=[raw_tensor(b"t", (1,), 0, 32)], data=b"\1" * 64),), "hole", (0,)
    ),
    "two tensors of one name": BadHeader(
        "a",
        (raw_file(tensors=[raw_tensor(b"a", (8,)), raw_tensor(b"a", (8,), 0, 32)], data=bytes(64)),),
        "two tensors",
        (0,),
    ),
    "a tensor without its data": BadHeader("t", (one_tensor((8,)),), sizes=(0,)),
    "an empty name": _names(b""),
    "a name with a NUL": _names(b"a\0b"),
    "a name that is too long": _names(b"a" * (NAME_MAX_BYTES + 1), b"a" * 2**20),
    "a name that runs backwards": _names("\u202egnp.exe".encode(), "zero\u200bwidth".encode()),
    "a name that is not valid UTF-8": _names(b"\xff\xfe"),
    "a name that is not printable ASCII": _names(
        *(b"\x1b[2J\x1b[31mred", "caf\u00e9".encode(), "cafe\u0301".encode(), b"line\nbreak", b"tab\t", b"\x7f")
    ),
}
"""Headers by their fault; the first file of each is typical."""
