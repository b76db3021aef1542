"""A new file written from front to back past the page cache, where the file system can.

A blob is written once and seldom read soon: going through the page cache would copy every byte, push out what others
keep there, and cost a page allocation for each 4 KiB, which on a virtual machine can be slower than the disk. Direct
writes want aligned memory, offsets and sizes; so bytes are gathered in an aligned buffer, the front of the file, where
the head goes last, waits in memory, and the padding of the last write is cut off again.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Sequence

from organs.registry.store.files import Buffer, Files

ALIGNMENT = 4096
"""What every file system's direct writes are content with."""
BUFFER_BYTES = 4 * 1024 * 1024


class AlignedBuffers:
    """Page-aligned buffers that go round: fresh memory is slow at its first touch. Safe from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[mmap.mmap] = []

    def get(self) -> mmap.mmap:
        """A buffer of `BUFFER_BYTES`."""
        with self._lock:
            return self._free.pop() if self._free else mmap.mmap(-1, BUFFER_BYTES)

    def give_back(self, buffer: mmap.mmap) -> None:
        """It may be used again."""
        with self._lock:
            self._free.append(buffer)


class DirectWriter:
    """Appends behind a front of `front_bytes` that is written last. Raises OSError as `files` does."""

    def __init__(self, files: Files, descriptor: int, buffers: AlignedBuffers, front_bytes: int) -> None:
        self._files = files
        self._descriptor = descriptor
        self._buffers = buffers
        self._buffer: mmap.mmap | None = buffers.get()
        self._filled = 0
        self._offset = -(-front_bytes // ALIGNMENT) * ALIGNMENT
        """Where the buffer will be written."""
        self._front = bytearray(self._offset)
        self._front_filled = front_bytes

    def append(self, pieces: Sequence[Buffer]) -> None:
        """Write `pieces` one after another."""
        for piece in pieces:
            view = memoryview(piece).cast("B")
            view = self._into_front(view)
            while view:
                view = self._into_buffer(view)

    def finish(self, front: Buffer) -> None:
        """Write what is left, then `front`, which has the announced size. The caller syncs."""
        self._front[: len(front)] = front
        size = self._front_filled if self._front_filled < len(self._front) else self._offset + self._filled
        if self._filled:
            self._flush()
        self._offset = 0
        rest = memoryview(self._front)
        while rest:
            rest = self._into_buffer(rest)
        if self._filled:
            self._flush()
        self._files.truncate(self._descriptor, size)
        self.close()

    def close(self) -> None:
        """Give the buffer back; safe to call twice."""
        if self._buffer is not None:
            self._buffers.give_back(self._buffer)
            self._buffer = None

    def _into_front(self, view: memoryview) -> memoryview:
        room = len(self._front) - self._front_filled
        taken = view[:room]
        self._front[self._front_filled : self._front_filled + len(taken)] = taken
        self._front_filled += len(taken)
        return view[room:] if room else view

    def _into_buffer(self, view: memoryview) -> memoryview:
        assert self._buffer is not None
        taken = view[: BUFFER_BYTES - self._filled]
        self._buffer[self._filled : self._filled + len(taken)] = taken
        self._filled += len(taken)
        if self._filled == BUFFER_BYTES:
            self._flush()
        return view[len(taken) :]

    def _flush(self) -> None:
        assert self._buffer is not None
        padded = -(-self._filled // ALIGNMENT) * ALIGNMENT
        with memoryview(self._buffer) as whole, whole[:padded] as block:
            self._files.write_direct(self._descriptor, block, self._offset)
        self._offset += self._filled
        self._filled = 0
