"""Tests of files that the GGUF parser must refuse, and of the cost of a refusal.

A refusal is `BadGguf` with the file, the field and the offset. It reads at most two windows and uses at most 64 MB of
memory, for any claims of the file: sources of exabytes without bytes test this.
"""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from organs.registry.errors import BadGguf, BadSplit
from organs.registry.gguf import DType, KeyValue, MemorySource, ValueType, read_array, read_header
from organs.registry.gguf.read import FIELDS_MAX
from organs.registry.gguf.split import check_split, parse_shard_name
from organs.registry.gguf.tokenizer import tokenizer_reasons
from organs.registry.gguf.types import DTYPES, KEY_MAX_BYTES, VALUE_MAX
from tests.gguf_files import (
    SparseSource,
    array,
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
)

ROOT = Path(__file__).resolve().parents[2]
READ_MAX_BYTES = 2 * 1024 * 1024
MEMORY_MAX_BYTES = 64 * 1000 * 1000
HUGE = 2**62
U8, U32, I32, F32, BOOL, STRING, ARRAY, U64, F64 = 0, 4, 5, 6, 7, 8, 9, 10, 12
SCALAR_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


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
    assert len(str(error)) < 1000
    return error


def refusals(data: bytes) -> list[BadGguf]:
    """Return the errors of the file `data`, and of the same front of a file that seems to have enough bytes."""
    return [refusal(data), refusal(data, HUGE)]


def one_tensor(shape: tuple[int, ...], dtype_id: int = 0, offset: int = 0, dimensions: int | None = None) -> bytes:
    return raw_header(tensors=[raw_tensor(b"t", shape, dtype_id, offset, dimensions)])


def two_tensors(second_offset: int) -> bytes:
    infos = [raw_tensor(b"a", (16,)), raw_tensor(b"b", (16,), 0, second_offset)]
    return raw_file(tensors=infos, data=b"\1" * 256)


def full_file() -> bytes:
    """Return a file with every value type, several tensors, and a last tensor that ends off the alignment."""
    return file_bytes(every_value_type(), [tensor("a", (3, 5)), tensor("b.weight", (7,)), tensor("c", (1, 2, 3, 1))])


def test_an_empty_file_is_refused() -> None:
    assert refusal(b"").field == "magic"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_file_of_two_bytes_is_refused(size: int) -> None:
    assert refusal(b"GGUF"[:size]).field == "magic"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"FUGG" + full_file()[4:], "not a GGUF file"),
        (b"GGML" + full_file()[4:], "not a GGUF file"),
        (b"gguf" + full_file()[4:], "not a GGUF file"),
        (b"\0\0\0\0" + full_file()[4:], "not a GGUF file"),
        (b"\x1b[2J" + full_file()[4:], "not a GGUF file"),
    ],
)
def test_a_wrong_magic_is_refused_and_says_so(data: bytes, said: str) -> None:
    error = refusal(data)
    assert said in error.reason
    assert error.offset == 0


def test_a_little_endian_file_that_says_it_is_big_endian_is_refused() -> None:
    assert refusal(b"GGUF\0\0\0\3" + full_file()[8:]).field == "n_tensors"


@pytest.mark.parametrize("version", [0, 1, 4, 99, 2**32 - 1])
def test_unknown_versions_are_refused(version: int) -> None:
    error = refusal(b"GGUF" + struct.pack("<I", version) + full_file()[8:])
    assert (error.field, error.offset) == ("version", 4)


def test_a_header_truncated_at_every_byte_is_refused() -> None:
    file = full_file()
    header = read_header(MemorySource(file))
    for size in range(header.data_offset):
        error = refusal(file[:size])
        assert error.offset <= size


@pytest.mark.parametrize("count", [2**64 - 1, 2**63, 2**60, 2**40, 3])
def test_more_tensors_than_fit_are_refused(count: int) -> None:
    infos = [raw_tensor(b"a", (8,)), raw_tensor(b"b", (8,), 0, 32)]
    errors = refusals(raw_header(tensors=infos, tensor_count=count))
    assert (errors[0].field, errors[0].offset) == ("n_tensors", 8)
    assert errors[1].field == ("n_tensors" if count >= 2**60 else "tensor 2")


