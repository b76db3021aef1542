"""Tests of files that the GGUF parser must refuse, and of the cost of a refusal.

A refusal is `BadGguf` with the file, the field and the offset. It reads at most two windows and uses at most 64 MB of
memory, for any claims of the file: sources of exabytes without bytes test this.
"""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from organs.registry.errors import BadGguf
from organs.registry.gguf import MemorySource, ValueType, read_header
from organs.registry.gguf.tokenizer import tokenizer_reasons
from tests.faults.hostile.headers import BAD_HEADERS, WHOLE
from tests.gguf_files import (
    SparseSource,
    array,
    every_value_type,
    file_bytes,
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


def test_a_file_truncated_at_every_byte_is_refused() -> None:
    header = read_header(MemorySource(WHOLE))
    for size in range(header.last_byte):
        error = refusal(WHOLE[:size])
        assert error.offset <= size
        assert size < header.data_offset or (error.field, error.offset) == ("c", size)


@pytest.mark.parametrize("extra", [1, 2, 32, 4096, 2**40])
@pytest.mark.parametrize("data", [WHOLE, file_bytes(every_value_type())], ids=["tensors", "no tensors"])
def test_bytes_after_the_last_padding_are_refused(data: bytes, extra: int) -> None:
    assert refusal(data, len(data) + extra).offset == len(data)


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
    source = MemorySource(file_bytes([tokens, array(key, element_type, [1, 1])]))
    (reason,) = tokenizer_reasons(source, read_header(source))
    assert key in reason
    assert element_type.name in reason


@pytest.mark.parametrize("token", [b"<0x-1>", b"<0x>", b"<0xZZ>", b"<0x100>", b"0x41", b"<0x4", b"", b"\xff"])
def test_invalid_byte_tokens_are_flagged(token: bytes) -> None:
    tokens = array("tokenizer.ggml.tokens", ValueType.STRING, [b"<0x41>", token, b"plain"])
    types = array("tokenizer.ggml.token_type", ValueType.INT32, [6, 6, 1])
    source = MemorySource(file_bytes([tokens, types]))
    (reason,) = tokenizer_reasons(source, read_header(source))
    assert repr(token) in reason


MANY = """
import os, resource
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # each further thread would reserve memory of its own
resource.setrlimit(resource.RLIMIT_AS, (1_000_000_000, 1_000_000_000))
resource.setrlimit(resource.RLIMIT_CPU, (12, 12))
from organs.registry.gguf import padded, read_header
from tests.gguf_files import SparseSource, assert_invariants, raw_header, raw_tensor
count = 200_000
front = raw_header(tensors=(raw_tensor(b"blk.%d.ffn_up.weight" % index, (8,), 0, 32 * index) for index in range(count)))
source = SparseSource(front, padded(len(front), 32) + 32 * count)
header = read_header(source)
assert_invariants(header)
print(len(header.tensors), source.furthest - len(front) <= 1 << 20)
"""


def test_two_hundred_thousand_tensors_are_read_within_12_seconds_and_a_gigabyte() -> None:
    done = subprocess.run([sys.executable, "-c", MANY], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["200000", "True"]
