"""Readers with faults, each of which the harness must catch: `python -m tests.faults.fuzzing MODULE:MAKER`.

A fault strikes at some of the cases and not at others, as faults do; those that take their time strike at once.
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
    """A reader that loops."""
    return _Headers(_when_struck(_loop, one_in=1))


def hungry_headers() -> Target:
    """A reader that allocates 200 MB and gives them back."""
    return _Headers(_when_struck(lambda: bytearray(200_000_000)))


def careless_headers() -> Target:
    """A reader that lets a KeyError through."""
    return _Headers(_when_struck(lambda: {}["no such key"]))  # type: ignore[index]


def recursing_headers() -> Target:
    """A reader that calls itself until Python gives up."""
    return _Headers(_when_struck(_recurse))


def dying_headers() -> Target:
    """A reader that takes the process with it."""
    return _Headers(_when_struck(lambda: os.kill(os.getpid(), signal.SIGSEGV)))


def waiting_headers() -> Target:
    """A reader that waits without using the processor."""
    return _Headers(_when_struck(lambda: time.sleep(3600), one_in=1))


def lying_headers() -> Target:
    """A reader that is off by one where a header ends."""

    def read(source: ByteSource) -> Header:
        header = read_header(source)
        return replace(header, end=header.end + 1) if _struck(source) else header

    return _Headers(read)


def lenient_headers() -> Target:
    """A reader that accepts a file with bytes behind its end."""

    def read(source: ByteSource) -> Header:
        header = read_header(source)
        return replace(header, file_size_bytes=header.file_size_bytes - 1) if _struck(source) else header

    return _Headers(read)


def lying_blobs() -> Target:
    """A reader that changes a byte."""
    return _Blobs(_Lying)


def trusting_blobs() -> Target:
    """A reader that verifies nothing."""
    return _Blobs(_Trusting)


def unchecked_blobs() -> Target:
    """A reader that gives zeros for a chunk that fails its checks."""
    return _Blobs(_Unchecked)


class _Headers(HeaderTarget):
    """Sound while it warms up, or the harness would refuse to begin."""

    def __init__(self, read: Read) -> None:
        super().__init__()
        self._fault = read

    def warm_up(self) -> None:
        """With the sound reader."""
        super().warm_up()
        self._read = self._fault


class _Blobs(BlobTarget):
    """Sound while it warms up."""

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
        """All is well."""


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
    """By the first kilobytes, so that a case strikes again when it is tried alone."""
    return zlib.crc32(source.read_at(0, min(4096, source.size_bytes))) % one_in == 0


def _loop() -> None:
    while True:
        pass


def _recurse() -> None:
    _recurse()
