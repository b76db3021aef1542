"""Tests of dissecting a header: which part becomes which blob, kept paddings, and flags."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given

from organs.ingest.checking import NOT_FLAGGED, file_findings
from organs.ingest.dissect import DissectedFile, dissect
from organs.registry.gguf import ValueType, dtype_by_name
from organs.registry.gguf.header import ARRAY_BLOB_MIN_BYTES
from organs.registry.input_files import FileSource
from tests.gguf_files import (
    array,
    file_bytes,
    raw_field,
    raw_file,
    tensor,
    text,
    unsigned,
    vocabulary,
)
from tests.random_files import PATIENT, files

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
    first = len(data) - 32 - 32 + 12
    data[first - 12 - 1] = 7  # the last byte before the first tensor
    data[first : first + 20] = b"p" * 20
    data[-3:] = b"end"
    file = taken_apart(tmp_path, bytes(data))
    before, *others = [(offset, len(found)) for offset, found in file.paddings]
    assert (before, others) == ((file.header.end, 32 - file.header.end % 32), [(first, 20), (len(data) - 12, 12)])
    assert sentences_on(file) == ("padding between tensors is not zero; it is kept",)
    assert put_together(file) == bytes(data)


@pytest.mark.parametrize("kept", range(13))
def test_a_last_tensor_with_any_part_of_its_padding_is_accepted(kept: int, tmp_path: Path) -> None:
    whole = file_bytes([ARCHITECTURE], [tensor("a", (5,))])
    data = whole[: len(whole) - 12 + kept]
    file = taken_apart(tmp_path, data)
    assert ("the last tensor has no padding behind it" in sentences_on(file)) == (kept == 0)
    assert put_together(file) == data


def sentences_on(file: DissectedFile) -> tuple[str, ...]:
    return tuple(item.sentence for item in file_findings([file]) if item.code not in NOT_FLAGGED)


QUANTISED = tensor("a", (32,), dtype_by_name("Q8_0"))
PLAIN = file_bytes([ARCHITECTURE], [tensor("a", (8,))])
LATER_SHARD = [unsigned("split.no", 1, ValueType.UINT16), unsigned("split.count", 2, ValueType.UINT16)]


@pytest.mark.parametrize(
    ("data", "flags"),
    [
        (PLAIN, ()),
        (PLAIN[:4] + b"\2\0\0\0" + PLAIN[8:], ("GGUF version 2",)),
        (file_bytes([], [tensor("a", (8,))]), ("general.architecture is absent: no runtime can load it",)),
        pytest.param(file_bytes(LATER_SHARD, [tensor("a", (8,))]), (), id="a later shard needs no architecture"),
        (
            file_bytes([ARCHITECTURE], [QUANTISED, tensor("b", (8,))]),
            ("general.quantization_version is absent although tensors are quantised",),
        ),
        pytest.param(
            file_bytes([ARCHITECTURE, unsigned("general.quantization_version", 2)], [QUANTISED]),
            (),
            id="the version of a quantisation",
        ),
        (file_bytes([ARCHITECTURE, text("general.name", b"\xff\xfe")]), ("general.name is not UTF-8",)),
        (
            raw_file([ARCHITECTURE.encode(), raw_field(b"odd.truth", 7, b"\x02")]),
            ("odd.truth is a truth value other than 0 and 1",),
        ),
    ],
)
def test_an_oddity_is_flagged_in_a_sentence(data: bytes, flags: tuple[str, ...], tmp_path: Path) -> None:
    assert sentences_on(taken_apart(tmp_path, data)) == flags
