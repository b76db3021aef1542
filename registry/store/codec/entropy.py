"""Encoding of a plane as a Zstandard frame, and decoding. Frames are checked before decoding (RFC 8878, 3.1.1).

The coder SPARSE is for planes in which most bytes are zero. Zstandard as an entropy coder needs at least one bit for
each byte, and positions of single bytes cost more as matches. So the plane is cut into 32 segments. Of a segment with
few bytes that are not zero, the distance to each of these (*gap*) and its value are stored; of others, all bytes. The
gaps, the values and the bytes of dense segments are three streams:

    offset  bytes  what
    0       4      bit i is set if segment i is sparse
    4       4      number of gaps
    8       4      number of values
    12      12     the stored size of each stream, bit 31 set if it is raw, not a frame
    24             the streams

A gap is the number of zeros before a value, 0 to 254; 255 stands for 255 zeros without a value.
"""

from __future__ import annotations

import math
import struct
import threading
from itertools import pairwise
from typing import Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from organs.registry.store.codec.fast import Bytes
from organs.registry.store.codec.planes import CHUNK_TARGET_BYTES, Coder

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
    window = declared
    if not single_segment:
        base = 1 << (10 + (frame[5] >> 3))
        window = base + base // 8 * (frame[5] & 7)
    if window > WINDOW_MAX_BYTES:
        raise BadFrame(f"the frame needs a window of {window} bytes, more than {WINDOW_MAX_BYTES}")
    return blocks_start


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
    length_max = int(len(plane) * (1 - GAIN_MIN))
    if coder is Coder.NONE or (coder is Coder.ENTROPY and not looks_worth_it(plane)):
        return None
    if coder is Coder.SPARSE:
        return _compress_sparse(plane, room, length_max)
    return _compress(_tools.entropy if coder is Coder.ENTROPY else _tools.text, plane, room, length_max)


def decompress_plane(frame: memoryview, coder: Coder, plane: Bytes) -> None:
    """Decode `frame` to `plane`; raises BadFrame unless it is complete and has exactly the size of `plane`."""
    if coder is Coder.SPARSE:
        _decompress_sparse(frame, plane)
    else:
        _decompress(frame, plane)


def _compress(compressor: zstandard.ZstdCompressor, plane: Bytes, room: Bytes, length_max: int) -> int | None:
    with compressor.stream_reader(plane.data, size=len(plane)) as reader:
        # The room has one byte more than the maximum: if it is full, the frame is too long or not complete.
        length = reader.readinto(room[: length_max + 1].data)
    return length if length <= length_max else None


def _decompress(frame: memoryview, plane: Bytes) -> None:
    check_frame(frame, len(plane))
    try:
        # One call with room for all bytes decodes directly to `plane`, without another buffer.
        with _tools.decompressor.stream_reader(frame) as reader:
            count = reader.readinto(plane.data)
    except zstandard.ZstdError as error:
        raise BadFrame(str(error)) from error
    if count != len(plane):
        raise BadFrame(f"the frame gives {count} bytes, {len(plane)} are expected")


SEGMENTS: Final = 32
SPARSE_MAX: Final = 0.4
"""The largest share of bytes other than zero in a sparse segment."""
_SPARSE_HEAD = struct.Struct("<6I")
_RAW_BIT: Final = 1 << 31
_LONG_GAP: Final = 255


def _compress_sparse(plane: Bytes, room: Bytes, length_max: int) -> int | None:
    if length_max < _SPARSE_HEAD.size:  # also a plane of zeros
        return None
    mask = 0
    parts: tuple[list[Bytes], list[Bytes]] = ([], [])
    for index, (begin, end) in enumerate(_segments(len(plane))):
        is_sparse = bool(np.count_nonzero(plane[begin:end]) <= SPARSE_MAX * (end - begin))
        mask |= is_sparse << index
        parts[is_sparse].append(plane[begin:end])
    if all(parts):
        dense, sparse = map(np.concatenate, parts)
    else:
        dense, sparse = (plane[:0], plane) if parts[True] else (plane, plane[:0])
    places = np.flatnonzero(sparse != 0)  # of booleans: five times as fast as of bytes
    values = sparse[places]
    gaps = _gaps(np.diff(places, prepend=-1) - 1)
    position, sizes = _SPARSE_HEAD.size, []
    for stream in (gaps, values, dense):
        limit = length_max - position
        if len(stream) == 0:
            sizes.append(0)
            continue
        stream_max = min(limit, int(len(stream) * (1 - GAIN_MIN)))
        length = _compress(_tools.entropy, stream, room[position:], stream_max) if stream_max > 0 else None
        if length is None:
            if len(stream) > limit:
                return None
            room[position : position + len(stream)] = stream
            length, size = len(stream), len(stream) | _RAW_BIT
        else:
            size = length
        sizes.append(size)
        position += length
    room[: _SPARSE_HEAD.size] = np.frombuffer(_SPARSE_HEAD.pack(mask, len(gaps), len(values), *sizes), np.uint8)
    return position


