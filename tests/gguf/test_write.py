"""Tests of the writer: exact bytes, and entries carried over byte for byte from other files."""

from __future__ import annotations

import struct

from organs.registry.gguf import (
    KeyValue,
    MemorySource,
    TensorSpec,
    ValueType,
    carry_over,
    dtype_by_name,
    read_header,
)
from tests.gguf_files import array, file_bytes, text, unsigned

GOLDEN = bytes.fromhex(
    "47475546 03000000"  # GGUF, version 3
    "0200000000000000 0300000000000000"  # 2 tensors, 3 metadata entries
    # general.architecture = "llama"
    "1400000000000000 67656e6572616c2e617263686974656374757265 08000000 0500000000000000 6c6c616d61"
    # n = 7, an unsigned 32-bit number
    "0100000000000000 6e 04000000 07000000"
    # t = [b"\xff", b""], an array of 2 strings
    "0100000000000000 74 09000000 08000000 0200000000000000 0100000000000000 ff 0000000000000000"
    # a: 2 dimensions, 3 and 1, F32 (0), at 0
    "0100000000000000 61 02000000 0300000000000000 0100000000000000 00000000 0000000000000000"
    # b: 1 dimension, 2, I8 (24), at 32
    "0100000000000000 62 01000000 0200000000000000 18000000 2000000000000000"
    "00000000000000000000000000000000000000000000"  # padding from 202 to 224
    "000102030405060708090a0b 0000000000000000000000000000000000000000"  # a, and its padding
    "0c0d 000000000000000000000000000000000000000000000000000000000000"  # b, and its padding
)


def test_a_small_file_has_exactly_these_bytes() -> None:
    written = file_bytes(
        [text("general.architecture", "llama"), unsigned("n", 7), array("t", ValueType.STRING, [b"\xff", b""])],
        [
            (TensorSpec("a", (3, 1), dtype_by_name("F32")), bytes(range(12))),
            (TensorSpec("b", (2,), dtype_by_name("I8")), bytes(range(12, 14))),
        ],
    )
    assert written == GOLDEN


def test_a_carried_over_entry_keeps_its_exact_bytes() -> None:
    entries = [
        KeyValue("odd.bool", ValueType.BOOL, 7),
        KeyValue("odd.nan", ValueType.FLOAT64, struct.unpack("<d", b"\1\0\0\0\0\0\xf8\x7f")[0]),
        array("empty", ValueType.STRING, []),
    ]
    source = MemorySource(file_bytes(entries))
    fields = read_header(source).fields
    assert [carry_over(source, field).encode() for field in fields] == [entry.encode() for entry in entries]
