"""Memory that is lent out and comes back by itself.

A chunk's stored bytes live until somebody has written them, so they cannot lie in a buffer of the thread that made
them. Fresh memory for each chunk goes back to the system with it and is slow to touch again: on a virtual machine that
took as long as the encoding. So a few buffers go round.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import Final

import numpy as np

from organs.registry.store.codec.layout import CHUNK_TARGET_BYTES
from organs.registry.store.codec.planes import Bytes

IDLE_MAX: Final = 8
"""How many buffers may wait for their next use."""
LENT_MIN_BYTES: Final = 256 << 10
"""Below this, memory is made to measure: many small blobs may wait together and must not each hold a whole buffer."""

_idle: deque[Bytes] = deque(maxlen=IDLE_MAX)


def lend(size_bytes: int) -> memoryview:
    """Writable memory of exactly that size, at most CHUNK_TARGET_BYTES, with any content.

    It is used again once the view and every view of a part of it are gone. Nobody has to give it back.
    """
    assert size_bytes <= CHUNK_TARGET_BYTES
    if size_bytes < LENT_MIN_BYTES:
        return np.empty(size_bytes, np.uint8).data
    try:
        buffer = _idle.pop()
    except IndexError:
        buffer = np.empty(CHUNK_TARGET_BYTES, np.uint8)
    lease = buffer[:size_bytes]
    # A memoryview, and each slice of it, keeps the lease alive; only when the last is gone the buffer waits again.
    weakref.finalize(lease, _idle.append, buffer).atexit = False
    return lease.data