def _gaps(zeros: NDArray[np.intp]) -> Bytes:
    """Return the gaps of values that have so many `zeros` before them."""
    if zeros.max(initial=0) < _LONG_GAP:
        return zeros.astype(np.uint8)
    long_gaps = zeros // _LONG_GAP
    gaps = np.full(int(long_gaps.sum()) + len(zeros), _LONG_GAP, np.uint8)
    gaps[np.cumsum(long_gaps + 1) - 1] = zeros - long_gaps * _LONG_GAP
    return gaps


def _decompress_sparse(frame: memoryview, plane: Bytes) -> None:
    if len(frame) < _SPARSE_HEAD.size:
        raise BadFrame("a sparse plane ends inside its head")
    mask, gap_count, value_count, *sizes = _SPARSE_HEAD.unpack_from(frame)
    bounds = _segments(len(plane))
    sparse_size = sum(end - begin for index, (begin, end) in enumerate(bounds) if mask >> index & 1)
    if not value_count <= gap_count <= sparse_size:
        raise BadFrame(f"{value_count} values and {gap_count} gaps for {sparse_size} bytes")
    lengths = (gap_count, value_count, len(plane) - sparse_size)
    position, streams = _SPARSE_HEAD.size, []
    for size, length, room in zip(sizes, lengths, _streams.rooms, strict=True):
        end = position + (size & ~_RAW_BIT)
        if end > len(frame):
            raise BadFrame("a stream of a sparse plane is short")
        streams.append(_read_stream(frame[position:end], room[:length], is_raw=size & _RAW_BIT > 0))
        position = end
    if position != len(frame):
        raise BadFrame(f"{len(frame) - position} bytes follow the last stream of a sparse plane")
    gaps, values, dense = streams
    is_value = gaps != _LONG_GAP  # the places of the values follow from the gaps, all below `sparse_size`
    ends = np.cumsum(gaps + is_value.astype(np.uint8), dtype=np.intp)
    places: NDArray[np.intp] = ends[is_value] - 1
    if len(places) != value_count or (len(ends) and ends[-1] > sparse_size):
        raise BadFrame("the gaps of a sparse plane do not fit its size")
    if sparse_size == len(plane):
        plane[:] = 0
        plane[places] = values
        return
    sparse = _streams.sparse[:sparse_size]
    sparse[:] = 0
    sparse[places] = values
    positions, divided = [0, 0], (dense, sparse)
    for index, (begin, end) in enumerate(bounds):
        is_sparse = mask >> index & 1
        start = positions[is_sparse]
        plane[begin:end] = divided[is_sparse][start : start + end - begin]
        positions[is_sparse] += end - begin


def _read_stream(stored: memoryview, room: Bytes, *, is_raw: bool) -> Bytes:
    if is_raw or not len(room):
        if len(stored) != len(room):
            raise BadFrame(f"a raw stream of {len(stored)} bytes, {len(room)} are expected")
        return np.frombuffer(stored, np.uint8)
    _decompress(stored, room)
    return room


def _segments(size_bytes: int) -> list[tuple[int, int]]:
    """Return begin and end of each segment: equal sizes, and the rest in the last one."""
    step = size_bytes // SEGMENTS
    return list(pairwise([*range(0, step * SEGMENTS, step), size_bytes] if step else [0] * SEGMENTS + [size_bytes]))


class _Streams(threading.local):
    """Memory of each thread for the streams of a sparse plane."""

    def __init__(self) -> None:
        self.rooms = tuple(np.empty(CHUNK_TARGET_BYTES, np.uint8) for _ in range(3))
        self.sparse: Bytes = np.empty(CHUNK_TARGET_BYTES, np.uint8)


_streams = _Streams()


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
