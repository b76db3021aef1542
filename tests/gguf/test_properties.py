"""Tests with random files: written files read back, and damaged files are refused or harmless."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from organs.registry.errors import BadGguf
from organs.registry.gguf import (
    Header,
    KeyValue,
    MemorySource,
    TensorSpec,
    ValueType,
    carry_over,
    encode_header,
    read_array,
    read_header,
)
from organs.registry.gguf.types import SCALAR_FORMATS
from tests.gguf_files import assert_invariants, file_bytes
from tests.random_files import ALIGNMENTS, PATIENT, damaged, files, metadata, tensors


def encoded(entry: KeyValue) -> bytes:
    """Return the encoded value of the entry as in the file, without a length before it."""
    kind = entry.type
    if kind is ValueType.STRING:
        assert isinstance(entry.value, bytes)
        return entry.value
    return struct.pack(SCALAR_FORMATS[kind], entry.value)


@PATIENT
@given(metadata(), tensors(), st.sampled_from(ALIGNMENTS))
def test_a_written_file_reads_back_the_same(
    entries: list[KeyValue], given_tensors: list[tuple[TensorSpec, bytes]], alignment: int
) -> None:
    data = file_bytes(entries, given_tensors, alignment)
    source = MemorySource(data)
    header = read_header(source)
    assert_invariants(header)
    assert header.alignment == alignment
    fields = [field for field in header.fields if field.key != "general.alignment"]
    assert [(field.key, field.type, field.element_type) for field in fields] == [
        (entry.key, entry.type, entry.element_type) for entry in entries
    ]
    for field, entry in zip(fields, entries, strict=True):
        if entry.element_type is None:
            assert source.read_at(field.offset, field.size_bytes) == encoded(entry)
        else:
            assert isinstance(entry.value, list)
            assert field.count == len(entry.value)
            elements = read_array(source, field)
            # Compared as text, in which NaN equals itself.
            assert [repr(value) for value in elements] == [repr(value) for value in expected_elements(entry)]
    assert [TensorSpec(info.name, info.shape, info.dtype) for info in header.tensors] == [
        spec for spec, _ in given_tensors
    ]
    for info, (_, payload) in zip(header.tensors, given_tensors, strict=True):
        begin = header.data_offset + info.offset
        assert data[begin : begin + info.size_bytes] == payload


def expected_elements(entry: KeyValue) -> list[object]:
    """Return the elements of an array as `read_array` returns them, by their encoding."""
    assert isinstance(entry.value, list)
    assert entry.element_type is not None
    if entry.element_type is ValueType.STRING:
        return list(entry.value)
    single = KeyValue("k", ValueType.ARRAY, entry.value, entry.element_type)
    source = MemorySource(file_bytes([single]))
    return list(read_array(source, read_header(source).fields[0]))


@PATIENT
@given(files())
def test_a_header_is_encoded_again_to_the_same_bytes(data: bytes) -> None:
    source = MemorySource(data)
    header = read_header(source)
    entries = [carry_over(source, field) for field in header.fields]
    specs = [TensorSpec(info.name, info.shape, info.dtype) for info in header.tensors]
    assert encode_header(entries, specs, header.alignment) == data[: header.data_offset]


@PATIENT
@given(damaged(files()))
def test_a_damaged_file_is_refused_or_satisfies_every_invariant(data: bytes) -> None:
    source = MemorySource(data, "damaged.gguf")
    header = header_or_refusal(source)
    if isinstance(header, Header):
        assert_invariants(header)
        for field in header.fields:
            if field.is_array:
                assert len(read_array(source, field)) == field.count
            assert carry_over(source, field).encode() in data
    else:
        assert_names_its_place(header, source)


@PATIENT
@given(st.binary(max_size=400))
def test_any_bytes_after_the_magic_are_refused_or_satisfy_every_invariant(tail: bytes) -> None:
    source = MemorySource(b"GGUF\3\0\0\0" + tail, "random.gguf")
    header = header_or_refusal(source)
    if isinstance(header, Header):
        assert_invariants(header)
    else:
        assert_names_its_place(header, source)


def header_or_refusal(source: MemorySource) -> Header | BadGguf:
    try:
        return read_header(source)
    except BadGguf as error:
        return error


def assert_names_its_place(error: BadGguf, source: MemorySource) -> None:
    assert error.source == source.name
    assert error.field
    assert 0 <= error.offset <= source.size_bytes
    assert str(error).isprintable()
