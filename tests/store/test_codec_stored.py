"""Tests of the head of the stored form: its size, its bytes, and its checks."""

from __future__ import annotations

import struct

import pytest
import xxhash

from organs.registry.digest import Digest, digest_of
from organs.registry.errors import CorruptBlob
from organs.registry.store.codec import (
    BYTES_CODEC,
    START_BYTES,
    ChunkEntry,
    Codec,
    codec_for,
    encode_chunk,
    head_size_bytes,
    head_size_of,
    pack_head,
    parse_head,
)
from tests.store.codec_cases import ALL_CODECS, CODEC_IDS, load, noise, skewed, store, weights

PLAIN = weights("BF16", 64)
STORED = store(codec_for("BF16"), PLAIN)
HEAD_SIZE = head_size_bytes(codec_for("BF16"), len(PLAIN))


def sealed(stored: bytes, head_size: int = HEAD_SIZE) -> bytes:
    """Return `stored` with a checksum that matches its head."""
    head = stored[: head_size - 8]
    return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)) + stored[head_size:]


def patched(offset: int, value: bytes) -> bytes:
    return sealed(STORED[:offset] + value + STORED[offset + len(value) :])


@pytest.mark.parametrize("codec", ALL_CODECS, ids=CODEC_IDS)
def test_the_size_of_a_head_is_known_before_anything_is_encoded(codec: Codec) -> None:
    for kept in (codec, codec.kept_raw()):
        for blocks in (0, 1, codec.chunk_bytes // codec.block_bytes, codec.chunk_bytes // codec.block_bytes + 1):
            size = blocks * codec.block_bytes
            entry = ChunkEntry((1,) * len(kept.planes), (False,) * len(kept.planes), 2**64 - 1)
            head = pack_head(kept, digest_of(b""), size, [entry] * kept.chunk_count(size))
            assert len(head) == head_size_bytes(kept, size)
            assert head_size_of(head[:START_BYTES], digest=digest_of(b""), plain_size_bytes=size) == len(head)


def test_a_parsed_head_has_the_packed_values() -> None:
    codec = codec_for("Q8_0")
    plain = skewed(codec.chunk_bytes * 2 + codec.block_bytes * 3)
    stored = store(codec, plain)
    head = parse_head(
        stored[: head_size_bytes(codec, len(plain))],
        digest=digest_of(plain),
        plain_size_bytes=len(plain),
        stored_size_bytes=len(stored),
    )
    assert (head.codec, head.parent) == (codec, None)
    assert [chunk.plain_offset_bytes for chunk in head.chunks] == [0, codec.chunk_bytes, 2 * codec.chunk_bytes]
    assert [chunk.plain_size_bytes for chunk in head.chunks] == [codec.chunk_bytes, codec.chunk_bytes, 102]
    assert head.chunks[0].offset_bytes == head_size_bytes(codec, len(plain))


def test_a_plane_in_place_of_that_of_another_chunk_is_detected() -> None:
    codec = codec_for("BF16").kept_raw()
    plain = noise(2 * codec.chunk_bytes)
    stored = store(codec, plain)
    start = head_size_bytes(codec, len(plain))
    exchanged = stored[:start] + stored[start + codec.chunk_bytes :] + stored[start : start + codec.chunk_bytes]
    with pytest.raises(CorruptBlob, match="chunk 0: the decoded bytes fail their checksum"):
        load(exchanged, plain)


@pytest.mark.parametrize(
    ("digest", "plain_size", "stored_size", "reason"),
    [
        (digest_of(b"other"), len(PLAIN), len(STORED), "digest: the head says"),
        (digest_of(PLAIN), len(PLAIN) + 2, len(STORED), "plain size: the head says 128, 130 is expected"),
        (digest_of(PLAIN), 1 << 62, len(STORED), "plain size"),
        (digest_of(PLAIN), len(PLAIN), len(STORED) - 1, "bytes are stored, the table adds up to"),
        (digest_of(PLAIN), len(PLAIN), len(STORED) + 1, "bytes are stored, the table adds up to"),
    ],
)
def test_a_head_that_differs_from_the_catalog_is_refused(
    digest: Digest, plain_size: int, stored_size: int, reason: str
) -> None:
    with pytest.raises(CorruptBlob, match=reason) as caught:
        parse_head(STORED, digest=digest, plain_size_bytes=plain_size, stored_size_bytes=stored_size)
    assert caught.value.where == digest


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (0, b"GGUF", "begins with b'GGUF'"),
        (4, b"\x02", "stored form version: the head says 2, 1 is expected"),
        (4, b"\x03", "stored form version 3; this program reads 1 and 2"),
        (5, b"\x09", "codec version: the head says 9, 1 is expected"),
        (6, b"\x04\x00", "tensor type 4 is unknown or was removed"),
        (6, b"\x01\x00", "codec b'bf16-planes' is unknown for its tensor type, 'f16-planes' is expected"),
        (6, b"\xff\xff", "'bytes' is expected"),
        (8, b"\x41", "number of elements: the head says 65, 64 is expected"),
        (16, b"\x81", "plain size: the head says 129"),
        (24, b"\x01", "size of a chunk"),
        (24, b"\0\0\0\0", "size of a chunk: the head says 0"),
        (28, b"\xff\xff", "digest"),
        (60, b"\xff", "codec b'bf16-planes"),
        (60, b"\x00", "codec b'' is unknown"),
        (61, b"BF16", "codec b'BF16-planes' is unknown"),
        (80, b"\0\0\0\0", "plane exponent: 0 bytes encoded for 64 plain bytes"),
        (80, b"\x40\0\0\0", "plane exponent: 64 bytes encoded for 64 plain bytes"),
        (80, b"\xff\xff\xff\x7f", "plane exponent: 2147483647 bytes encoded"),
        (80, b"\x3f\0\0\x80", "plane exponent: 63 bytes raw for 64 plain bytes"),
        (84, b"\x41\0\0\x80", "plane sign_mantissa: 65 bytes raw for 64 plain bytes"),
        (72, b"\xff", "the decoded bytes fail their checksum"),
    ],
)
def test_a_head_with_one_wrong_number_and_a_right_checksum_is_refused(offset: int, value: bytes, reason: str) -> None:
    with pytest.raises(CorruptBlob, match=reason):
        load(patched(offset, value), PLAIN)


