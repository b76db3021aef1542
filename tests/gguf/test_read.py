"""Tests of valid files and the values that the reader returns."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from organs.registry.errors import BadGguf
from organs.registry.gguf import Header, HeaderSource, MemorySource, ValueType, read_array, read_header
from organs.registry.gguf.read import (
    WINDOW_BYTES,
    WINDOW_FIRST_BYTES,
)
from organs.registry.gguf.types import EAGER_STRING_MAX_BYTES, VALUE_MAX
from tests.gguf_files import (
    SparseSource,
    array,
    assert_invariants,
    every_value_type,
    file_bytes,
    raw_array,
    raw_field,
    raw_file,
    raw_header,
    raw_tensor,
    raw_text,
    tensor,
    text,
    unsigned,
    vocabulary,
)


def header_of(data: bytes) -> Header:
    header = read_header(MemorySource(data))
    assert_invariants(header)
    return header


def test_arrays_stay_in_the_file_and_are_read_on_request() -> None:
    source = MemorySource(file_bytes(every_value_type()))
    arrays = [field for field in read_header(source).fields if field.is_array]
    assert [field.value for field in arrays] == [None] * 12
    elements = {field.key.removeprefix("array."): list(read_array(source, field)) for field in arrays}
    assert elements["uint64"] == [0, 2**64 - 1]
    assert elements["int8"] == [-128, 127]
    assert elements["float32"] == [np.float32(0.25), np.float32(-1e38)]
    assert elements["bool"] == [1, 0, 1]
    assert elements["string"] == [b"a", b"", "世界".encode()]


def test_a_boolean_that_is_neither_0_nor_1_is_kept_as_its_number() -> None:
    field = header_of(raw_file([raw_field(b"b", ValueType.BOOL, b"\7")])).field("b")
    assert field is not None
    assert field.value == 7


def test_a_string_that_is_not_utf_8_is_kept_as_bytes() -> None:
    header = header_of(file_bytes([text("s", b"\xff\xfe")]))
    field = header.field("s")
    assert field is not None
    assert field.value == b"\xff\xfe"
    assert header.text("s") is None


def test_a_long_string_stays_in_the_file() -> None:
    at_limit, above = b"a" * EAGER_STRING_MAX_BYTES, b"b" * (EAGER_STRING_MAX_BYTES + 1)
    data = file_bytes([text("short", at_limit), text("long", above), unsigned("after", 7)])
    header = header_of(data)
    assert header.text("short") == at_limit.decode()
    assert header.text("long") is None
    assert header.integer("after") == 7
    field = header.field("long")
    assert field is not None
    assert data[field.offset : field.offset + field.size_bytes] == above


def test_accessors_return_none_for_missing_entries_and_other_types() -> None:
    header = header_of(file_bytes([text("general.architecture", "llama"), unsigned("n", 3), every_value_type()[18]]))
    assert header.architecture == "llama"
    assert header.integer("n") == 3
    assert header.text("n") is None
    assert header.integer("general.architecture") is None
    assert header.integer("scalar.bool") is None, "a yes or no is not a number"
    assert header.field("absent") is None
    assert header.integer("absent") is None


@pytest.mark.parametrize("size", [1, 255, 65_535])
def test_keys_of_1_to_65535_bytes_are_read(size: int) -> None:
    assert header_of(file_bytes([unsigned("k" * size, 5)])).integer("k" * size) == 5


@pytest.mark.parametrize("size", [1, 63, 127])
def test_tensor_names_of_1_to_127_bytes_are_read(size: int) -> None:
    assert header_of(file_bytes(tensors=[tensor("n" * size)])).tensors[0].name == "n" * size


def test_an_empty_valid_file_is_read() -> None:
    header = header_of(raw_header())
    assert (header.fields, header.tensors, header.end, header.last_byte) == ((), (), 24, 24)


@pytest.mark.parametrize("tail", range(33))
def test_the_last_tensor_may_end_with_its_padding_without_it_or_with_a_part(tail: int) -> None:
    info = raw_tensor(b"t", (8,), 0) if tail == 0 else raw_tensor(b"t", (33,), 24)
    size = 32 if tail == 0 else 33
    data = raw_file(tensors=[info], data=b"\1" * size + b"\0" * min(tail, 31))
    header = header_of(data)
    assert header.last_byte == len(data) - min(tail, 31)


def test_padding_that_is_not_zero_is_accepted_everywhere() -> None:
    data = bytearray(file_bytes([unsigned("n", 1)], [tensor("a", (1,)), tensor("b", (1,))]))
    header = header_of(bytes(data))
    first = header.data_offset
    for begin, end in ((header.end, first), (first + 4, first + 32), (first + 36, first + 64)):
        assert not any(data[begin:end])
        data[begin:end] = b"\xaa" * (end - begin)
    assert header_of(bytes(data)) == header


@pytest.mark.parametrize("exponent", range(21))
def test_every_power_of_two_up_to_a_mebibyte_is_an_alignment(exponent: int) -> None:
    alignment = 1 << exponent
    header = header_of(file_bytes([], [tensor("a", (3,)), tensor("b", (5,))], alignment))
    assert header.alignment == alignment
    assert header.data_offset % alignment == 0
    assert header.tensors[1].offset == max(alignment, 12) - (max(alignment, 12) % -alignment)


def test_the_alignment_may_come_after_other_keys() -> None:
    data = file_bytes([unsigned("first", 1), unsigned("general.alignment", 64)], [tensor("a"), tensor("b")], 64)
    assert header_of(data).tensors[1].offset == 64


def test_a_vocabulary_of_152k_tokens_is_opened_by_reading_the_header_alone() -> None:
    tokens, merges = vocabulary(152_064), [b"left%d right%d" % (index, index) for index in range(151_387)]
    entries = [
        text("general.architecture", "qwen2"),
        array("tokenizer.ggml.tokens", ValueType.STRING, tokens),
        array("tokenizer.ggml.token_type", ValueType.INT32, [1] * len(tokens)),
        array("tokenizer.ggml.merges", ValueType.STRING, merges),
        unsigned("after", 7),
    ]
    front = file_bytes(entries)
    data_size = 2**34
    info = raw_tensor(b"t", (data_size,), 24)
    front = front[:8] + struct.pack("<Q", 1) + front[16 : read_header(MemorySource(front)).end] + info
    source = SparseSource(front, -(-len(front) // 32) * 32 + data_size)
    header = read_header(source)
    assert header.end == len(front)
    assert header.integer("after") == 7
    assert source.furthest <= header.end + WINDOW_BYTES
    assert source.read_bytes <= header.end + WINDOW_BYTES + 64 * 1024
    kept = {field.key: field for field in header.fields}
    assert read_array(source, kept["tokenizer.ggml.tokens"]) == tokens
    assert read_array(source, kept["tokenizer.ggml.merges"]) == merges


@pytest.mark.parametrize("window", [WINDOW_FIRST_BYTES, WINDOW_FIRST_BYTES + WINDOW_BYTES])
def test_values_across_the_end_of_a_window_are_read_completely(window: int) -> None:
    filled = len(file_bytes([array("fill", ValueType.UINT8, b"")]))
    for shift in range(1, 120, 7):
        fill = array("fill", ValueType.UINT8, bytes(window - filled - shift))
        strings = [b"x" * 9, b"", b"yy" * 9]
        entries = [fill, text("s", "value"), array("strings", ValueType.STRING, strings), unsigned("n", 9)]
        source = MemorySource(file_bytes(entries, [tensor("t", (2, 2))]))
        header = read_header(source)
        assert_invariants(header)
        field = header.field("strings")
        assert field is not None
        assert (header.text("s"), header.integer("n")) == ("value", 9)
        assert read_array(source, field) == strings
        assert header.tensors[0].shape == (2, 2)


def test_a_string_in_an_array_may_be_as_long_as_the_limit_and_no_longer() -> None:
    for size, fits in ((VALUE_MAX, True), (VALUE_MAX + 1, False)):
        entry = raw_field(b"a", ValueType.ARRAY, raw_array(ValueType.STRING, raw_text(b"", size), 1))
        source = SparseSource(raw_header([entry]), len(raw_header([entry])) + size)
        if fits:
            assert read_header(source).fields[0].size_bytes == 8 + size
        else:
            with pytest.raises(BadGguf):
                read_header(source)


def test_a_header_can_be_read_without_its_file() -> None:
    file_data = file_bytes([unsigned("n", 1)], [tensor("a", (9, 9)), tensor("b")])
    header = header_of(file_data)
    alone = HeaderSource(file_data[: header.data_offset], len(file_data))
    assert read_header(alone) == header


def test_reading_past_the_end_of_memory_is_refused() -> None:
    with pytest.raises(BadGguf):
        MemorySource(b"abc").read_at(2, 2)
