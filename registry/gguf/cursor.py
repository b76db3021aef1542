"""A bounded window that moves over a source. Every length is checked against the bytes that remain before its use."""

from __future__ import annotations

import struct
from typing import NoReturn

from organs.registry.errors import BadGguf
from organs.registry.gguf.source import ByteSource
from organs.registry.gguf.types import VALUE_MAX

WINDOW_FIRST_BYTES = 64 * 1024
WINDOW_BYTES = 1024 * 1024
FIELD_TEXT_MAX = 80
"""Longer keys are cut in error texts."""

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """Reads a source from front to back in windows of at most 1 MiB, whatever the file claims."""

    def __init__(self, source: ByteSource) -> None:
        self._source = source
        self._size = source.size_bytes
        self._start = 0
        self._position = 0
        self._window = source.read_at(0, min(WINDOW_FIRST_BYTES, self._size))

    @property
    def offset(self) -> int:
        """Where the next byte will be read."""
        return self._start + self._position

    @property
    def remaining(self) -> int:
        """Bytes from here to the end of the source."""
        return self._size - self.offset

    def refuse(self, field: str, reason: str, offset: int | None = None) -> NoReturn:
        """Raise BadGguf for `field` at `offset` (here, if not given)."""
        raise BadGguf(self._source.name, field[:FIELD_TEXT_MAX], self.offset if offset is None else offset, reason)

    def u32(self, field: str) -> int:
        """The next unsigned 32-bit number."""
        position = self._reserve(4, field)
        self._position = position + 4
        value: int = _U32.unpack_from(self._window, position)[0]
        return value

    def u64(self, field: str) -> int:
        """The next unsigned 64-bit number."""
        position = self._reserve(8, field)
        self._position = position + 8
        value: int = _U64.unpack_from(self._window, position)[0]
        return value

    def unpack(self, layout: struct.Struct, field: str) -> tuple[int, ...]:
        """The next numbers in a fixed layout."""
        position = self._reserve(layout.size, field)
        self._position = position + layout.size
        return layout.unpack_from(self._window, position)

    def take(self, size: int, field: str) -> bytes:
        """The next `size` bytes. Callers bound `size` first."""
        position = self._reserve(size, field)
        self._position = position + size
        return self._window[position : position + size]

    def skip(self, size: int, field: str) -> None:
        """Step over `size` bytes without reading them."""
        if size > self.remaining:
            self.refuse(field, f"{size} bytes announced, {self.remaining} left in the file")
        self._position += size

    def skip_strings(self, count: int, field: str) -> None:
        """Step over `count` strings, reading only their lengths."""
        begin = self.offset
        unpack_from = _U64.unpack_from
        while count:
            self._reserve(8, field)
            window, position = self._window, self._position
            last = len(window) - 8
            size = 0
            while count and position <= last:
                size = unpack_from(window, position)[0]
                position += 8 + size
                count -= 1
            # Only the last string seen can reach beyond the window, so only that one can be too long.
            if size > VALUE_MAX or self._start + position > self._size:
                self.refuse(field, "a string in the array runs past the end of the file or the limit", begin)
            self._position = position

    def _reserve(self, size: int, field: str) -> int:
        """Make sure that `size` bytes from here lie in the window; the position of the first."""
        if self._position + size > len(self._window):
            if size > self.remaining:
                self.refuse(field, f"the file ends here: {size} bytes wanted, {self.remaining} left")
            self._start, self._position = self.offset, 0
            want = min(max(size, WINDOW_BYTES), self._size - self._start)
            self._window = self._source.read_at(self._start, want)
        return self._position
