"""Tests of metadata as JSON: exact with types, by documented rules without types."""

from __future__ import annotations

import json
import math
import tracemalloc
from typing import Any

import pytest
from hypothesis import given

from organs.ingest.directory import jsontext
from organs.ingest.directory import metadata as readable
from organs.ingest.directory.jsontext import (
    DEPTH_MAX,
    KEYS_MAX,
    MANIFEST_MAX_BYTES,
    Outline,
    parse_json,
)
from organs.ingest.directory.manifest import TENSORS_MAX, WrittenTensor, manifest_lines, plain_key_value
from organs.ingest.directory.metadata import READABLE_MAX_VALUES, key_value, readable_metadata, same_metadata
from organs.registry import json_signs
from organs.registry.digest import Digest
from organs.registry.gguf import KeyValue, MemorySource, TensorSpec, ValueType, dtype_by_name, read_header
from organs.registry.measures import MEASURE_NAMES
from tests.gguf_files import array, every_value_type, file_bytes, raw_field, raw_file, text, vocabulary
from tests.random_files import PATIENT, metadata
from tests.small_models import token_array

F16 = dtype_by_name("F16")


def readable_of(entries: list[KeyValue]) -> list[dict[str, Any]]:
    source = MemorySource(file_bytes(entries))
    return readable_metadata(source, read_header(source))


@given(metadata())
@PATIENT
def test_any_metadata_reads_back_from_json_bit_for_bit(entries: list[KeyValue]) -> None:
    for entry, shown in zip(entries, json.loads(json.dumps(readable_of(entries))), strict=True):
        back = key_value(shown["key"], shown["type"], shown["value"])
        assert back.encode() == entry.encode() or _has_nan(entry)


def _has_nan(entry: KeyValue) -> bool:
    values = entry.value if isinstance(entry.value, list) else [entry.value]
    return any(isinstance(value, float) and math.isnan(value) for value in values)


def test_a_vocabulary_with_odd_bytes_reads_back() -> None:
    entries = [*every_value_type(), token_array(vocabulary(3_000)), text("raw", b"\xff\xfe"), text("a", "\0\n\u2028")]
    for entry, shown in zip(entries, json.loads(json.dumps(readable_of(entries))), strict=True):
        assert key_value(shown["key"], shown["type"], shown["value"]).encode() == entry.encode()


def test_values_that_json_lacks_are_written_as_words() -> None:
    infinities = array("a", ValueType.FLOAT64, [math.nan, math.inf, -math.inf, 0.5])
    (shown,) = readable_of([infinities])
    assert shown == {"key": "a", "type": "array of float64", "value": ["NaN", "Infinity", "-Infinity", 0.5]}


def test_an_odd_boolean_stays_a_number() -> None:
    source = MemorySource(raw_file([raw_field(b"a", 7, b"\7")]))
    (shown,) = readable_metadata(source, read_header(source))
    assert shown == {"key": "a", "type": "bool", "value": 7}
    assert key_value("a", "bool", 7).encode() == raw_field(b"a", 7, b"\7")


def test_a_value_over_the_limits_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readable, "READABLE_MAX_VALUES", 10)
    shown = readable_of(
        [array("few", ValueType.UINT8, [1] * 9), array("many", ValueType.UINT8, [1] * 9), text("a", "b")]
    )
    assert [entry["key"] for entry in shown if "value" in entry] == ["few", "a"]
    whole = [{**entry, "value": entry.get("value", [1] * 9)} for entry in shown]
    assert same_metadata(whole, shown)
    assert not same_metadata([{**shown[0], "value": [2] * 9}, *shown[1:]], whole)
    assert not same_metadata(shown[1:], shown)


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("uint9", 1, "is not a type"),
        ("array", [1], "is not a type"),
        ("array of array of uint8", [[1]], "is not a type"),
        ("array of uint8", 1, "must be a list"),
        ("uint8", 256, "out of the range"),
        ("int8", -129, "out of the range"),
        ("uint64", 2**64, "out of the range"),
        ("uint8", -1, "out of the range"),
        ("uint8", 1.0, "not a valid uint8"),
        ("uint8", True, "not a valid uint8"),
        ("uint8", "1", "not a valid uint8"),
        ("bool", "yes", "not a valid bool"),
        ("bool", 256, "out of the range"),
        ("float32", "big", "not a valid float32"),
        ("float32", 1e39, "out of the range"),
        ("float32", 10**400, "out of the range"),
        ("float64", None, "not a valid float64"),
        ("string", 1, "must be a text"),
        ("string", {"base64": 1}, "must be a text"),
        ("string", {"base64": "a", "b": 1}, "must be a text"),
        ("string", {"base64": "!"}, "base64"),
        ("string", "\ud800", "surrogates"),
        ("array of string", ["a", 1], "must be a text"),
    ],
)
def test_a_value_that_does_not_fit_its_type_is_refused(kind: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        key_value("a", kind, value)


@pytest.mark.parametrize("key", ["", "é", "a\n", "x" * 65_536])
def test_an_invalid_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="printable ASCII"):
        key_value(key, "uint8", 1)
    with pytest.raises(ValueError, match="printable ASCII"):
        plain_key_value(key, 1)


