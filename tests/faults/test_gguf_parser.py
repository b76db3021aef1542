"""Tests of files that the GGUF parser must refuse, and of the cost of a refusal.

A refusal is `BadGguf` with the file, the field and the offset. It reads at most two windows and uses at most 64 MB of
memory, for any claims of the file: sources of exabytes without bytes test this.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from organs.registry.errors import BadGguf, BadSplit
from organs.registry.gguf import KeyValue, MemorySource, ValueType, read_array, read_header
from organs.registry.gguf.split import check_split, parse_shard_name
from organs.registry.gguf.tokenizer import tokenizer_reasons
from tests.faults.hostile.headers import BAD_HEADERS, WHOLE, two_tensors
from tests.gguf_files import (
    SparseSource,
    array,
    every_value_type,
    file_bytes,
    raw_file,
    tensor,
    text,
    unsigned,
)

ROOT = Path(__file__).resolve().parents[2]
READ_MAX_BYTES = 2 * 1024 * 1024
MEMORY_MAX_BYTES = 64 * 1000 * 1000


def refusal(data: bytes, size_bytes: int | None = None) -> BadGguf:
    """Return the error of a file of `size_bytes` that begins with `data`, after checking its message and its cost."""
    source = SparseSource(data, len(data) if size_bytes is None else size_bytes, "bad.gguf")
    tracemalloc.start()
    try:
        with pytest.raises(BadGguf) as caught:
            read_header(source)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    error = caught.value
    assert source.read_bytes <= READ_MAX_BYTES
    assert peak < MEMORY_MAX_BYTES
    assert error.source == "bad.gguf"
    assert error.field
    assert 0 <= error.offset <= source.size_bytes
    assert str(error).startswith(f"bad.gguf: {error.field} at byte {error.offset}: ")
    assert str(error).isprintable()
    assert str(error).isascii()
    assert len(str(error)) < 1000
    return error


@pytest.mark.parametrize("fault", BAD_HEADERS)
def test_a_header_with_any_fault_is_refused_by_the_field_and_at_little_cost(fault: str) -> None:
    bad = BAD_HEADERS[fault]
    for file, reason in zip(bad.files, bad.reasons(), strict=True):
        for size in bad.sizes:
            error = refusal(file, size or len(file))
            assert (error.field, reason in error.reason) == (bad.field, True), (size, file[:200], error)


@pytest.mark.parametrize(
    ("fault", "offset"),
    [("big-endian", 0), ("version 1", 4), ("2^40 tensors", 8), ("a tensor more", 8), ("a field more", 16)],
)
def test_a_refusal_names_the_offset_of_the_field(fault: str, offset: int) -> None:
    assert {refusal(file).offset for file in BAD_HEADERS[fault].files} == {offset}


def test_a_header_truncated_at_every_byte_is_refused() -> None:
    file = WHOLE
    header = read_header(MemorySource(file))
    for size in range(header.data_offset):
        error = refusal(file[:size])
        assert error.offset <= size


def test_token_strings_that_are_not_utf_8_are_kept_unchanged() -> None:
    tokens = [b"\xff\xfe", b"\xc3", b"", b"a\0b", b"plain"]
    source = MemorySource(file_bytes([array("tokenizer.ggml.tokens", ValueType.STRING, tokens)]))
    field = read_header(source).field("tokenizer.ggml.tokens")
    assert field is not None
    assert read_array(source, field) == tokens


def test_data_that_is_one_byte_short_is_refused() -> None:
    file = WHOLE
    header = read_header(MemorySource(file))
    for size in range(header.data_offset, header.last_byte):
        error = refusal(file[:size])
        assert error.field == "c"
        assert error.offset == size


def test_a_trailing_archive_is_refused() -> None:
    stream = io.BytesIO(WHOLE)
    stream.seek(0, io.SEEK_END)
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr("evil.py", "print('run')")
    assert zipfile.is_zipfile(stream)
    assert "follow the last tensor" in refusal(stream.getvalue()).reason


@pytest.mark.parametrize("extra", [1, 2, 32, 4096, 2**40])
@pytest.mark.parametrize("data", [WHOLE, file_bytes(every_value_type())], ids=["tensors", "no tensors"])
def test_bytes_after_the_last_padding_are_refused(data: bytes, extra: int) -> None:
    assert refusal(data, len(data) + extra).offset == len(data)


@pytest.mark.parametrize("name", ["../../x", "/etc/passwd", "C:\\x", "CON", ".", "..", "a b", "%s%n", "';--", "<b>"])
def test_odd_but_printable_tensor_names_are_kept_as_text(name: str) -> None:
    header = read_header(MemorySource(file_bytes(tensors=[tensor(name)])))
    assert [info.name for info in header.tensors] == [name]


def test_names_that_differ_in_case_are_two_tensors() -> None:
    header = read_header(MemorySource(file_bytes(tensors=[tensor("Blk.0"), tensor("blk.0")])))
    assert [info.name for info in header.tensors] == ["Blk.0", "blk.0"]


def vocabulary_reasons(*entries: KeyValue) -> list[str]:
    source = MemorySource(file_bytes(entries))
    return tokenizer_reasons(source, read_header(source))


@pytest.mark.parametrize(
    ("key", "element_type"),
    [
        ("tokenizer.ggml.token_type", ValueType.INT8),
        ("tokenizer.ggml.token_type", ValueType.UINT64),
        ("tokenizer.ggml.scores", ValueType.INT8),
        ("tokenizer.ggml.scores", ValueType.FLOAT64),
        ("tokenizer.ggml.merges", ValueType.UINT8),
    ],
)
def test_tokenizer_arrays_of_the_wrong_element_type_are_flagged(key: str, element_type: ValueType) -> None:
    tokens = array("tokenizer.ggml.tokens", ValueType.STRING, [b"a", b"b"])
    reasons = vocabulary_reasons(tokens, array(key, element_type, [1, 1]))
    assert len(reasons) == 1
    assert key in reasons[0]
    assert element_type.name in reasons[0]


@pytest.mark.parametrize("token", [b"<0x-1>", b"<0x>", b"<0xZZ>", b"<0x100>", b"0x41", b"<0x4", b"", b"\xff"])
def test_invalid_byte_tokens_are_flagged(token: bytes) -> None:
    tokens = [b"<0x41>", token, b"plain"]
    reasons = vocabulary_reasons(
        array("tokenizer.ggml.tokens", ValueType.STRING, tokens),
        array("tokenizer.ggml.token_type", ValueType.INT32, [6, 6, 1]),
    )
    assert len(reasons) == 1
    assert repr(token) in reasons[0]


@pytest.mark.parametrize(
    ("shards", "said"),
    [
        ([(0, 3, "a"), (2, 3, "c")], "00002"),
        ([(0, 3, "a"), (1, 3, "b"), (1, 3, "b"), (2, 3, "c")], "repeats shard 2"),
        ([(0, 2, "a"), (1, 2, "a")], "has the tensor a, as a.gguf has"),
        ([(0, 2, "a"), (1, 3, "b")], "says 3 for split.count, but a.gguf says 2"),
        ([(0, 65535, "a")], "65534 of 65535 shards missing"),
    ],
    ids=["missing", "repeated", "foreign", "lying count", "of very many"],
)
def test_a_split_set_with_any_fault_is_refused_as_a_whole(shards: list[tuple[int, int, str]], said: str) -> None:
    headers = []
    for number, count, name in shards:
        entries = [unsigned("split.no", number, ValueType.UINT16), unsigned("split.count", count, ValueType.UINT16)]
        entries.append(KeyValue("split.tensors.count", ValueType.INT32, count))
        headers.append((f"{name}.gguf", read_header(MemorySource(file_bytes(entries, [tensor(name)])))))
    with pytest.raises(BadSplit) as caught:
        check_split("model", headers)
    assert any(said in fault.detail for fault in caught.value.errors)


def test_a_name_that_claims_99999_shards_is_parsed() -> None:
    name = parse_shard_name("m-00001-of-99999.gguf")
    assert name is not None
    assert name.count == 99_999


def test_numbers_at_the_limits_of_their_types_are_read_unchanged() -> None:
    entries = [
        KeyValue("nan", ValueType.FLOAT64, float("nan")),
        KeyValue("inf", ValueType.FLOAT32, float("inf")),
        KeyValue("minus_inf", ValueType.FLOAT64, float("-inf")),
        KeyValue("most", ValueType.UINT64, 2**64 - 1),
        KeyValue("least", ValueType.INT64, -(2**63)),
        text("nul", b"a\0b"),
    ]
    header = read_header(MemorySource(file_bytes(entries)))
    values = {field.key: field.value for field in header.fields}
    assert repr(values.pop("nan")) == "nan"
    assert values == {
        "inf": float("inf"),
        "minus_inf": float("-inf"),
        "most": 2**64 - 1,
        "least": -(2**63),
        "nul": "a\0b",
    }


def test_a_vocabulary_of_a_million_tokens_with_nul_is_read_unchanged() -> None:
    tokens = [b"%d\0" % index for index in range(1_000_000)]
    source = MemorySource(file_bytes([array("tokenizer.ggml.tokens", ValueType.STRING, tokens)]))
    field = read_header(source).field("tokenizer.ggml.tokens")
    assert field is not None
    assert read_array(source, field) == tokens


MILLION = """
import os, resource
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # each further thread would reserve memory of its own
resource.setrlimit(resource.RLIMIT_AS, (2_000_000_000, 2_000_000_000))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
from organs.registry.gguf import padded, read_header
from tests.gguf_files import SparseSource, assert_invariants, raw_header, raw_tensor
count = 1_000_000
front = raw_header(tensors=(raw_tensor(b"blk.%d.ffn_up.weight" % index, (8,), 0, 32 * index) for index in range(count)))
source = SparseSource(front, padded(len(front), 32) + 32 * count)
header = read_header(source)
assert_invariants(header)
print(len(header.tensors), source.furthest - len(front) <= 1 << 20)
"""


def test_a_million_tensors_are_read_within_a_minute_and_two_gigabytes() -> None:
    done = subprocess.run([sys.executable, "-c", MILLION], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["1000000", "True"]


def test_a_valid_file_passes_the_same_checks() -> None:
    assert len(read_header(MemorySource(WHOLE)).tensors) == 3
    assert len(read_header(MemorySource(two_tensors(64)[:-128])).tensors) == 2
    assert read_header(MemorySource(raw_file())).tensors == ()
