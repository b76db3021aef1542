"""Tests of safetensors files: values as they are stored, and hostile headers."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from organs.ingest.safetensors import SafetensorsFile
from organs.registry.errors import BadSource
from tests.ingest.peft_folders import safetensors_bytes

ENTRY: dict[str, Any] = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def file_with(header: object, data: bytes = bytes(24), size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + data


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(data)
    return path


def test_values_are_read_as_they_are_stored_and_bf16_becomes_float32(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4) / 7
    upper = (np.array([1.0, -2.5, 3.0e38, 1.0e-40, np.inf], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    weights = {"a": values, "b": values.astype(np.float16), "c": upper}
    with SafetensorsFile(written(tmp_path, safetensors_bytes(weights, {"c": "BF16"}))) as file:
        entries = [(entry.dtype, entry.shape) for entry in file.entries.values()]
        assert entries == [("F32", (3, 4)), ("F16", (3, 4)), ("BF16", (5,))]
        assert np.array_equal(file.read(file.entries["a"], 4, 12), values.ravel()[4:])
        assert np.array_equal(file.read(file.entries["b"], 0, 3), values.astype(np.float16).ravel()[:3])
        read = file.read(file.entries["c"], 0, 5)
    assert read.dtype == np.float32
    assert np.array_equal(read.view(np.uint32), upper.astype(np.uint32) << 16)


HOSTILE = {
    "an empty file": (b"", "0 bytes are too few"),
    "a length beyond the file": (file_with({}, size=1000), "its header states a length of 1000 bytes; at most 26"),
    "the largest length": (file_with({}, size=2**64 - 1), "its header states a length of 18446744073709551615 bytes"),
    "no JSON": (file_with(b"pickle"), "not JSON"),
    "deep nesting": (file_with(b"[" * 5000), "nested deeper than"),
    "an unknown type": (file_with({"a": {**ENTRY, "dtype": "F7"}}), "the unknown type 'F7'"),
    "no shape": (file_with({"a": {"dtype": "F32", "data_offsets": [0, 24]}}), "missing required field `shape`"),
    "a length that is a truth value": (file_with({"a": {**ENTRY, "shape": [True]}}), "Expected `int`, got `bool`"),
    "a negative length": (file_with({"a": {**ENTRY, "shape": [-2, -3]}}), "Expected `int` >= 0"),
    "too many dimensions": (file_with({"a": {**ENTRY, "shape": [1] * 9}}), "length <= 8"),
    "a product beyond 64 bits": (file_with({"a": {**ENTRY, "shape": [2**62, 2**62]}}), "24 bytes, but its shape"),
    "another size": (file_with({"a": {**ENTRY, "shape": [2, 4]}}), "24 bytes, but its shape and type need 32"),
    "a negative size": (file_with({"a": {**ENTRY, "data_offsets": [24, 0]}}), "has -24 bytes"),
    "an offset beyond the file": (file_with({"a": {**ENTRY, "data_offsets": [24, 48]}}), "does not begin where"),
    "an overlap": (file_with({"a": ENTRY, "b": ENTRY}), "'b' does not begin where the tensor before it ends"),
    "bytes after the tensors": (file_with({"a": ENTRY}, bytes(25)), "its tensors end at byte"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_header_is_refused_before_memory_is_used(tmp_path: Path, case: str) -> None:
    data, reason = HOSTILE[case]
    path = written(tmp_path, data)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError) as caught:  # noqa: PT011  # the text is compared next
            SafetensorsFile(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert reason in str(caught.value)
    assert peak < 4_000_000


def test_a_path_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSource, match="not a regular file"):
        SafetensorsFile(tmp_path)
