"""One plane to one Zstandard frame and back.

Zstandard finds almost no matches in weights, and looking for them is what takes its time. With the smallest hash table,
matches of at least seven bytes and a window of one block it gives up the search at once, and what remains is its
entropy coder: the exponents of BF16 shrink to 0.336 at five times the speed of level 3, which reaches 0.413.
`target_length` must stay 0: with the strategy `fast` anything else turns the entropy coder of literals off.
"""

from __future__ import annotations

import math
import threading
from typing import Final

import numpy as np
import zstandard

from organs.registry.store.codec.frames import WINDOW_MAX_BYTES, BadFrame, check_frame
from organs.registry.store.codec.layout import Coder
from organs.registry.store.codec.planes import Bytes

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
