"""Tests of dissecting a header: which part becomes which blob, kept paddings, and flags."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given

from organs.ingest.dissect import DissectedFile, dissect
from organs.registry.errors import BadGguf
from organs.registry.gguf import KeyValue, TensorSpec, ValueType, dtype_by_name, padded
from organs.registry.gguf.header import ARRAY_BLOB_MIN_BYTES, field_type_text, field_value_text
from organs.registry.input_files import FileSource
from tests.gguf_files import (
    array,
    every_value_type,
    file_bytes,
    raw_field,
    raw_file,
    tensor,
    text,
    unsigned,
    vocabulary,
)
from tests.random_files import PATIENT, files
from tests.small_models import small_model

ARCHITECTURE = text("general.architecture", "llama")


def taken_apart(folder: Path, data: bytes) -> DissectedFile:
    path = folder / "a.gguf"
    path.write_bytes(data)
    return dissect(FileSource(path))


def put_together(file: DissectedFile) -> bytes:
    """Assemble the file from its pieces as the tables describe it: zeros, overlaid."""
    back = bytearray(file.source.size_bytes)
    literal, position = file.literal_bytes(), 0
    for span in file.literals():
        back[span.offset : span.end] = literal[position : position + span.size_bytes]
        position += span.size_bytes
    for offset, data in file.paddings:
        back[offset : offset + len(data)] = literal[position : position + len(data)]
        position += len(data)
    assert position == len(literal)
    for span in [*file.arrays, *map(file.tensor_span, file.header.tensors)]:
        back[span.offset : span.end] = file.source.read_at(span.offset, span.size_bytes)
    return bytes(back)


def test_large_arrays_are_separate_pieces_and_small_ones_stay_in_the_header(tmp_path: Path) -> None:
    large = array("large", ValueType.UINT8, [1] * (ARRAY_BLOB_MIN_BYTES + 1))
    at_the_limit = array("limit", ValueType.UINT8, [2] * ARRAY_BLOB_MIN_BYTES)
    tokens = array("tokenizer.ggml.tokens", ValueType.STRING, vocabulary(1_000))
    file = taken_apart(tmp_path, file_bytes([ARCHITECTURE, large, at_the_limit, tokens], [tensor("a")]))
    assert [span.size_bytes for span in file.arrays] == [ARRAY_BLOB_MIN_BYTES + 1, file.header.fields[3].size_bytes]
    assert file.source.read_at(file.arrays[0].offset, 3) == b"\1\1\1"
    assert len(list(file.literals())) == 3
    assert put_together(file) == (tmp_path / "a.gguf").read_bytes()


def test_a_header_without_large_arrays_is_one_literal(tmp_path: Path) -> None:
    file = taken_apart(tmp_path, small_model())
    assert not any((file.arrays, file.paddings, file.flags, file.front.unassemblable))
    (span,) = file.literals()
    assert (span.offset, span.end) == (0, file.header.end)
    assert put_together(file) == small_model()


@PATIENT
@given(files())
def test_the_pieces_of_any_file_assemble_to_the_file(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = taken_apart(Path(folder), data)
        try:
            assert put_together(file) == data
        finally:
            file.source.close()


def test_padding_that_is_not_zero_is_kept_and_flagged(tmp_path: Path) -> None:
    data = bytearray(file_bytes([ARCHITECTURE], [tensor("a", (3,)), tensor("b", (5,))]))
    header_padding = data.index(b"\0" * 5, data.index(b"llama"))
    first = len(data) - 32 - 32 + 12
    data[first : first + 20] = b"p" * 20
    data[-3:] = b"end"
    file = taken_apart(tmp_path, bytes(data))
    assert [(offset, len(found)) for offset, found in file.paddings] == [(first, 20), (len(data) - 12, 12)]
    assert header_padding < file.header.data_offset
    assert file.flags == ("padding between tensors is not zero; it is kept",)
    assert put_together(file) == bytes(data)


def test_padding_after_the_header_is_kept(tmp_path: Path) -> None:
    data = bytearray(file_bytes([ARCHITECTURE], [tensor("a", (8,))]))
    begin = len(data) - 32 - 1
    data[begin] = 7
    file = taken_apart(tmp_path, bytes(data))
    assert file.header.end <= begin < file.header.data_offset
    assert len(file.paddings) == 1
    assert put_together(file) == bytes(data)


@pytest.mark.parametrize("kept", range(13))
def test_a_last_tensor_with_any_part_of_its_padding_is_accepted(kept: int, tmp_path: Path) -> None:
    whole = file_bytes([ARCHITECTURE], [tensor("a", (5,))])
    data = whole[: len(whole) - 12 + kept]
    file = taken_apart(tmp_path, data)
    assert ("the last tensor has no padding behind it" in file.flags) == (kept == 0)
    assert put_together(file) == data


def test_a_last_tensor_that_needs_no_padding_is_not_flagged(tmp_path: Path) -> None:
    assert taken_apart(tmp_path, file_bytes([ARCHITECTURE], [tensor("a", (8,))])).flags == ()


@pytest.mark.parametrize("padding", [True, False])
def test_a_file_without_tensors_may_end_anywhere_in_its_padding(padding: bool, tmp_path: Path) -> None:
    whole = file_bytes([ARCHITECTURE])
    end = taken_apart(tmp_path, whole).header.end
    data = whole if padding else whole[:end]
    assert len(whole) == padded(end, 32) > end
    file = taken_apart(tmp_path, data)
    assert file.header.tensors == ()
    assert file.flags == ()
    assert put_together(file) == data


@pytest.mark.parametrize(
    ("data", "flag"),
    [
        (file_bytes([], [tensor("a", (8,))]), "general.architecture is absent: no runtime can load it"),
        (
            file_bytes([ARCHITECTURE], [tensor("a", (32,), dtype_by_name("Q8_0")), tensor("b", (8,))]),
            "general.quantization_version is absent although tensors are quantised",
        ),
        (file_bytes([ARCHITECTURE, text("general.name", b"\xff\xfe")]), "general.name is not UTF-8"),
        (
            raw_file([ARCHITECTURE.encode(), raw_field(b"odd.truth", 7, b"\x02")]),
            "odd.truth is a truth value other than 0 and 1",
        ),
    ],
)
def test_an_oddity_is_flagged_in_a_sentence(data: bytes, flag: str, tmp_path: Path) -> None:
    assert taken_apart(tmp_path, data).flags == (flag,)


def test_version_2_is_flagged(tmp_path: Path) -> None:
    data = file_bytes([ARCHITECTURE], [tensor("a", (8,))])
    assert taken_apart(tmp_path, data[:4] + b"\2\0\0\0" + data[8:]).flags == ("GGUF version 2",)


def test_a_quantised_model_that_names_its_version_is_not_flagged(tmp_path: Path) -> None:
    entries = [ARCHITECTURE, unsigned("general.quantization_version", 2)]
    data = file_bytes(entries, [tensor("a", (32,), dtype_by_name("Q8_0"))])
    assert taken_apart(tmp_path, data).flags == ()


def test_a_later_shard_needs_no_architecture(tmp_path: Path) -> None:
    entries = [unsigned("split.no", 1, ValueType.UINT16), unsigned("split.count", 2, ValueType.UINT16)]
    assert taken_apart(tmp_path, file_bytes(entries, [tensor("a", (8,))])).flags == ()


def test_a_refused_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadGguf, match=r"a\.gguf: magic at byte 0"):
        taken_apart(tmp_path, b"JUNK" * 100)


def test_every_kind_of_metadata_has_a_type_and_a_readable_value(tmp_path: Path) -> None:
    long = text("long", "x" * 100_000)
    file = taken_apart(tmp_path, file_bytes([*every_value_type(), long, text("raw", b"\xff")]))
    shown = {field.key: (field_type_text(field), field_value_text(field)) for field in file.header.fields}
    expected: Sequence[tuple[str, str, str]] = (
        ("scalar.uint64", "uint64", "18446744073709551615"),
        ("scalar.int8", "int8", "127"),
        ("scalar.bool", "bool", "true"),
        ("scalar.float32", "float32", "1.5"),
        ("scalar.string", "string", "Grüße, 世界"),
        ("array.string", "array of string", "[3 × string]"),
        ("array.float64", "array of float64", "[2 × float64]"),
        ("long", "string", "[string of 100000 bytes]"),
        ("raw", "string", "\\xff"),
    )
    for key, kind, value in expected:
        assert shown[key] == (kind, value)


def test_nonfinite_numbers_are_shown_as_text(tmp_path: Path) -> None:
    odd = [
        KeyValue("nan", ValueType.FLOAT32, float("nan")),
        KeyValue("inf", ValueType.FLOAT64, float("-inf")),
    ]
    file = taken_apart(tmp_path, file_bytes(odd))
    assert [field_value_text(field) for field in file.header.fields] == ["nan", "-inf"]


def test_tensors_are_at_their_offsets(tmp_path: Path) -> None:
    entries = [tensor("a", (5,)), tensor("b", (40,)), (TensorSpec("c", (8,), dtype_by_name("I8")), b"12345678")]
    file = taken_apart(tmp_path, file_bytes([ARCHITECTURE], entries, 64))
    for info, (_, data) in zip(file.header.tensors, entries, strict=True):
        span = file.tensor_span(info)
        assert span.offset % 64 == 0
        assert file.source.read_at(span.offset, span.size_bytes) == data