@pytest.mark.parametrize("count", [2**64 - 1, 2**63, 2**60, 2**40, 2])
def test_more_metadata_than_fits_is_refused(count: int) -> None:
    errors = refusals(raw_header([raw_field(b"k", U8, b"\1")], field_count=count))
    assert (errors[0].field, errors[0].offset) == ("n_kv", 16)
    assert errors[1].field == ("n_kv" if count > FIELDS_MAX else "key 1")


@pytest.mark.parametrize("size", [2**64 - 1, 2**63, 2**40, KEY_MAX_BYTES + 1])
def test_a_key_that_claims_to_be_huge_is_refused(size: int) -> None:
    entry = raw_text(b"key", size) + struct.pack("<I", U8) + b"\1"
    assert {error.field for error in refusals(raw_header([entry]))} == {"key 0"}


@pytest.mark.parametrize("size", [2**64 - 1, 2**63, 2**62, VALUE_MAX + 1])
@pytest.mark.parametrize("in_array", [False, True])
def test_a_string_that_claims_to_be_huge_is_refused(size: int, *, in_array: bool) -> None:
    value = raw_text(b"short", size)
    entry = raw_field(b"s", ARRAY, raw_array(STRING, value, 1)) if in_array else raw_field(b"s", STRING, value)
    assert {error.field for error in refusals(raw_header([entry]))} == {"s"}


@pytest.mark.parametrize("element_type", [*SCALAR_SIZES, STRING])
@pytest.mark.parametrize("count", [2**64 - 1, 2**63 - 1, 2**61, 2**32, VALUE_MAX + 1])
def test_an_array_that_claims_to_be_huge_is_refused(element_type: int, count: int) -> None:
    entry = raw_field(b"a", ARRAY, raw_array(element_type, b"\1" * 16, count))
    assert {error.field for error in refusals(raw_header([entry]))} == {"a"}


def test_five_million_doubles_in_five_megabytes_are_refused() -> None:
    count = 5_000_000
    data = raw_header([raw_field(b"a", ARRAY, raw_array(F64, b"", count))])
    error = refusal(data, len(data) + count)
    assert error.field == "a"
    assert "cannot fit" in error.reason


@pytest.mark.parametrize("depth", [2, 20_000])
def test_nested_arrays_are_refused(depth: int) -> None:
    nest = struct.pack("<IQ", ARRAY, 1) * (depth - 1) + raw_array(U8, b"\1", 1)
    for error in refusals(raw_header([raw_field(b"a", ARRAY, nest)])):
        assert error.field == "a"
        assert "arrays of arrays" in error.reason


@pytest.mark.parametrize("value_type", [13, 14, 255, 2**31, 2**32 - 1])
@pytest.mark.parametrize("in_array", [False, True])
def test_an_unknown_value_type_is_refused(value_type: int, *, in_array: bool) -> None:
    value = raw_array(value_type, b"\1" * 64, 1)
    entry = raw_field(b"k", ARRAY, value) if in_array else raw_field(b"k", value_type, b"\1" * 64)
    for error in refusals(raw_header([entry])):
        assert error.field == "k"
        assert str(value_type) in error.reason


def test_a_duplicate_key_is_refused() -> None:
    entries = [raw_field(b"k", U8, b"\1"), raw_field(b"other", U8, b"\1"), raw_field(b"k", U32, b"\1\0\0\0")]
    error = refusal(raw_header(entries))
    assert error.field == "k"
    assert "twice" in error.reason


def test_an_empty_key_is_refused() -> None:
    assert refusal(raw_header([raw_field(b"", U8, b"\1")])).field == "key 0"


@pytest.mark.parametrize("key", [b"\xff\xfe", b"caf\xc3\xa9", b"a\0b", b"a\nb", b"\x1b[31m", b"a\x7f"])
def test_a_key_that_is_not_printable_ascii_is_refused(key: bytes) -> None:
    assert refusal(raw_header([raw_field(key, U8, b"\1")])).field == "key 0"


