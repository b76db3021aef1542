"""Zstandard frames that this store never writes: wrong sizes and windows, more or less than one frame, bombs."""

from __future__ import annotations

import struct
from random import Random

import numpy as np
import zstandard

from organs.registry.store.codec.entropy import compress_plane
from organs.registry.store.codec.planes import Coder
from tests.faults.fuzzing import edits

MAGIC = b"\x28\xb5\x2f\xfd"
SINGLE_SEGMENT, SIZE_OF_8_BYTES = 0x20, 0xC0
RAW, RUN, COMPRESSED, RESERVED = range(4)
BLOCK_MAX_BYTES = 128 << 10
WINDOWS = ((31 - 10) << 3, (23 - 10) << 3, (24 - 10) << 3, 0xFF, 0x00, 0x38)
"""Window descriptors: 2 GiB, 8 MiB, 16 MiB, the largest, 1 KiB, 128 KiB."""
SPARSE_HEAD, RAW_STREAM = struct.Struct("<6I"), 1 << 31
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
_COMPANY = ((SKIPPABLE, b"\0"), (b"\0", b"\0"), (b"", SKIPPABLE), (b"", b"\0"), (b"", b""))
"""Bytes before and after a valid frame; an empty tail means the frame once more."""


class FrameAttacks:
    """Makes frames for a plane. Its compressors are created once."""

    def __init__(self) -> None:
        self._compressors = [
            zstandard.ZstdCompressor(level=1),
            zstandard.ZstdCompressor(level=6),
            zstandard.ZstdCompressor(level=3, write_checksum=True),
            zstandard.ZstdCompressor(level=3, write_content_size=False),
            zstandard.ZstdCompressor(level=1, dict_data=zstandard.ZstdCompressionDict(b"a dictionary of bytes" * 20)),
            zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters(window_log=23)),
        ]
        for compressor in self._compressors:
            compressor.compress(bytes(100_000))

    def frame(self, plane: bytes, random: Random, coder: Coder = Coder.ENTROPY) -> bytes:
        """Return a frame that may or may not decompress to `plane`."""
        if coder is Coder.SPARSE and plane and random.random() < 0.95:
            return self._sparse(plane, random)
        sound = random.choice(self._compressors).compress(plane)
        match random.randrange(9):
            case 0:
                return sound
            case 1:
                return _another_head(sound, plane, random)
            case 2:
                return _by_hand(plane, random)
            case 3:
                before, behind = random.choice(_COMPANY)
                return before + sound + (behind or sound)
            case 4:
                half = len(plane) // 2
                compressor = self._compressors[0]
                return compressor.compress(plane[:half]) + compressor.compress(plane[half:])
            case 5:
                return sound[: random.randrange(len(sound))]
            case 6:
                return _bomb(len(plane), random)
            case _:
                return _damaged(sound, random)

    def _sparse(self, plane: bytes, random: Random) -> bytes:
        """Return a frame of the coder of sparse planes with another number, or with an attack in place of a stream."""
        data = np.frombuffer(plane, np.uint8)
        room = np.empty(len(plane) + SPARSE_HEAD.size, np.uint8)
        length = compress_plane(data, Coder.SPARSE, room)
        if length is None:
            places = np.flatnonzero(data)
            gaps, values = np.diff(places, prepend=-1) - 1, data[places].tobytes()
            stream = np.minimum(gaps, 255).astype(np.uint8).tobytes()
            numbers = (2**32 - 1, len(stream), len(values), len(stream) | RAW_STREAM, len(values) | RAW_STREAM, 0)
            sound = SPARSE_HEAD.pack(*numbers) + stream + values
        else:
            sound = room[:length].tobytes()
        frame = bytearray(sound)
        match random.randrange(5):
            case 0:
                return sound
            case 1:
                edits.set_number(frame, (4 * random.randrange(6), 4), random)
            case 2:
                return self._with_another_stream(sound, plane, random)
            case 3:
                edits.flip(frame, len(frame), random)
            case _:
                edits.overwrite(frame, len(frame), random, sound)
        return bytes(frame)

    def _with_another_stream(self, sound: bytes, plane: bytes, random: Random) -> bytes:
        numbers = list(SPARSE_HEAD.unpack_from(sound))
        position, streams = SPARSE_HEAD.size, []
        for size in numbers[3:]:
            end = position + (size & ~RAW_STREAM)
            streams.append(sound[position:end])
            position = end
        place = random.randrange(3)
        content = plane[: random.choice((numbers[1], numbers[2], len(plane)))]
        streams[place] = self.frame(content, random) if content else b""
        numbers[3 + place] = len(streams[place]) | random.choice((0, 0, 0, RAW_STREAM))
        return SPARSE_HEAD.pack(*numbers) + b"".join(streams)


def _another_head(sound: bytes, plane: bytes, random: Random) -> bytes:
    """Return the blocks of a valid frame with a head that claims other values, or the same in another form."""
    blocks = sound[zstandard.frame_header_size(sound) :]
    size = len(plane) if random.random() < 0.5 else edits.interesting_number(random, len(plane), 8)
    return _head(size, random) + blocks


def _by_hand(plane: bytes, random: Random) -> bytes:
    """Return raw blocks and runs; half of the time they decompress to the plane."""
    place = random.randrange(len(plane) + 1)
    blocks = [_block(plane[:place]), _block(plane[place:], last=True)]
    match random.randrange(8):
        case 0:
            blocks[0] = _block(plane[:place], kind=random.choice((RUN, COMPRESSED, RESERVED)))
        case 1:
            blocks[0] = _block(b"!", kind=RUN, size=random.choice((place, BLOCK_MAX_BYTES, BLOCK_MAX_BYTES + 1)))
        case 2:
            blocks[0] = _block(plane[:place], size=random.randrange(1 << 21))
        case 3:
            blocks.reverse()
        case _:
            blocks.insert(0, _block(b""))
    return _head(len(plane), random) + b"".join(blocks)


def _bomb(size_bytes: int, random: Random) -> bytes:
    """Return a run of bytes far larger than declared, or declared correctly."""
    runs = random.choice((1, 2, 64, 2048))
    declared = random.choice((size_bytes, runs * BLOCK_MAX_BYTES))
    block = _block(b"\0", kind=RUN, size=BLOCK_MAX_BYTES)
    return _head(declared, random) + block * (runs - 1) + _block(b"\0", kind=RUN, size=BLOCK_MAX_BYTES, last=True)


def _damaged(sound: bytes, random: Random) -> bytes:
    data = bytearray(sound)
    if random.random() < 0.4:
        edits.set_number(data, (random.randrange(4, 14), random.choice((1, 2, 4))), random)
    elif random.random() < 0.6:
        edits.flip(data, len(data), random)
    else:
        edits.overwrite(data, len(data), random, sound)
    return bytes(data)


def _head(size_bytes: int, random: Random) -> bytes:
    """Return a head that declares `size_bytes` in eight bytes, as one segment or with its own window."""
    flags = random.choice((0, 0, 0, 0, 0, 1, 2, 3, 4, 8, 16))
    declared = size_bytes.to_bytes(8, "little")
    if random.random() < 0.4:
        return MAGIC + bytes([SIZE_OF_8_BYTES | SINGLE_SEGMENT | flags]) + declared
    return MAGIC + bytes([SIZE_OF_8_BYTES | flags, random.choice(WINDOWS)]) + declared


def _block(content: bytes, *, last: bool = False, kind: int = RAW, size: int | None = None) -> bytes:
    length = len(content) if size is None else size
    return (length << 3 & 0xFFFFFF | kind << 1 | last).to_bytes(3, "little") + content