UNSIGNED, SIGNED, TEXT = ValueType.UINT32, ValueType.INT32, ValueType.STRING
TRUTH, FLOAT, ARRAY = ValueType.BOOL, ValueType.FLOAT32, ValueType.ARRAY


@pytest.mark.parametrize(
    ("key", "value", "kind", "element"),
    [
        ("a", "text", TEXT, None),
        ("a", True, TRUTH, None),
        ("a", 0, UNSIGNED, None),
        ("a", 2**32 - 1, UNSIGNED, None),
        ("a", 2**32, ValueType.UINT64, None),
        ("a", -1, SIGNED, None),
        ("a", -(2**31) - 1, ValueType.INT64, None),
        ("a", 1.5, FLOAT, None),
        ("a", 1e300, ValueType.FLOAT64, None),
        ("a", [], ARRAY, TEXT),
        ("a", ["x", "y"], ARRAY, TEXT),
        ("a", [True, False], ARRAY, TRUTH),
        ("a", [1, -2], ARRAY, SIGNED),
        ("a", [2**31], ARRAY, UNSIGNED),
        ("a", [2**31, -1], ARRAY, ValueType.INT64),
        ("a", [2**63], ARRAY, ValueType.UINT64),
        ("a", [1, 0.5], ARRAY, FLOAT),
        ("general.alignment", 64, UNSIGNED, None),
        ("general.file_type", 1.0, UNSIGNED, None),
        ("split.no", 0, ValueType.UINT16, None),
        ("split.tensors.count", 7, SIGNED, None),
        ("adapter.lora.alpha", 16, FLOAT, None),
        ("llama.attention.layer_norm_rms_epsilon", 0, FLOAT, None),
        ("llama.rope.freq_base", 10_000, FLOAT, None),
        ("tokenizer.ggml.bos_token_id", 1, UNSIGNED, None),
        ("tokenizer.ggml.add_bos_token", 1, TRUTH, None),
        ("tokenizer.ggml.scores", [0, -1], ARRAY, FLOAT),
        ("tokenizer.ggml.token_type", [1, 3], ARRAY, SIGNED),
        ("tokenizer.ggml.merges", [], ARRAY, TEXT),
        ("general.file_type", "mostly F16", TEXT, None),
        ("a", {"type": "int8", "value": 3}, ValueType.INT8, None),
    ],
)
def test_a_plain_value_gets_the_documented_type(
    key: str, value: Any, kind: ValueType, element: ValueType | None
) -> None:
    entry = plain_key_value(key, value)
    assert (entry.type, entry.element_type) == (kind, element)
    source = MemorySource(file_bytes([entry] if key != "general.alignment" else [], alignment=32))
    read_header(source)


