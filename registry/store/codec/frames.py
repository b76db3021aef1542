"""What a Zstandard frame must look like before it is decoded (RFC 8878, section 3.1.1).

zstandard's own calls are not enough: they believe the size that a frame declares before anything has been decoded,
return a truncated frame short, and stop silently behind the first of two frames. So the frame's outline is walked
first: what it declares must be what the caller expects, and its last block must end where the bytes end.
"""

from __future__ import annotations

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
