"""Tests of hostile and damaged stored bytes."""

from __future__ import annotations

import os
import resource
import warnings

import numpy as np
import pytest
import zstandard

from organs.registry.digest import digest_of
from organs.registry.errors import CorruptBlob
from organs.registry.store.codec import BYTES_CODEC, codec_for, decode_chunk, encode_chunk, head_size_bytes, parse_head
from organs.registry.store.codec.entropy import (
    BadFrame,
    check_frame,
)
from tests.store.codec_cases import forge, load, noise, skewed, store, weights

KIBI, MEBI, GIBI, TEBI = 1 << 10, 1 << 20, 1 << 30, 1 << 40
MAGIC = b"\x28\xb5\x2f\xfd"
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
PLAIN = b"a vocabulary of few words " * 400
FRAME = zstandard.ZstdCompressor().compress(PLAIN)
LONG = PLAIN + b"!" * 100_000
"""The content of the frames below that are made by hand: a raw block and a run of one byte."""


def refuse(frame: bytes, reason: str, plain: bytes = LONG) -> None:
    """Assert that a blob with a valid head and this frame is refused for `reason`."""
    with pytest.raises(CorruptBlob, match=reason):
        load(forge(BYTES_CODEC, plain, [frame], [False]), plain)


def frame_head(size_bytes: int, *, window: int | None = None, flags: int = 0) -> bytes:
    """Return the head of a frame with `size_bytes` in eight bytes, as one segment or with this window descriptor."""
    if window is None:
        return MAGIC + bytes([0xE0 | flags]) + size_bytes.to_bytes(8, "little")
    return MAGIC + bytes([0xC0 | flags, window]) + size_bytes.to_bytes(8, "little")


def block(content: bytes, *, last: bool = False, kind: int = 0, size: int | None = None) -> bytes:
    """Return a block of kind 0 (raw), 1 (a run of one byte), 2 (compressed) or 3 (reserved)."""
    length = len(content) if size is None else size
    return (length << 3 | kind << 1 | last).to_bytes(3, "little") + content


RUN = block(b"!", kind=1, size=100_000, last=True)
BLOCKS = block(PLAIN) + RUN


@pytest.fixture(scope="module")
def bomb() -> bytes:
    """Return a frame of about 8 KiB that decompresses to 256 MiB of zeros."""
    compressor = zstandard.ZstdCompressor().compressobj(size=256 * MEBI)
    frame = b"".join(compressor.compress(bytes(MEBI)) for _ in range(256)) + compressor.flush()
    assert len(frame) < 32 * KIBI
    return frame


def test_a_valid_frame_made_by_hand_is_accepted() -> None:
    for head in (frame_head(len(LONG), window=0x38), frame_head(len(LONG))):
        assert load(forge(BYTES_CODEC, LONG, [head + BLOCKS], [False]), LONG) == LONG
    assert load(forge(BYTES_CODEC, PLAIN, [FRAME], [False]), PLAIN) == PLAIN


def test_a_bomb_is_refused_by_its_declared_size(bomb: bytes) -> None:
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refuse(bomb, f"declares {256 * MEBI} bytes, 65536 are expected", plain=bytes(64 * KIBI))
    for codec in (codec_for("BF16"), codec_for("Q4_0")):
        plain = bytes(codec.chunk_bytes)
        sizes = codec.plane_sizes_bytes(len(plain))
        pieces = [bomb, *(bytes(size) for size in sizes[1:])]
        with pytest.raises(CorruptBlob, match=f"declares {256 * MEBI} bytes"):
            load(forge(codec, plain, pieces, [False, *(True for _ in sizes[1:])]), plain)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 * KIBI


def test_a_bomb_that_declares_the_expected_size_is_stopped_there(bomb: bytes) -> None:
    plain = bytes(64 * KIBI)
    blocks = bomb[len(frame_head(0, window=0)) - 4 :]  # the bomb declares its size in four bytes
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refuse(frame_head(len(plain), window=0x50) + blocks, "plane bytes", plain=plain)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 64 * KIBI


@pytest.mark.parametrize("size_bytes", [TEBI, 2**64 - 1, len(LONG) - 1, len(LONG) + 1, 0])
def test_a_frame_with_a_wrong_size_is_refused_before_allocation(size_bytes: int) -> None:
    refuse(frame_head(size_bytes) + BLOCKS, f"declares {size_bytes} bytes, {len(LONG)} are expected")


def test_a_window_above_8_mib_is_refused_and_one_of_8_mib_is_not() -> None:
    two_gibi, eight_mebi = (31 - 10) << 3, (23 - 10) << 3
    refuse(frame_head(len(LONG), window=two_gibi) + BLOCKS, f"a window of {2 * GIBI} bytes")
    refuse(frame_head(len(LONG), window=eight_mebi + 1) + BLOCKS, f"a window of {9 * MEBI} bytes")
    refuse(frame_head(len(LONG), window=0xFF) + BLOCKS, "a window of")
    allowed = frame_head(len(LONG), window=eight_mebi) + BLOCKS
    assert load(forge(BYTES_CODEC, LONG, [allowed], [False]), LONG) == LONG


def test_a_frame_cut_anywhere_is_refused() -> None:
    for length in range(1, len(FRAME)):
        refuse(FRAME[:length], "ends inside|bytes short|no Zstandard frame", plain=PLAIN)


