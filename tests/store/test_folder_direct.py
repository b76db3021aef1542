"""Tests of writing without the page cache: every size is written exactly, with a fallback to plain writes."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.store.files import (
    ALIGNMENT,
    BUFFER_BYTES,
    AlignedBuffers,
    Buffer,
    DirectWriter,
    Files,
)
from tests.random_files import PATIENT

DATA = np.random.default_rng(1).bytes(2 * BUFFER_BYTES + 3 * ALIGNMENT)
FRONT = b"#" * (3 * ALIGNMENT)
DIRECT = getattr(os, "O_DIRECT", 0)


def write(path: Path, front_bytes: int, pieces: list[Buffer], buffers: AlignedBuffers | None = None) -> bytes:
    """Return the bytes of `path` after `pieces` were written after a front."""
    files = Files()
    descriptor = files.create_direct(path)
    try:
        writer = DirectWriter(files, descriptor, buffers or AlignedBuffers(), front_bytes)
        for piece in pieces:
            writer.append([piece])
        writer.finish(FRONT[:front_bytes])
    finally:
        files.close(descriptor)
    return path.read_bytes()


NEAR_A_BLOCK = [0, 1, 96, ALIGNMENT - 1, ALIGNMENT, ALIGNMENT + 1, 2 * ALIGNMENT + 5]


@pytest.mark.parametrize("front_bytes", NEAR_A_BLOCK)
@pytest.mark.parametrize(
    "size", [*NEAR_A_BLOCK, ALIGNMENT - 96, BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 1, len(DATA)]
)
def test_data_of_every_size_after_every_front_is_written_exactly(front_bytes: int, size: int, tmp_path: Path) -> None:
    content = write(tmp_path / "a", front_bytes, [DATA[:size]])
    assert content == FRONT[:front_bytes] + DATA[:size]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("direct")


@PATIENT
@given(front_bytes=st.integers(0, 3 * ALIGNMENT), sizes=st.lists(st.integers(0, 3 * ALIGNMENT), max_size=12))
def test_pieces_of_any_size_are_written_in_sequence(folder: Path, front_bytes: int, sizes: list[int]) -> None:
    path = folder / "any"
    path.unlink(missing_ok=True)
    ends = np.cumsum([0, *sizes]).tolist()
    pieces: list[Buffer] = [memoryview(DATA)[begin:end] for begin, end in pairwise(ends)]
    assert write(path, front_bytes, pieces) == FRONT[:front_bytes] + DATA[: ends[-1]]


def test_pieces_may_be_any_bytes_in_memory(tmp_path: Path) -> None:
    numbers = np.arange(5000, dtype="<u4")
    pieces: list[Buffer] = [numbers.data, bytearray(b"abc"), numbers[::1].view(np.uint8).data[1:7]]
    assert write(tmp_path / "a", 7, pieces) == FRONT[:7] + numbers.tobytes() + b"abc" + numbers.tobytes()[1:7]


def test_a_front_larger_than_the_buffer_is_written_completely(tmp_path: Path) -> None:
    files, front = Files(), DATA[: BUFFER_BYTES + 2 * ALIGNMENT + 9]
    descriptor = files.create_direct(tmp_path / "a")
    writer = DirectWriter(files, descriptor, AlignedBuffers(), len(front))
    writer.append([b"body" * 5000])
    writer.finish(front)
    files.close(descriptor)
    assert (tmp_path / "a").read_bytes() == front + b"body" * 5000


def test_buffers_are_reused_and_returned_once(tmp_path: Path) -> None:
    buffers = AlignedBuffers()
    first = buffers.get()
    buffers.give_back(first)
    for number in range(3):
        assert write(tmp_path / f"{number}", 10, [DATA[:100]], buffers)
    assert buffers.get() is first
    assert buffers.get() is not first
    writer = DirectWriter(Files(), -1, buffers, 0)
    writer.close()
    writer.close()
    assert buffers.get() is not buffers.get(), "closed twice, given back once"


def refused_when_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refusing(path: Any, flags: int, mode: int = 0o777) -> int:
        descriptor = real(path, flags & ~DIRECT, mode)
        if not flags & DIRECT:
            return descriptor
        os.close(descriptor)  # Linux creates the file before it refuses the flag
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "open", refusing)


def refused_when_written(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev

    def refusing(descriptor: int, pieces: list[Buffer], offset: int) -> int:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(descriptor, pieces, offset)

    monkeypatch.setattr(os, "pwritev", refusing)


@pytest.mark.parametrize("refused", [refused_when_opened, refused_when_written], ids=lambda way: way.__name__)
def test_a_file_system_without_direct_writes_gets_plain_ones(
    refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(monkeypatch)
    assert write(tmp_path / "a", 96, [DATA]) == FRONT[:96] + DATA


@pytest.fixture
def occupied(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "a"
    path.write_bytes(b"kept")
    yield path
    assert path.read_bytes() == b"kept"


def test_a_direct_file_is_created_only_at_a_free_path(occupied: Path) -> None:
    with pytest.raises(FileExistsError):
        Files().create_direct(occupied)
    link = occupied.with_name("link")
    link.symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        Files().create_direct(link)


def test_only_a_missing_feature_falls_back_to_plain_writes(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"")
    descriptor = os.open(path, os.O_RDONLY | DIRECT)
    try:
        with pytest.raises(OSError, match="Bad file descriptor"):
            Files().write_direct(descriptor, memoryview(bytes(ALIGNMENT)), 0)
        assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & DIRECT == DIRECT
    finally:
        os.close(descriptor)