@pytest.mark.parametrize("value", [None, {}, [[1]], [1, "a"], [True, 1], [None], 2**64, -(2**63) - 1, [2**63, -1]])
def test_a_plain_value_without_a_gguf_type_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"not a text|kinds|64 bits|range"):
        plain_key_value("a", value)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"{} {}", "not JSON"),
        (b'{"a": 1, "a": 2}', "appears twice"),
        (b"NaN", "NaN is not JSON"),
        (b"[-Infinity]", "not JSON"),
        (b'{"a": "\xff"}', "not UTF-8"),
        ("[1]".encode("utf-16"), r"not UTF-8|no JSON"),
        (b"[" * (DEPTH_MAX + 1), "nested deeper"),
        (b"[" * 500_000, "nested deeper"),
        (b'{"a":' * 100_000, "nested deeper"),
        (b"[" + b"{}," * 2_000_000 + b"0]", "of memory"),
        (b"{" + b",".join(b'"%x":0' % number for number in range(KEYS_MAX + 100)) + b"}", "different keys"),
        (b" " * (MANIFEST_MAX_BYTES + 1), "at most"),
        (b"1" * 5_000, "digits"),
        (b'"' + b'\\"' * 1_000_000, "not JSON"),
        (b'"' * 1_000_001, "not JSON"),
    ],
)
def test_invalid_or_too_large_json_is_refused_in_a_sentence(data: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        parse_json(data)
    assert len(str(caught.value)) < 300


SHAPES: dict[str, bytes] = {
    "objects": b"{},",
    "lists": b"[],",
    "nested lists": b"[[[[]]]],",
    "objects with one member": b'{"a":0},',
    "objects with eight members": b'{"a":0,"b":1,"c":2,"d":3,"e":4,"f":5,"g":6,"h":7},',
    "objects of texts": b'{"name":"blk.0","file":"blk_0.bin"},',
    "lists of one text": b'["ab"],',
    "texts": b'"ab",',
    "whole numbers": b"999,",
    "numbers": b"0.5,",
    "nulls": b"null,",
    "spaces": b"{ } , ",
}


def peak_bytes(data: bytes) -> tuple[int, str]:
    """Return the peak memory of parsing `data` besides `data` itself, and the reason of a refusal, if any."""
    tracemalloc.start()
    try:
        parse_json(data)
    except ValueError as error:
        return tracemalloc.get_traced_memory()[1], str(error)
    else:
        return tracemalloc.get_traced_memory()[1], ""
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("shape", SHAPES)
def test_reading_any_manifest_stays_within_the_memory_limit(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = 2_000_000
    monkeypatch.setattr(jsontext, "PARSED_MAX_BYTES", limit)
    monkeypatch.setattr(jsontext, "PARSED_MAX_RATIO", 0)
    monkeypatch.setattr(json_signs, "CHUNK_BYTES", 4096)
    taken, accepted = 0, 0
    for count in (int(1_000 * 1.25**step) for step in range(40)):
        data = b"[" + SHAPES[shape] * count + b"0]"
        peak, refused = peak_bytes(data)
        if refused:
            assert "of memory" in refused
            assert peak < 100_000 + len(data), "and it is refused before anything is built"
            break
        taken, accepted = peak, len(data)
    assert 0 < taken < 1.3 * limit + 2 * accepted, "the text itself besides, and what of it is being turned into text"
    assert taken > limit / 6, "nor is much less refused"


@pytest.mark.long
def test_the_largest_manifests_that_we_write_can_be_read() -> None:
    spec = TensorSpec("v.blk.12345.a_tensor_with_a_name_of_63_characters_in_all.weight", (4096, 14336, 160), F16)
    measures = dict.fromkeys(MEASURE_NAMES, 182.7364519283746)
    written = WrittenTensor(spec, "other/" + "x" * 90 + ".bin", 4095, 2**40, Digest("ab" * 32), measures)
    (line,) = [line for line in manifest_lines("llama", [], [written]) if "sha256" in line]
    tensors = b"[" + b",".join([line.encode()] * TENSORS_MAX) + b"]"
    words = json.dumps(["ab"] * READABLE_MAX_VALUES).encode()
    numbers = json.dumps([127] * READABLE_MAX_VALUES).encode()
    for parts in ([tensors], [words], [numbers], [tensors, words]):
        outline = Outline()
        for part in parts:
            outline.add(part)
        assert outline.refusal() is None, len(parts[0])
    assert sum(map(len, (tensors, words))) < MANIFEST_MAX_BYTES


@pytest.mark.parametrize("begin", range(6))
def test_brackets_within_text_across_chunks_are_not_counted(begin: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_signs, "CHUNK_BYTES", 7)
    value = [" " * begin, '[{",:\\', '\\"' * 20, {"\\": "]", 'a\\"[': ["{" * 50, "\\" * 30]}, "é[" * 9, ""]
    data = json.dumps(value, ensure_ascii=False).encode()
    outline = Outline()
    assert outline.add(data) == b"[{[]}]"
    assert json_signs.json_signs(data) == b"[,,,{:,:[,]},,]"
    assert (outline.objects, outline.lists, outline.members, outline.empty) == (1, 2, 2, 0)
    assert parse_json(data) == value


def test_brackets_and_commas_within_text_are_not_counted() -> None:
    hostile = '[[[[[[[[[[[[[[[[[[{,\\",' * 100
    assert parse_json(json.dumps([hostile]).encode()) == [hostile]
    assert parse_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}, "a byte order mark is forgiven"
