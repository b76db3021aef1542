"""Encoding of a plane as a Zstandard frame, and decoding. Frames are checked before decoding (RFC 8878, 3.1.1)."""

from __future__ import annotations

import math
import threading
from typing import Final

import numpy as np
import zstandard

from organs.registry.store.codec.planes import Bytes, Coder

FRAME_MAGIC = b"\x28\xb5\x2f\xfd"
WINDOW_MAX_BYTES = 8 << 20
BLOCK_MAX_BYTES = 128 << 10

_SKIPPABLE_MAGIC_TAIL = b"\x2a\x4d\x18"
_BLOCK_HEAD_BYTES = 3
_RAW_BLOCK, _RUN_LENGTH_BLOCK, _COMPRESSED_BLOCK, _RESERVED_BLOCK = range(4)


class BadFrame(ValueError):
    """Bytes are not a frame as this store writes it; the text says why. Callers raise CorruptBlob from it."""


def check_frame(frame: memoryview, content_size_bytes: int) -> None:
    """Raise BadFrame unless `frame` is exactly one complete frame that declares exactly `content_size_bytes`.

    The frame must not have a dictionary, a checksum, a window above WINDOW_MAX_BYTES, or bytes before or after it. This
    function allocates nothing and decodes nothing.
    """
    end = len(frame)
    position = _check_frame_head(frame, content_size_bytes)
    last = False
    while not last:
        if position + _BLOCK_HEAD_BYTES > end:
            raise BadFrame("the frame ends inside a block's head")
        head = int.from_bytes(frame[position : position + _BLOCK_HEAD_BYTES], "little")
        last, block_type, size = bool(head & 1), head >> 1 & 3, head >> 3
        if block_type == _RESERVED_BLOCK:
            raise BadFrame("a block of the reserved type")
        if size > BLOCK_MAX_BYTES:
            raise BadFrame(f"a block of {size} bytes, more than {BLOCK_MAX_BYTES}")
        position += _BLOCK_HEAD_BYTES + (1 if block_type == _RUN_LENGTH_BLOCK else size)
    if position > end:
        raise BadFrame(f"the frame is {position - end} bytes short")
    if position < end:
        raise BadFrame(f"{end - position} bytes follow the frame's last block")


def _check_frame_head(frame: memoryview, content_size_bytes: int) -> int:
    """Check the head of the frame; return the offset of the first block."""
    if frame[1:4] == _SKIPPABLE_MAGIC_TAIL and frame[0] >> 4 == 5:
        raise BadFrame("a skippable frame")
    if frame[:4] != FRAME_MAGIC:
        raise BadFrame("no Zstandard frame")
    if len(frame) < 5:
        raise BadFrame("the frame ends inside its head")
    descriptor = frame[4]
    single_segment = bool(descriptor & 0x20)
    if descriptor & 0x1F:
        raise BadFrame("the frame needs a checksum, a dictionary or a reserved feature")
    if descriptor >> 6 == 0 and not single_segment:
        raise BadFrame("the frame does not declare its size")
    size_start = 5 if single_segment else 6
    size_length = 1 << (descriptor >> 6)
    blocks_start = size_start + size_length
    if len(frame) < blocks_start:
        raise BadFrame("the frame ends inside its head")
    declared = int.from_bytes(frame[size_start:blocks_start], "little") + (256 if size_length == 2 else 0)
    if declared != content_size_bytes:
        raise BadFrame(f"the frame declares {declared} bytes, {content_size_bytes} are expected")
    window = declared if single_segment else _window_bytes(frame[5])
    if window > WINDOW_MAX_BYTES:
        raise BadFrame(f"the frame needs a window of {window} bytes, more than {WINDOW_MAX_BYTES}")
    return blocks_start


def _window_bytes(descriptor: int) -> int:
    exponent, mantissa = descriptor >> 3, descriptor & 7
    base = 1 << (10 + exponent)
    return base + base // 8 * mantissa


GAIN_MIN: Final = 0.02
"""The minimum share of bytes that encoding must save, of a plane and of an organ. Less is not worth decoding."""
SAMPLE_GAIN_MIN: Final = 0.03
SAMPLE_RUNS: Final = 16
SAMPLE_RUN_BYTES: Final = 256
SAMPLE_BYTES: Final = SAMPLE_RUNS * SAMPLE_RUN_BYTES
TEXT_LEVEL: Final = 6

ENTROPY_PARAMETERS: Final = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST,
    min_match=7,
    hash_log=6,
    chain_log=6,
    search_log=1,
    window_log=17,
    target_length=0,
    write_content_size=True,
    write_checksum=False,
    write_dict_id=False,
)


def compress_plane(plane: Bytes, coder: Coder, room: Bytes) -> int | None:
    """Write a frame with `plane` to the beginning of `room`, which must not be smaller than `plane`.

    Returns the length of the frame, or None if it saves less than `GAIN_MIN`: the plane is then stored raw.
    """
    if coder is Coder.NONE or (coder is Coder.ENTROPY and not looks_worth_it(plane)):
        return None
    compressor = _tools.entropy if coder is Coder.ENTROPY else _tools.text
    length_max = int(len(plane) * (1 - GAIN_MIN))
    with compressor.stream_reader(plane.data, size=len(plane)) as reader:
        # The room has one byte more than the maximum: if it is full, the frame is too long or not complete.
        length = reader.readinto(room[: length_max + 1].data)
    return length if length <= length_max else None


def decompress_plane(frame: memoryview, plane: Bytes) -> None:
    """Decode `frame` to `plane`; raises BadFrame unless it is one complete frame with exactly the size of `plane`."""
    check_frame(frame, len(plane))
    try:
        # One call with room for all bytes decodes directly to `plane`, without another buffer.
        with _tools.decompressor.stream_reader(frame) as reader:
            count = reader.readinto(plane.data)
    except zstandard.ZstdError as error:
        raise BadFrame(str(error)) from error
    if count != len(plane):
        raise BadFrame(f"the frame gives {count} bytes, {len(plane)} are expected")


def looks_worth_it(plane: Bytes) -> bool:
    """Return whether an entropy coder would probably save at least `SAMPLE_GAIN_MIN` of a sample of `plane`.

    The sample is 16 runs of 256 bytes, evenly spread. Its encoded size is estimated, because the code table would be a
    thirtieth of a frame of 4 KiB. The estimate is the entropy of the bytes with the correction of Miller (1955): the
    entropy of n samples of k different values is too small by (k - 1) / 2n nats.
    """
    if len(plane) <= SAMPLE_BYTES:
        return len(plane) > 0
    sample = plane[: len(plane) // SAMPLE_RUNS * SAMPLE_RUNS].reshape(SAMPLE_RUNS, -1)[:, :SAMPLE_RUN_BYTES]
    counts = np.bincount(sample.ravel(), minlength=256)
    shares = counts[counts > 0] / SAMPLE_BYTES
    nats = -float(np.dot(shares, np.log(shares))) + (len(shares) - 1) / (2 * SAMPLE_BYTES)
    return nats <= (1 - SAMPLE_GAIN_MIN) * math.log(256)


class _Tools(threading.local):
    """The compressors of a thread. Threads cannot share them, and creating them for each plane would be slow."""

    def __init__(self) -> None:
        self.entropy = zstandard.ZstdCompressor(compression_params=ENTROPY_PARAMETERS)
        self.text = zstandard.ZstdCompressor(level=TEXT_LEVEL, write_checksum=False, write_content_size=True)
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_MAX_BYTES)


_tools = _Tools()