def test_a_stored_form_cut_anywhere_is_refused() -> None:
    plain = weights("BF16", 96)
    stored = store(codec_for("BF16"), plain)
    for length in range(len(stored)):
        with pytest.raises(CorruptBlob):
            load(stored[:length], plain)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (FRAME + FRAME, "bytes follow the frame's last block"),
        (FRAME + SKIPPABLE, "bytes follow the frame's last block"),
        (SKIPPABLE + FRAME, "a skippable frame"),
        (FRAME + b"\0", "1 bytes follow"),
        (b"\0" + FRAME, "no Zstandard frame"),
    ],
    ids=["two frames", "skippable behind", "skippable before", "trailing byte", "leading byte"],
)
def test_anything_but_one_whole_frame_is_refused(frame: bytes, reason: str) -> None:
    refuse(frame, reason, plain=PLAIN)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (frame_head(len(LONG), flags=0x04) + BLOCKS + bytes(4), "needs a checksum, a dictionary or a reserved feature"),
        (MAGIC + b"\xe1\x07" + frame_head(len(LONG))[5:] + BLOCKS, "needs a checksum, a dictionary"),
        (frame_head(len(LONG), flags=0x08) + BLOCKS, "a reserved feature"),
        (MAGIC + b"\x00\x38" + BLOCKS, "does not declare its size"),
        (frame_head(len(LONG)) + block(PLAIN, kind=3) + RUN, "a block of the reserved type"),
        (frame_head(len(LONG)) + block(b"!", kind=1, size=128 * KIBI + 1), f"a block of {128 * KIBI + 1} bytes"),
        (frame_head(len(LONG)) + block(PLAIN[:-1]) + RUN, "plane bytes: "),
        (frame_head(len(LONG)) + block(PLAIN + b"?") + RUN, "plane bytes: "),
        (frame_head(len(LONG)) + block(PLAIN, kind=2) + RUN, "plane bytes: "),
        (frame_head(len(LONG)) + block(PLAIN) + block(b"?", kind=1, size=100_000, last=True), "fail their checksum"),
    ],
    ids=[
        "checksum",
        "dictionary",
        "reserved bit",
        "no size",
        "reserved block",
        "large block",
        "one byte short",
        "one byte long",
        "nonsense",
        "other bytes",
    ],
)
def test_a_frame_that_this_store_never_writes_is_refused(frame: bytes, reason: str) -> None:
    refuse(frame, reason)


def test_the_outline_of_every_frame_of_zstandard_is_parsed() -> None:
    for length in (1, 255, 256, 65_791, 65_792, 300_000):
        for content in (bytes(length), noise(length), skewed(length)):
            for level in (1, 3, 9):
                frame = zstandard.ZstdCompressor(level=level).compress(content)
                check_frame(memoryview(frame), length)
                with pytest.raises(BadFrame):
                    check_frame(memoryview(frame), length + 1)


@pytest.mark.parametrize("dtype_name", ["BF16", "Q8_0", "Q4_K", "bytes", "raw"])
def test_a_flipped_bit_anywhere_is_detected(dtype_name: str) -> None:
    if dtype_name in ("bytes", "raw"):
        codec, plain = BYTES_CODEC if dtype_name == "bytes" else BYTES_CODEC.kept_raw(), PLAIN[:300]
    else:
        codec = codec_for(dtype_name)
        plain = skewed(codec.block_bytes * max(2, 400 // codec.block_bytes))
    stored = store(codec, plain)
    payload = head_size_bytes(codec, len(plain))
    for position in range(len(stored)):
        for bit in range(8):
            damaged = bytearray(stored)
            damaged[position] ^= 1 << bit
            try:
                loaded = load(bytes(damaged), plain)
            except CorruptBlob:
                continue
            # A few bits of a Zstandard frame have no meaning. A flip there gives the same bytes, or is detected.
            assert loaded == plain
            assert position >= payload


def test_a_forked_process_encodes_in_its_own_memory() -> None:
    plain, other = weights("Q8_0", 1 << 20), weights("Q8_0", 1 << 20, seed=1)
    codec = codec_for("Q8_0")
    encode_chunk(codec, plain)  # its memory is used again, by both processes
    end, begin = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the child does not use other threads of the test runner
        child = os.fork()
    if child == 0:
        os.close(begin)
        status = 1
        try:
            os.read(end, 1)
            encode_chunk(codec, other)
            status = 0
        finally:
            os._exit(status)
    try:
        encoded = encode_chunk(codec, plain)
        pieces = [bytes(piece) for piece in encoded.pieces]
    finally:
        os.close(begin)  # which the child waits for
        os.close(end)
        _, status = os.waitpid(child, 0)
    assert status == 0
    assert [bytes(piece) for piece in encoded.pieces] == pieces


def test_a_chunk_read_short_or_long_is_refused() -> None:
    codec = codec_for("F16")
    plain = np.arange(5000, dtype="<u2").tobytes()
    stored = store(codec, plain)
    head = parse_head(stored, digest=digest_of(plain), plain_size_bytes=len(plain), stored_size_bytes=len(stored))
    (chunk,) = head.chunks
    out = memoryview(bytearray(len(plain)))
    sound = stored[chunk.offset_bytes :]
    for damaged in (b"", sound[:-1], sound + b"\0"):
        with pytest.raises(CorruptBlob, match=f"it has {len(damaged)} of {len(sound)} stored bytes"):
            decode_chunk(codec, chunk, damaged, out)
