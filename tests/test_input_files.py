"""Tests of an open input file: a regular file, read exactly, that must not change."""

from __future__ import annotations

import gc
import os
import socket
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from organs.ingest.hashing import BufferPool
from organs.registry.errors import BadSource
from organs.registry.input_files import BUFFER_BYTES, FileSource

DATA = bytes(range(256)) * 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "a.gguf"
    file.write_bytes(DATA)
    return file


def test_bytes_are_read_at_the_requested_offset(path: Path) -> None:
    with FileSource(path) as source:
        assert (source.name, source.size_bytes) == (str(path), len(DATA))
        assert source.read_at(0, 4) == DATA[:4]
        assert source.read_at(1_000, 5_000) == DATA[1_000:6_000]
        assert source.read_at(len(DATA), 0) == b""
        buffer = bytearray(300)
        source.read_into(memoryview(buffer), 17)
        assert buffer == DATA[17:317]


@pytest.mark.parametrize(("offset", "size"), [(0, len(DATA) + 1), (len(DATA), 1), (len(DATA) - 1, 2), (10**9, 1)])
def test_a_read_beyond_the_end_is_an_error(offset: int, size: int, path: Path) -> None:
    with FileSource(path) as source:
        with pytest.raises(BadSource, match=f"ends at byte {max(offset, len(DATA))}"):
            source.read_at(offset, size)
        with pytest.raises(BadSource, match="shorter than when it was opened"):
            source.read_into(memoryview(bytearray(size)), offset)


def test_a_file_can_be_closed_twice(path: Path) -> None:
    def opened() -> int:
        """Return how many descriptors of this process are of the file; other threads may open and close others."""
        links = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
        return links.count(str(path.resolve()))

    source = FileSource(path)
    assert opened() == 1
    source.close()
    source.close()
    assert opened() == 0


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def make_loop(path: Path) -> None:
    path.symlink_to(path)


def make_dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def link_to_zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def test_a_file_that_is_replaced_before_it_is_opened_is_refused_and_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_fifo(tmp_path / "model.gguf")
    status, before = os.stat(__file__), len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", lambda _path: status)
        with pytest.raises(BadSource, match="not a regular file"):
            FileSource(tmp_path / "model.gguf")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("make", [make_fifo, make_socket, make_loop, make_dangling, link_to_zero, Path.mkdir])
def test_a_path_that_is_not_a_regular_file_is_refused_before_it_is_opened(
    make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket has at most 107 bytes
    make(Path("odd.gguf"))
    for path in (tmp_path / "odd.gguf", tmp_path / "odd.gguf" / "x"):
        with pytest.raises(BadSource, match=r"odd\.gguf"):
            FileSource(path)


def test_a_link_to_a_file_is_followed(path: Path) -> None:
    link = path.with_name("link.gguf")
    link.symlink_to(path)
    with FileSource(link) as source:
        assert source.read_at(0, 4) == DATA[:4]
        source.check_unchanged()


def overwritten(path: Path) -> None:
    status = path.stat()
    with path.open("r+b") as stream:
        stream.write(b"other")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def grown(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b"more")


def cut(path: Path) -> None:
    os.truncate(path, 5)


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)


CHANGES = [overwritten, grown, cut, replaced, Path.unlink]


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_while_it_is_open_is_detected(change: Callable[[Path], None], path: Path) -> None:
    with FileSource(path) as source:
        source.check_unchanged()
        change(path)
        with pytest.raises(BadSource, match="while it was read"):
            source.check_unchanged()


def test_the_buffers_of_a_pool_are_free_without_a_collection_of_garbage() -> None:
    pool = BufferPool(2, threading.Event())
    used, held = pool.get(1), pool.get(BUFFER_BYTES)
    used.release()
    assert pool.get(2) is used
    used.release()
    memory = weakref.ref(used)
    del used
    pool.clear()
    assert memory() is None
    ended = weakref.ref(pool)
    gc.disable()
    try:
        del pool
        assert ended() is None
        held.release()  # a buffer can outlive its pool
    finally:
        gc.enable()