def test_token_strings_that_are_not_utf_8_are_kept_unchanged() -> None:
    tokens = [b"\xff\xfe", b"\xc3", b"", b"a\0b", b"plain"]
    source = MemorySource(file_bytes([array("tokenizer.ggml.tokens", ValueType.STRING, tokens)]))
    field = read_header(source).field("tokenizer.ggml.tokens")
    assert field is not None
    assert read_array(source, field) == tokens


@pytest.mark.parametrize(
    ("value_type", "value"),
    [
        *((U32, struct.pack("<I", number)) for number in (0, 3, 13, 33, 2**21, 2**31, 2**32 - 1)),
        (U64, struct.pack("<Q", 32)),
        (I32, struct.pack("<i", 32)),
        (F32, struct.pack("<f", 32.0)),
        (BOOL, b"\1"),
        (STRING, raw_text(b"32")),
        (ARRAY, raw_array(U32, struct.pack("<I", 32), 1)),
    ],
)
def test_an_alignment_that_is_not_a_power_of_two_up_to_a_mebibyte_is_refused(value_type: int, value: bytes) -> None:
    entry = raw_field(b"general.alignment", value_type, value)
    assert refusal(raw_file([entry], [raw_tensor(b"t")], b"\1" * 32)).field == "general.alignment"


@pytest.mark.parametrize("dimensions", [0, 5, 10**6, 2**31, 2**32 - 1])
def test_a_number_of_dimensions_outside_1_to_4_is_refused(dimensions: int) -> None:
    for error in refusals(one_tensor((1, 1, 1, 1, 1)[:dimensions], dimensions=dimensions)):
        assert error.field == "t"
        assert f"{dimensions} dimensions" in error.reason


@pytest.mark.parametrize("shape", [(0,), (4, 0), (0, 0, 0, 0), (4, 1, 1, 0)])
def test_a_dimension_of_zero_is_refused(shape: tuple[int, ...]) -> None:
    assert {error.field for error in refusals(one_tensor(shape))} == {"t"}


@pytest.mark.parametrize("shape", [(2**63,), (2**64 - 1,), (1, 2**63), (1, 1, 1, 2**64 - 1)])
@pytest.mark.parametrize("dtype_id", [0, 24])
def test_a_dimension_beyond_63_bits_is_refused(shape: tuple[int, ...], dtype_id: int) -> None:
    assert {error.field for error in refusals(one_tensor(shape, dtype_id))} == {"t"}


@pytest.mark.parametrize("shape", [(4194305, 4194305, 211106198978564), (2**32, 2**32), (2**32, 2**32, 2**32, 2**32)])
@pytest.mark.parametrize("dtype_id", [0, 24])
def test_a_product_that_wraps_in_64_bits_is_refused(shape: tuple[int, ...], dtype_id: int) -> None:
    assert {error.field for error in refusals(one_tensor(shape, dtype_id))} == {"t"}


def test_a_row_whose_stride_wraps_is_refused() -> None:
    assert {error.field for error in refusals(one_tensor((2**62,)))} == {"t"}


@pytest.mark.parametrize("dtype_id", [0, 24])
def test_a_size_that_wraps_when_it_is_padded_is_refused(dtype_id: int) -> None:
    assert {error.field for error in refusals(one_tensor((2**63 - 3,), dtype_id))} == {"t"}


