"""Tests of round trips of the codecs for any tensor type, length and content."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.errors import EncodingFault
from organs.registry.store.codec import BYTES_CODEC, Codec, chunks, codec_for, delta_codec, derive_codec, encode_chunk
from organs.registry.store.codec.chunks import (
    LENT_MIN_BYTES,
    lend,
)
from organs.registry.store.codec.entropy import compress_plane
from organs.registry.store.codec.planes import (
    CACHE_BLOCK_BYTES,
    CHUNK_TARGET_BYTES,
    NAME_MAX_BYTES,
    Bytes,
    Coder,
    split_planes,
)
from tests.random_files import PATIENT
from tests.store.codec_cases import ALL_CODECS, CODEC_IDS, load, noise, skewed, store, weights

CONTENTS: dict[str, Callable[[int, int], bytes]] = {
    "noise": noise,
    "skewed": skewed,
    "zeros": lambda size_bytes, _: bytes(size_bytes),
    "ones": lambda size_bytes, _: b"\xff" * size_bytes,
    "counting": lambda size_bytes, seed: bytes((seed + index) % 256 for index in range(size_bytes)),
}


@pytest.mark.parametrize("codec", ALL_CODECS, ids=CODEC_IDS)
def test_planes_cover_the_block_and_chunks_are_whole_blocks_of_about_4_mib(codec: Codec) -> None:
    assert sum(plane.size_bytes for plane in codec.planes) == codec.block_bytes
    assert codec.chunk_bytes % codec.block_bytes == 0
    assert CHUNK_TARGET_BYTES * 3 // 4 < codec.chunk_bytes <= CHUNK_TARGET_BYTES
    if codec.dtype is not None:
        assert codec.chunk_bytes % delta_codec(codec.dtype.name).chunk_bytes == 0
    assert len({plane.name for plane in codec.planes}) == len(codec.planes)
    assert codec.name.isascii()
    assert len(codec.name) <= NAME_MAX_BYTES


def test_only_types_without_fields_share_a_codec_name() -> None:
    names = [codec.name for codec in ALL_CODECS if codec.name != "opaque"]
    assert len(set(names)) == len(names) >= 18


@PATIENT
@given(
    codec=st.sampled_from(ALL_CODECS),
    blocks=st.integers(0, 300),
    content=st.sampled_from(sorted(CONTENTS)),
    seed=st.integers(0, 2**32 - 1),
    raw=st.booleans(),
)
def test_any_content_of_any_length_reads_back(codec: Codec, blocks: int, content: str, seed: int, raw: bool) -> None:
    plain = CONTENTS[content](blocks * codec.block_bytes, seed)
    assert load(store(codec.kept_raw() if raw else codec, plain), plain) == plain


@pytest.mark.parametrize("codec", {codec.name: codec for codec in ALL_CODECS}.values(), ids=lambda codec: codec.name)
def test_lengths_around_a_cache_block_and_a_chunk_read_back(codec: Codec) -> None:
    cache_block = CACHE_BLOCK_BYTES // codec.block_bytes
    chunk = codec.chunk_bytes // codec.block_bytes
    for blocks in (cache_block - 1, cache_block, cache_block + 1, chunk, chunk + 1):
        plain = skewed(blocks * codec.block_bytes)
        assert load(store(codec, plain), plain) == plain


@pytest.mark.parametrize(
    "bits",
    [0x00000000, 0x80000000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x00000001],
    ids=["zero", "minus_zero", "minus_inf", "nan_payload", "all_ones", "denormal"],
)
@pytest.mark.parametrize("dtype_name", ["BF16", "F16", "F32", "F64"])
def test_equal_special_floats_read_back_and_compress_to_almost_nothing(dtype_name: str, bits: int) -> None:
    codec = codec_for(dtype_name)
    value = (bits << 32).to_bytes(8, "little")[-codec.block_bytes :]
    plain = value * 300_000
    stored = store(codec, plain)
    assert load(stored, plain) == plain
    assert len(stored) < len(plain) / 500


def test_memory_that_is_not_aligned_is_encoded_and_decoded() -> None:
    plain = weights("F32", 10_000)
    shifted = memoryview(b"x" + plain)[1:]
    assert encode_chunk(codec_for("F32"), shifted) == encode_chunk(codec_for("F32"), plain)


def test_q4_k_scales_are_transposed_and_quants_stay_together() -> None:
    codec = codec_for("Q4_K")
    plain = np.frombuffer(bytes(range(144)) + bytes(range(100, 244)), np.uint8)
    planes: list[Bytes] = [np.empty(size, np.uint8) for size in codec.plane_sizes_bytes(288)]
    split_planes(codec, plain, planes)
    assert [plane.tolist() for plane in planes[:4]] == [[0, 100], [1, 101], [2, 102], [3, 103]]
    assert planes[4].tolist() == [value for byte in range(4, 16) for value in (byte, byte + 100)]
    assert planes[5].tolist() == [*range(16, 144), *range(116, 244)]


def test_threads_do_not_disturb_each_other() -> None:
    derived = derive_codec("Q4_K", "BF16")

    def round_trips(seed: int) -> None:
        codec = ALL_CODECS[seed % len(ALL_CODECS)]
        plain = skewed(3000 * codec.block_bytes, seed)
        assert load(store(codec, plain), plain) == plain
        if codec.dtype is not None:  # an encoder decodes what it made, and fails if the bytes differ
            store(delta_codec(codec.dtype.name), plain, skewed(len(plain), seed + 1))
        quants = skewed(1000 * derived.block_bytes, seed)
        store(derived, quants, skewed(derived.source_bytes(len(quants)), seed + 1))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(round_trips, range(len(ALL_CODECS))))


@pytest.mark.parametrize(
    ("codec", "damage"),
    [
        (codec_for("BF16"), "another frame"),
        (codec_for("BF16"), "half a frame"),
        (codec_for("BF16"), "a raw plane changed"),
        (codec_for("IQ2_XXS"), "another frame"),
        (BYTES_CODEC, "another frame"),
        (BYTES_CODEC, "half a frame"),
    ],
)
def test_a_faulty_encoder_is_detected_before_anything_is_written(
    monkeypatch: pytest.MonkeyPatch, codec: Codec, damage: str
) -> None:
    def err(plane: Bytes, coder: Coder, room: Bytes) -> int | None:
        length = compress_plane(plane, coder, room)
        if length is None:
            plane[0] ^= damage == "a raw plane changed"
            return None
        if damage == "another frame":
            return compress_plane(np.roll(plane, 1), coder, room)
        return length // 2 if damage == "half a frame" else length

    monkeypatch.setattr(chunks, "compress_plane", err)
    plain = weights("BF16", 66_000) if codec.name == "bf16-planes" else skewed(66_000)
    with pytest.raises(EncodingFault, match=codec.name):
        encode_chunk(codec, plain)


@pytest.mark.long
def test_stored_bytes_do_not_change_while_other_chunks_are_encoded() -> None:
    codec = codec_for("BF16")
    size = codec.chunk_bytes
    plain = [skewed(size, seed) for seed in range(12)]
    encoded = [encode_chunk(codec, part) for part in plain]
    assert [b"".join(chunk.pieces) for chunk in encoded] == [
        b"".join(encode_chunk(codec, part).pieces) for part in plain
    ]


def test_memory_is_reused_only_after_every_view_of_it_is_gone() -> None:
    first = lend(LENT_MIN_BYTES)
    address = np.frombuffer(first, np.uint8).ctypes.data
    part = first[10:20]
    del first
    other = lend(LENT_MIN_BYTES)
    assert np.frombuffer(other, np.uint8).ctypes.data != address
    del part
    again = lend(LENT_MIN_BYTES + 1)
    assert np.frombuffer(again, np.uint8).ctypes.data == address
    assert len(again) == LENT_MIN_BYTES + 1


def test_small_waiting_blobs_hold_no_whole_buffers() -> None:
    assert len(np.frombuffer(lend(100), np.uint8)) == 100
    tracemalloc.start()
    waiting = [encode_chunk(codec_for("F32"), skewed(1024, seed)) for seed in range(500)]
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(waiting) == 500
    assert held < 500 * 8192
