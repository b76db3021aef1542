"""Readers with faults, each of which the harness must catch: `--target MODULE:MAKER`.

A fault occurs in some of the cases, as real faults do; slow faults occur in the first case.
"""

from __future__ import annotations

import os
import signal
import time
import zlib
from collections.abc import Callable
from dataclasses import replace

from organs.registry.errors import CorruptBlob
from organs.registry.gguf import Header, read_header
from organs.registry.gguf.header import ByteSource
from organs.registry.store import BlobReader
from tests.faults.fuzzing.blob_check import BlobTarget, Open
from tests.faults.fuzzing.header_check import HeaderTarget, Read
from tests.faults.fuzzing.targets import Target

ONE_IN = 8


def endless_headers() -> Target:
    """Return a reader that loops."""
    return _Headers(_when_struck(_loop, one_in=1))


def hungry_headers() -> Target:
    """Return a reader that allocates 200 MB and frees them."""
    return _Headers(_when_struck(lambda: bytearray(200_000_000)))


def careless_headers() -> Target:
    """Return a reader that raises a KeyError."""
    return _Headers(_when_struck(lambda: {}["no such key"]))  # type: ignore[index]


def recursing_headers() -> Target:
    """Return a reader that recurses until Python stops it."""
    return _Headers(_when_struck(_recurse))


def dying_headers() -> Target:
    """Return a reader that kills the process."""
    return _Headers(_when_struck(lambda: os.kill(os.getpid(), signal.SIGSEGV)))


def waiting_headers() -> Target:
    """Return a reader that waits without using the processor."""
    return _Headers(_when_struck(lambda: time.sleep(3600), one_in=1))


def lying_headers() -> Target:
    """Return a reader that is off by one at the end of a header."""

    def read(source: ByteSource) -> Header:
        header = read_header(source)
        return replace(header, end=header.end + 1) if _struck(source) else header

    return _Headers(read)


def lenient_headers() -> Target:
    """Return a reader that accepts a file with bytes after its end."""

    def read(source: ByteSource) -> Header:
        header = read_header(source)
        return replace(header, file_size_bytes=header.file_size_bytes - 1) if _struck(source) else header

    return _Headers(read)


def lying_blobs() -> Target:
    """Return a reader that changes a byte."""
    return _Blobs(_Lying)


def trusting_blobs() -> Target:
    """Return a reader that verifies nothing."""
    return _Blobs(_Trusting)


def unchecked_blobs() -> Target:
    """Return a reader that gives zeros for a chunk that fails its checks."""
    return _Blobs(_Unchecked)


class _Headers(HeaderTarget):
    """Works correctly during the warm-up, else the harness would refuse to begin."""

    def __init__(self, read: Read) -> None:
        super().__init__()
        self._fault = read

    def warm_up(self) -> None:
        """With the sound reader."""
        super().warm_up()
        self._read = self._fault


class _Blobs(BlobTarget):
    """Works correctly during the warm-up."""

    def __init__(self, open_blob: Open) -> None:
        super().__init__()
        self._fault = open_blob

    def warm_up(self) -> None:
        """With the sound reader."""
        super().warm_up()
        self._open = self._fault


class _Lying(BlobReader):
    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        data = bytearray(super().read(offset, size))
        if data and zlib.crc32(data) % ONE_IN == 0:
            data[-1] ^= 1
        return bytes(data)


class _Trusting(BlobReader):
    def verify(self) -> None:
        """Accept everything."""


class _Unchecked(BlobReader):
    def read(self, offset: int = 0, size: int | None = None) -> bytes:
        try:
            return super().read(offset, size)
        except CorruptBlob:
            return bytes(self.size_bytes - offset if size is None else size)


def _when_struck(strike: Callable[[], object], one_in: int = ONE_IN) -> Callable[[ByteSource], Header]:
    def read(source: ByteSource) -> Header:
        if _struck(source, one_in):
            strike()
        return read_header(source)

    return read


def _struck(source: ByteSource, one_in: int = ONE_IN) -> bool:
    """Decide by the first kilobytes, so that a case fails again when it is tried alone."""
    return zlib.crc32(source.read_at(0, min(4096, source.size_bytes))) % one_in == 0


def _loop() -> None:
    while True:
        pass


def _recurse() -> None:
    _recurse()
