"""Tests of metadata as JSON: exact with types, by documented rules without types."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given

from organs.ingest.directory import manifest
from organs.ingest.directory.manifest import (
    MANIFEST_LIMITS,
    READABLE_MAX_VALUES,
    TENSORS_MAX,
    TensorLine,
    key_value,
    manifest_lines,
    plain_key_value,
    readable_metadata,
    same_metadata,
)
from organs.registry.digest import Digest
from organs.registry.documents import Outline
from organs.registry.gguf import KeyValue, MemorySource, TensorSpec, ValueType, dtype_by_name, read_header
from organs.registry.measures import MEASURE_NAMES
from tests.gguf_files import array, file_bytes, text
from tests.random_files import PATIENT, metadata

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


def test_values_that_json_lacks_are_written_as_words() -> None:
    infinities = array("a", ValueType.FLOAT64, [math.nan, math.inf, -math.inf, 0.5])
    (shown,) = readable_of([infinities])
    assert shown == {"key": "a", "type": "array of float64", "value": ["NaN", "Infinity", "-Infinity", 0.5]}


def test_a_value_over_the_limits_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "READABLE_MAX_VALUES", 10)
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
        ("array of array of uint8", [[1]], "is not a type"),
        ("array of uint8", 1, "must be a list"),
        ("uint8", 256, "out of the range"),
        ("int8", -129, "out of the range"),
        ("uint8", 1.0, "not a valid uint8"),
        ("uint8", True, "not a valid uint8"),
        ("uint8", "1", "not a valid uint8"),
        ("bool", 256, "out of the range"),
        ("float32", 1e39, "out of the range"),
        ("float32", 10**400, "out of the range"),
        ("float64", None, "not a valid float64"),
        ("string", 1, "must be a text"),
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
        ("a", 2**32 - 1, UNSIGNED, None),
        ("a", 2**32, ValueType.UINT64, None),
        ("a", -1, SIGNED, None),
        ("a", -(2**31) - 1, ValueType.INT64, None),
        ("a", 1.5, FLOAT, None),
        ("a", 1e300, ValueType.FLOAT64, None),
        ("a", [], ARRAY, TEXT),
        ("a", [True, False], ARRAY, TRUTH),
        ("a", [1, -2], ARRAY, SIGNED),
        ("a", [2**31, -1], ARRAY, ValueType.INT64),
        ("a", [2**63], ARRAY, ValueType.UINT64),
        ("a", [1, 0.5], ARRAY, FLOAT),
        ("general.alignment", 64, UNSIGNED, None),
        ("split.no", 0, ValueType.UINT16, None),
        ("split.tensors.count", 7, SIGNED, None),
        ("adapter.lora.alpha", 16, FLOAT, None),
        ("llama.attention.layer_norm_rms_epsilon", 0, FLOAT, None),
        ("tokenizer.ggml.bos_token_id", 1, UNSIGNED, None),
        ("tokenizer.ggml.add_bos_token", 1, TRUTH, None),
        ("tokenizer.ggml.scores", [0, -1], ARRAY, FLOAT),
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


@pytest.mark.long
def test_the_largest_manifests_that_we_write_can_be_read() -> None:
    spec = TensorSpec("v.blk.12345.a_tensor_with_a_name_of_63_characters_in_all.weight", (4096, 14336, 160), F16)
    measures = dict.fromkeys(MEASURE_NAMES, 182.7364519283746)
    written = TensorLine.of(spec, "other/" + "x" * 90 + ".bin", 4095, 2**40, Digest("ab" * 32)).measured(measures)
    (line,) = [line for line in manifest_lines("llama", [], [written]) if "sha256" in line]
    tensors = b"[" + b",".join([line.encode()] * TENSORS_MAX) + b"]"
    words = json.dumps(["ab"] * READABLE_MAX_VALUES).encode()
    numbers = json.dumps([127] * READABLE_MAX_VALUES).encode()
    for parts in ([tensors], [words], [numbers], [tensors, words]):
        outline = Outline()
        for part in parts:
            outline.add(part)
        assert outline.refusal(MANIFEST_LIMITS) is None, len(parts[0])
    assert sum(map(len, (tensors, words))) < MANIFEST_LIMITS.size_bytes
