"""Buffers that are read into, shared by whoever looks at the bytes, and read into again.

Fresh memory is slow at its first touch, so a few buffers go round instead of one being allocated for each chunk.
Waiting for a free one is also what bounds the memory of an ingest.
"""

from __future__ import annotations

import queue
import threading

BUFFER_BYTES = 4 * 1024 * 1024
WAIT_SECONDS = 0.5


class Cancelled(Exception):
    """The run was given up; raised inside its threads to end them."""


class SharedBuffer:
    """Bytes that several threads look at. Each holds it once and releases it once; then it goes back to its pool."""

    def __init__(self, pool: BufferPool, memory: memoryview) -> None:
        self._pool = pool
        self._memory = memory
        self._lock = threading.Lock()
        self._holders = 0
        self.data = memory
        """What is in it: the first bytes of the memory."""

    def take(self, size: int) -> None:
        """Begin a round with one holder and `size` bytes."""
        assert self._holders == 0
        self._holders = 1
        self.data = self._memory[:size]

    def hold(self) -> None:
        """One more looks at it."""
        with self._lock:
            assert self._holders > 0
            self._holders += 1

    def release(self) -> None:
        """One is done with it."""
        with self._lock:
            self._holders -= 1
            free = self._holders == 0
            assert self._holders >= 0
        if free:
            self._pool.give_back(self)


class BufferPool:
    """`count` buffers of `BUFFER_BYTES`, allocated when they are first needed."""

    def __init__(self, count: int, cancelled: threading.Event) -> None:
        self._free: queue.LifoQueue[SharedBuffer] = queue.LifoQueue()  # the one used last is still in the cache
        self._unmade = count
        self._cancelled = cancelled

    def get(self, size: int) -> SharedBuffer:
        """A buffer with room for `size` bytes; waits for one. Raises Cancelled when the run is given up."""
        assert size <= BUFFER_BYTES
        buffer = self._made() or self._wait()
        buffer.take(size)
        return buffer

    def give_back(self, buffer: SharedBuffer) -> None:
        """Called by the last holder."""
        self._free.put(buffer)

    def _made(self) -> SharedBuffer | None:
        try:
            return self._free.get_nowait()
        except queue.Empty:
            pass
        if not self._unmade:
            return None
        self._unmade -= 1
        return SharedBuffer(self, memoryview(bytearray(BUFFER_BYTES)))

    def _wait(self) -> SharedBuffer:
        while not self._cancelled.is_set():
            try:
                return self._free.get(timeout=WAIT_SECONDS)
            except queue.Empty:
                continue
        raise Cancelled
