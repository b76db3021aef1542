"""Tests of the difference of an organ to a parent with the same tensor type."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.gguf.types import DTYPES, DType, dtype_by_name
from organs.registry.store.codec import decode_chunk, delta_codec, encode_chunk
from organs.registry.store.codec.delta import add_parent, subtract_parent
from organs.registry.store.codec.fast import Bytes
from organs.registry.store.codec.planes import CACHE_BLOCK_BYTES
from organs.registry.store.codec.stored import BlobChunk
from tests.random_files import PATIENT
from tests.store.codec_cases import odd_bytes

TYPES = list(DTYPES.values())
IDS = [dtype.name for dtype in TYPES]


def difference(dtype: DType, parent: Bytes, plain: Bytes) -> Bytes:
    """Return the residual of `plain`, after it was restored and compared."""
    residual, restored = np.empty_like(plain), np.full_like(plain, 0x55)
    subtract_parent(dtype, parent, plain, residual)
    add_parent(dtype, parent, residual, restored)
    assert np.array_equal(restored, plain)
    return residual


@PATIENT
@given(
    dtype=st.sampled_from(TYPES),
    blocks=st.integers(0, 300),
    seeds=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    odd=st.tuples(st.sampled_from([0.0, 0.1, 1.0]), st.sampled_from([0.0, 0.1, 1.0])),
)
def test_any_bytes_are_restored_with_any_parent(
    dtype: DType, blocks: int, seeds: tuple[int, int], odd: tuple[float, float]
) -> None:
    size = blocks * dtype.block_bytes
    difference(dtype, odd_bytes(size, seeds[0], odd[0]), odd_bytes(size, seeds[1], odd[1]))


@pytest.mark.parametrize("dtype", TYPES, ids=IDS)
def test_lengths_around_a_cache_block_are_restored_and_equal_bytes_leave_zeros(dtype: DType) -> None:
    for blocks in {1, *(CACHE_BLOCK_BYTES // 4 // dtype.block_bytes + more for more in (-1, 0, 1))} - {0}:
        parent = odd_bytes(blocks * dtype.block_bytes, blocks)
        difference(dtype, parent, odd_bytes(len(parent), 7))
        assert not difference(dtype, parent, parent.copy()).any()


@pytest.mark.parametrize("name", ["BF16", "F16"])
def test_every_pair_of_neighbours_and_opposites_of_16_bits_is_restored(name: str) -> None:
    every = np.arange(65_536, dtype="<u2")
    for other in (np.roll(every, 1), np.roll(every, -1), every ^ 0x8000, every[::-1].copy(), every & 0x7F80):
        difference(dtype_by_name(name), other.view(np.uint8), every.view(np.uint8))


@pytest.mark.parametrize("dtype", TYPES, ids=IDS)
@pytest.mark.parametrize("blocks", [1, 300])
@pytest.mark.parametrize("differ", [False, True])
def test_a_chunk_is_encoded_with_its_parent_and_decoded(differ: bool, blocks: int, dtype: DType) -> None:
    codec = delta_codec(dtype.name)
    parent = odd_bytes(blocks * dtype.block_bytes, 3)
    plain = parent.copy()
    plain[:: 5 * dtype.block_bytes] += differ
    chunk = encode_chunk(codec, plain.data, parent.data)
    assert chunk.stored_size_bytes < len(plain) / 2 or blocks == 1
    out = bytearray(len(plain))
    where = BlobChunk("a test", 0, 0, len(plain), chunk.entry)
    decode_chunk(codec, where, b"".join(chunk.pieces), memoryview(out), parent.data)
    assert out == plain.tobytes()
