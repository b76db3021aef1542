"""One plane to one Zstandard frame and back; frames are checked before they are decoded (RFC 8878, 3.1.1)."""

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
    """Bytes that are no frame of the kind this store writes; the text says why. Callers turn it into CorruptBlob."""


def check_frame(frame: memoryview, content_size_bytes: int) -> None:
    """Refuse with BadFrame everything but exactly one whole frame that declares exactly `content_size_bytes`.

    No dictionary, no checksum of its own, no window above WINDOW_MAX_BYTES, nothing before, behind or missing. Nothing
    is allocated and nothing is decoded.
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
    """The offset of the first block."""
    if frame[1:4] == _SKIPPABLE_MAGIC_TAIL and frame[0] >> 4 == 5:
        raise BadFrame("a skippable frame")
    if frame[:4] != FRAME_MAGIC:
        raise BadFrame("no Zstandard frame")
    if len(frame) < 5:
        raise BadFrame("the frame ends inside its head")
    descriptor = frame[4]
    single_segment = bool(descriptor & 0x20)
    if descriptor & 0x1F:
        raise BadFrame("the frame wants a checksum, a dictionary or a reserved feature")
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
        raise BadFrame(f"the frame wants a window of {window} bytes, more than {WINDOW_MAX_BYTES}")
    return blocks_start


def _window_bytes(descriptor: int) -> int:
    exponent, mantissa = descriptor >> 3, descriptor & 7
    base = 1 << (10 + exponent)
    return base + base // 8 * mantissa


GAIN_MIN: Final = 0.02
"""The least gain that is worth decoding: of a frame over its plane, of an organ over its plain bytes."""
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
    """Write one frame that holds `plane` to the beginning of `room`, which is as large or larger.

    Returns the frame's length, or None where less than `GAIN_MIN` would be gained: the plane is to be kept as it is.
    """
    if coder is Coder.NONE or (coder is Coder.ENTROPY and not looks_worth_it(plane)):
        return None
    compressor = _tools.entropy if coder is Coder.ENTROPY else _tools.text
    allowed = int(len(plane) * (1 - GAIN_MIN))
    with compressor.stream_reader(plane.data, size=len(plane)) as reader:
        # One byte more than is allowed: a frame that fills it may not have come to its end.
        length = reader.readinto(room[: allowed + 1].data)
    return length if length <= allowed else None


def decompress_plane(frame: memoryview, plane: Bytes) -> None:
    """Fill `plane` from `frame`; raises BadFrame unless that is one whole frame of exactly as many bytes."""
    check_frame(frame, len(plane))
    try:
        # One call with room for everything is decoded straight into `plane`, without a buffer between.
        with _tools.decompressor.stream_reader(frame) as reader:
            count = reader.readinto(plane.data)
    except zstandard.ZstdError as error:
        raise BadFrame(str(error)) from error
    if count != len(plane):
        raise BadFrame(f"the frame gives {count} bytes, {len(plane)} are expected")


def looks_worth_it(plane: Bytes) -> bool:
    """Whether a sample of `plane` has at least `SAMPLE_GAIN_MIN` to gain from an entropy coder.

    The sample is 16 runs of 256 bytes, evenly spread. Its size is estimated, not tried: a frame of 4 KiB would spend a
    thirtieth of itself on its code table. The estimate is the entropy of the sample's bytes with the correction of
    Miller (1955): n samples of k different values look smaller than they are by (k - 1) / 2n nats.
    """
    if len(plane) <= SAMPLE_BYTES:
        return len(plane) > 0
    sample = plane[: len(plane) // SAMPLE_RUNS * SAMPLE_RUNS].reshape(SAMPLE_RUNS, -1)[:, :SAMPLE_RUN_BYTES]
    counts = np.bincount(sample.ravel(), minlength=256)
    present = counts[counts > 0] / SAMPLE_BYTES
    nats = -float(np.dot(present, np.log(present))) + (len(present) - 1) / (2 * SAMPLE_BYTES)
    return nats <= (1 - SAMPLE_GAIN_MIN) * math.log(256)


class _Tools(threading.local):
    """Compressors are no two threads' to share, and dear to make anew for each plane."""

    def __init__(self) -> None:
        self.entropy = zstandard.ZstdCompressor(compression_params=ENTROPY_PARAMETERS)
        self.text = zstandard.ZstdCompressor(level=TEXT_LEVEL, write_checksum=False, write_content_size=True)
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=WINDOW_MAX_BYTES)


_tools = _Tools()
