"""Tests of the coder of planes in which most bytes are zero."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.store.codec.entropy import SEGMENTS, BadFrame, compress_plane, decompress_plane
from organs.registry.store.codec.fast import Bytes
from organs.registry.store.codec.planes import CHUNK_TARGET_BYTES, Coder
from tests.random_files import PATIENT
from tests.store.codec_cases import frame_of

HEAD = struct.Struct("<6I")
RAW = 1 << 31


def plane(size_bytes: int, share: float, seed: int = 0, dense: int = 0) -> Bytes:
    """Return bytes of which this share is not zero; in the first `dense` segments, all are."""
    generator = np.random.default_rng(seed)
    values = generator.integers(1, 256, size_bytes, dtype=np.uint8)
    chosen = generator.random(size_bytes) < share
    chosen[: size_bytes // SEGMENTS * dense] = True
    return np.where(chosen, values, 0).astype(np.uint8)


def decoded(frame: bytes, size_bytes: int) -> Bytes:
    """Return the plane of a frame, decoded to memory that is not zero before."""
    out = np.full(size_bytes, 0xAA, np.uint8)
    decompress_plane(memoryview(frame), Coder.SPARSE, out)
    return out


def forged(
    mask: int, gaps: bytes, values: bytes, dense: bytes = b"", head: tuple[int, ...] | None = None, more: bytes = b""
) -> bytes:
    """Return a frame with raw streams, and by default with the numbers that fit them."""
    sizes = tuple(len(stream) | RAW if stream else 0 for stream in (gaps, values, dense))
    return HEAD.pack(*(head or (mask, len(gaps), len(values), *sizes))) + gaps + values + dense + more


@PATIENT
@given(
    size=st.one_of(st.integers(1, 200), st.integers(1, 20_000)),
    share=st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.3, 0.5, 1.0]),
    dense=st.integers(0, SEGMENTS),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_plane_reads_back_or_is_kept_raw(size: int, share: float, dense: int, seed: int) -> None:
    plain = plane(size, share, seed, dense)
    frame = frame_of(plain, Coder.SPARSE)
    if frame is not None:
        assert len(frame) < size
        assert np.array_equal(decoded(frame, size), plain)


@PATIENT
@given(content=st.lists(st.tuples(st.integers(0, 1200), st.integers(0, 255)), max_size=40), end=st.integers(64, 600))
def test_gaps_of_any_length_read_back(content: list[tuple[int, int]], end: int) -> None:
    plain = np.frombuffer(b"".join(bytes(gap) + bytes([value]) for gap, value in content) + bytes(end), np.uint8)
    frame = frame_of(plain, Coder.SPARSE)
    if frame is not None:
        assert np.array_equal(decoded(frame, len(plain)), plain)


@pytest.mark.parametrize("size", [4096, 100_000, CHUNK_TARGET_BYTES])
def test_few_values_cost_little(size: int) -> None:
    plain = plane(size, 0.001)
    frame = frame_of(plain, Coder.SPARSE)
    assert frame is not None
    assert len(frame) < 64 + size * 0.003
    assert np.array_equal(decoded(frame, size), plain)


def test_dense_and_sparse_segments_are_told_apart() -> None:
    plain = plane(64_000, 0.002, dense=5)
    frame = frame_of(plain, Coder.SPARSE)
    assert frame is not None
    assert HEAD.unpack_from(frame)[0] == (1 << SEGMENTS) - (1 << 5)
    assert np.array_equal(decoded(frame, len(plain)), plain)


def test_frames_made_by_hand_are_read() -> None:
    every = (1 << SEGMENTS) - 1
    expected = np.zeros(640, np.uint8)
    assert np.array_equal(decoded(forged(every, b"", b""), 640), expected)
    expected[[3, 300, 301]] = 7, 8, 9
    assert np.array_equal(decoded(forged(every, bytes([3, 255, 41, 0]), bytes([7, 8, 9])), 640), expected)
    assert np.array_equal(decoded(forged(0, b"", b"", bytes(range(64))), 64), np.arange(64))
    expected = np.zeros(64, np.uint8)
    expected[63] = 5
    assert np.array_equal(decoded(forged(every, bytes([63]), bytes([5])), 64), expected)


EVERY = (1 << SEGMENTS) - 1
HOSTILE = {
    "a head that is too short": (forged(EVERY, b"", b"")[:-1], "ends inside its head"),
    "no bytes": (b"", "ends inside its head"),
    "more values than gaps": (forged(EVERY, b"\1", b"\1\1"), "2 values and 1 gaps"),
    "more gaps than bytes": (forged(EVERY, bytes(65), b""), "65 gaps for 64 bytes"),
    "gaps without values": (forged(EVERY, b"\1\1", b"\1"), "do not fit"),
    "a value behind the end": (forged(EVERY, bytes([64]), b"\1"), "do not fit"),
    "zeros beyond the end": (forged(EVERY, b"\377", b""), "do not fit"),
    "a gap of 255 as a value": (forged(EVERY, b"\377\0", b"\1\1"), "do not fit"),
    "a huge number of gaps": (forged(EVERY, b"", b"", head=(EVERY, 2**32 - 1, 0, 0, 0, 0)), "gaps for 64 bytes"),
    "a huge number of values": (forged(EVERY, b"", b"", head=(EVERY, 0, 2**32 - 1, 0, 0, 0)), "values and 0 gaps"),
    "a huge stream": (forged(EVERY, b"", b"", head=(EVERY, 1, 1, 2**31 - 1, 0, 0)), "a stream .* is short"),
    "a huge raw stream": (forged(EVERY, b"", b"", head=(EVERY, 1, 1, 2**32 - 1, 0, 0)), "a stream .* is short"),
    "a stream where none is due": (forged(EVERY, b"", b"", b"!"), "a raw stream of 1 bytes, 0 are expected"),
    "a raw stream that is short": (forged(0, b"", b"", bytes(63)), "a raw stream of 63 bytes, 64 are expected"),
    "bytes at the end": (forged(EVERY, b"", b"", more=b"!"), "1 bytes follow"),
    "no frame": (forged(0, b"", b"", head=(0, 0, 0, 0, 0, 9), more=bytes(9)), "no Zstandard frame"),
    "an empty frame": (forged(0, b"", b"", head=(0, 0, 0, 0, 0, 0)), "no Zstandard frame"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_frame_is_refused(name: str) -> None:
    frame, reason = HOSTILE[name]
    with pytest.raises(BadFrame, match=reason):
        decoded(frame, 64)


def test_a_plane_that_saves_too_little_is_kept_raw() -> None:
    assert frame_of(plane(10_000, 1.0), Coder.SPARSE) is None
    assert frame_of(np.zeros(8, np.uint8), Coder.SPARSE) is None, "the head alone has 24 bytes"
    room = np.empty(64, np.uint8)
    assert compress_plane(np.zeros(64, np.uint8), Coder.SPARSE, room) == HEAD.size