@pytest.mark.parametrize(
    "dtype", [dtype for dtype in DTYPES.values() if dtype.block_elements > 1], ids=lambda dtype: dtype.name
)
def test_a_row_that_is_not_a_whole_number_of_blocks_is_refused(dtype: DType) -> None:
    block = dtype.block_elements
    for shape in ((block - 1,), (block + 1, block), (block // 2, 2), (1, block)):
        for error in refusals(one_tensor(shape, dtype.id)):
            assert error.field == "t"
            assert f"block of {block}" in error.reason


@pytest.mark.parametrize("dtype_id", [4, 5, 31, 32, 33, 36, 37, 38, 99, 2**31, 2**32 - 1])
def test_an_unknown_or_removed_tensor_type_that_no_offset_explains_is_refused(dtype_id: int) -> None:
    hidden = one_tensor((1,), dtype_id) + b"\1" * 4096  # more bytes than any type needs for one value
    for error in (*refusals(one_tensor((256,), dtype_id)), refusal(hidden)):
        assert error.field == "t"
        assert str(dtype_id) in error.reason


@pytest.mark.parametrize("offset", [2**64 - 1, 2**64 - 32, 2**63])
def test_an_offset_beyond_any_file_is_refused(offset: int) -> None:
    assert refusal(two_tensors(offset)).field == "b"
    assert {error.field for error in refusals(one_tensor((8,), 0, offset))} == {"t"}


@pytest.mark.parametrize("offset", [63, 65, 72, 16])
def test_a_misaligned_offset_is_refused(offset: int) -> None:
    error = refusal(two_tensors(offset))
    assert error.field == "b"
    assert "alignment" in error.reason


@pytest.mark.parametrize("offset", [0, 32])
def test_overlapping_tensors_are_refused(offset: int) -> None:
    error = refusal(two_tensors(offset))
    assert error.field == "b"
    assert "overlaps" in error.reason


@pytest.mark.parametrize("offset", [96, 128, 2**40])
def test_a_hole_between_tensors_is_refused(offset: int) -> None:
    error = refusal(two_tensors(offset))
    assert error.field == "b"
    assert "hole" in error.reason


def test_a_hole_before_the_first_tensor_is_refused() -> None:
    assert "hole" in refusal(raw_file(tensors=[raw_tensor(b"t", (1,), 0, 32)], data=b"\1" * 64)).reason


def test_a_duplicate_tensor_name_is_refused() -> None:
    infos = [raw_tensor(b"same", (8,)), raw_tensor(b"same", (8,), 0, 32)]
    error = refusal(raw_file(tensors=infos, data=b"\1" * 64))
    assert error.field == "same"
    assert "two tensors" in error.reason


def test_data_that_is_one_byte_short_is_refused() -> None:
    file = full_file()
    header = read_header(MemorySource(file))
    for size in range(header.data_offset, header.last_byte):
        error = refusal(file[:size])
        assert error.field == "c"
        assert error.offset == size


def test_a_trailing_archive_is_refused() -> None:
    stream = io.BytesIO(full_file())
    stream.seek(0, io.SEEK_END)
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr("evil.py", "print('run')")
    assert zipfile.is_zipfile(stream)
    assert "follow the last tensor" in refusal(stream.getvalue()).reason


@pytest.mark.parametrize("extra", [1, 2, 32, 4096, 2**40])
@pytest.mark.parametrize("data", [full_file(), file_bytes(every_value_type())], ids=["tensors", "no tensors"])
def test_bytes_after_the_last_padding_are_refused(data: bytes, extra: int) -> None:
    assert refusal(data, len(data) + extra).offset == len(data)


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b"a\0b",
        b"a" * 128,
        b"a" * 2**20,
        b"\x1b[2J\x1b[31mred",
        "\u202egnp.exe".encode(),
        "zero\u200bwidth".encode(),
        "caf\u00e9".encode(),
        "cafe\u0301".encode(),
        b"\xff\xfe",
        b"line\nbreak",
        b"tab\t",
        b"\x7f",
    ],
)
def test_tensor_names_that_are_not_1_to_127_printable_ascii_bytes_are_refused(name: bytes) -> None:
    for error in refusals(raw_file(tensors=[raw_tensor(name, (8,))], data=b"\1" * 32)):
        assert error.field == "tensor 0"
        assert str(error).isascii()


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
    assert len(read_header(MemorySource(full_file())).tensors) == 3
    assert len(read_header(MemorySource(two_tensors(64)[:-128])).tensors) == 2
    assert read_header(MemorySource(raw_file())).tensors == ()