def test_a_head_that_fails_its_checksum_is_refused() -> None:
    with pytest.raises(CorruptBlob, match="the head fails its checksum"):
        load(STORED[:80] + b"\x01" + STORED[81:], PLAIN)


def test_a_raw_blob_that_claims_an_encoded_plane_is_refused() -> None:
    codec = BYTES_CODEC.kept_raw()
    frame = bytes(encode_chunk(BYTES_CODEC, bytes(500)).pieces[0])
    head = pack_head(codec, digest_of(bytes(500)), 500, [ChunkEntry((len(frame),), (False,), 0)])
    with pytest.raises(CorruptBlob, match="bytes encoded for 500 plain bytes"):
        load(head + frame, bytes(500))


def test_an_invalid_start_of_a_head_is_refused() -> None:
    for start in (b"", b"ORGB", STORED[:60], bytes(START_BYTES)):
        with pytest.raises(CorruptBlob):
            head_size_of(start, digest=digest_of(PLAIN), plain_size_bytes=len(PLAIN))


def test_a_size_that_is_not_whole_blocks_is_refused() -> None:
    codec = codec_for("Q8_0")
    odd = pack_head(codec, digest_of(b""), 35, [ChunkEntry((1, 1, 1), (False, False, False), 0)])
    with pytest.raises(CorruptBlob, match="bytes beyond whole blocks: the head says 1, 0 is expected"):
        parse_head(odd, digest=digest_of(b""), plain_size_bytes=35, stored_size_bytes=len(odd) + 3)
