"""Tests of valid files and the values that the reader returns."""

from __future__ import annotations

import struct

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
    assert kept["tokenizer.ggml.tokens"].value is None, "it stays in the file"
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
