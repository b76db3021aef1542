"""Tests of the writer: exact bytes, and entries carried over byte for byte from other files."""

from __future__ import annotations

import struct

from organs.registry.gguf import (
    Header,
    KeyValue,
    MemorySource,
    TensorSpec,
    ValueType,
    carry_over,
    dtype_by_name,
    encode_header,
    read_header,
)
from tests.gguf_files import array, file_bytes, tensor, text, unsigned

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


def carried(source: MemorySource, header: Header) -> bytes:
    """Return the header encoded again, with every entry carried over."""
    specs = [TensorSpec(info.name, info.shape, info.dtype) for info in header.tensors]
    return encode_header([carry_over(source, field) for field in header.fields], specs, header.alignment)


def test_a_small_file_has_exactly_these_bytes() -> None:
    written = file_bytes(
        [text("general.architecture", "llama"), unsigned("n", 7), array("t", ValueType.STRING, [b"\xff", b""])],
        [
            (TensorSpec("a", (3, 1), dtype_by_name("F32")), bytes(range(12))),
            (TensorSpec("b", (2,), dtype_by_name("I8")), bytes(range(12, 14))),
        ],
    )
    assert written == GOLDEN


def test_the_recorded_bytes_are_read_as_the_written_values() -> None:
    header = read_header(MemorySource(GOLDEN))
    assert header.architecture == "llama"
    assert header.integer("n") == 7
    assert [(info.name, info.shape, info.dtype.name, info.offset) for info in header.tensors] == [
        ("a", (3, 1), "F32", 0),
        ("b", (2,), "I8", 32),
    ]
    assert (header.end, header.data_offset, header.last_byte) == (202, 224, 258)


def test_a_carried_over_entry_keeps_its_exact_bytes() -> None:
    entries = [
        KeyValue("odd.bool", ValueType.BOOL, 7),
        KeyValue("odd.nan", ValueType.FLOAT64, struct.unpack("<d", b"\1\0\0\0\0\0\xf8\x7f")[0]),
        array("empty", ValueType.STRING, []),
    ]
    source = MemorySource(file_bytes(entries))
    header = read_header(source)
    assert [carry_over(source, field).encode() for field in header.fields] == [entry.encode() for entry in entries]
    assert carried(source, header) == source.data


def test_another_alignment_is_written_into_the_metadata_once() -> None:
    source = MemorySource(file_bytes([unsigned("n", 1)], [tensor("a")], 64))
    header = read_header(source)
    assert [field.key for field in header.fields] == ["general.alignment", "n"]
    again = file_bytes([carry_over(source, field) for field in header.fields], [tensor("a")], 64)
    assert again == source.data


def test_a_file_without_tensors_is_a_padded_header() -> None:
    assert file_bytes([]) == b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(8)
