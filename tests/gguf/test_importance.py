"""Tests of importance matrices: both formats of files, and files that are none."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from organs.registry.errors import BadInput
from organs.registry.gguf import MemorySource, TensorSpec, dtype_by_name
from organs.registry.gguf.importance import read_importances
from organs.registry.gguf.quants import decode, encode, encode_weighted
from tests.gguf_files import F32, SparseSource, file_bytes, importance_file, importance_records, text

MATRIX = {
    "blk.0.ffn_up.weight": np.arange(64, dtype=np.float32),
    "blk.0.ffn_up_exps.weight": np.arange(96, dtype=np.float32).reshape(3, 32),
}


@pytest.mark.parametrize("made", [importance_file, importance_records])
def test_both_formats_have_the_mean_square_of_each_column(made) -> None:  # type: ignore[no-untyped-def]
    matrix = read_importances(MemorySource(made(MATRIX)))
    for name, values in MATRIX.items():
        np.testing.assert_allclose(matrix.by_tensor[name], values.reshape(-1), rtol=1e-6)
    stack = "blk.0.ffn_up_exps.weight"
    np.testing.assert_array_equal(matrix.of(stack, 32, 2), matrix.by_tensor[stack][64:])
    fits = {(32, 5, 3): True, (32, 5, 2): False, (32, 5, 4): False, (48, 5, 2): True, (96, 5): True, (36, 5): False}
    assert {shape: matrix.fits(stack, shape) for shape in fits} == fits
    assert not matrix.fits("output.weight", (32, 5))


def test_an_expert_that_was_never_used_weighs_all_columns_alike() -> None:
    sums = (TensorSpec("up.in_sum2", (2, 2), F32), np.array([6, 9, 0, 0], "<f4").tobytes())
    counts = (TensorSpec("up.counts", (1, 2), F32), np.array([3, 0], "<f4").tobytes())
    found = read_importances(MemorySource(file_bytes([text("general.type", "imatrix")], [sums, counts])))
    np.testing.assert_array_equal(found.by_tensor["up"], [2, 3, 1, 1])


def test_encoding_by_importances_makes_the_important_columns_exact() -> None:
    rows = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    weights = np.where(np.arange(256) % 8 == 0, 1000.0, 0.001).astype(np.float32)
    kind = dtype_by_name("Q4_K")
    errors = [
        np.abs(decode(data, kind).reshape(rows.shape) - rows)[:, ::8].mean()
        for data in (encode_weighted(rows, kind, weights), encode(rows.reshape(-1), kind))
    ]
    assert errors[0] < 0.7 * errors[1]


def _records(*records: tuple[bytes, int, int, bytes], count: int | None = None) -> bytes:
    parts = [struct.pack("<i", len(records) if count is None else count)]
    for name, calls, size, data in records:
        parts.append(struct.pack("<i", len(name)) + name + struct.pack("<ii", calls, size) + data)
    return b"".join(parts)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "ends in the middle"),
        (b"\x01\x00\x00\x00", "has the number 1"),
        (_records((b"up", 1, 2, bytes(4))), "ends in the middle"),
        (_records((b"up", 1, -1, bytes(4))), "has the number -1"),
        (_records((b"up", 1, 2**30, bytes(4))), "has the number|ends in the middle"),
        (_records(count=2**31 - 1), "has the number"),
        (_records(), "no tensor has sums"),
        (_records((b"up", 1, 1, np.array([-1], "<f4").tobytes())), "negative, or larger"),
        (_records((b"up", 1, 1, np.array([np.inf], "<f4").tobytes())), "negative, or larger"),
        (file_bytes([], [(TensorSpec("up.in_sum2", (2,), F32), bytes(8))]), "no counts for the sums of up"),
        (importance_file(MATRIX)[:-40], "short"),
    ],
)
def test_other_files_are_refused(data: bytes, reason: str) -> None:
    with pytest.raises(BadInput, match=reason):
        read_importances(MemorySource(data))


def test_a_huge_file_is_refused_before_it_is_read() -> None:
    source = SparseSource(b"", 1 << 40)
    with pytest.raises(BadInput, match="more than an importance matrix has"):
        read_importances(source)
    assert source.read_bytes == 0
