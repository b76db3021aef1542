"""Tests with random files: written files read back, and damaged files are refused or harmless."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from organs.registry.errors import BadGguf
from organs.registry.gguf import (
    Header,
    MemorySource,
    TensorSpec,
    carry_over,
    encode_header,
    read_array,
    read_header,
)
from tests.gguf_files import assert_invariants
from tests.random_files import PATIENT, damaged, files


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
