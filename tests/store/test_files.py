"""Tests of system calls: short writes are completed, only regular files are read, errors are translated."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from organs.registry.errors import CorruptBlob, DiskFull, MissingBlob, OrganError, StoreError, StoreUnwritable
from organs.registry.store.files import KEPT_SECONDS, Files, temporary_folder, translated

FILES = Files()


def write(path: Path, *pieces: bytes, offset: int = 0) -> int:
    descriptor = FILES.create(path)
    try:
        return FILES.write_at(descriptor, pieces, offset)
    finally:
        FILES.close(descriptor)


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


@pytest.mark.parametrize("most", [1, 2, 3, 4, 5])
def test_a_short_write_is_completed(most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writev, write_one = os.pwritev, os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, pieces, at: writev(fd, [b"".join(pieces)[:most]], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write_one(fd, bytes(data)[:most], at))
    assert write(tmp_path / "a", b"ab", b"cde", offset=3) == 5
    assert (tmp_path / "a").read_bytes() == b"\0\0\0abcde"


def test_a_file_above_the_size_limit_is_reported_as_a_full_disk(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            write(tmp_path / "a", bytes(700), bytes(700))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "a").stat().st_size == 1000, "the first call wrote what it could"
    assert isinstance(translated(caught.value, tmp_path / "a"), DiskFull)


def test_a_file_is_created_only_at_a_free_path(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"kept")
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("target", "link", "dangling"):
        with pytest.raises(FileExistsError):
            FILES.create(tmp_path / name)
    assert target.read_bytes() == b"kept"
    assert not (tmp_path / "nowhere").exists()


def a_symlink(path: Path) -> None:
    path.with_name("other").write_bytes(b"data")
    path.symlink_to(path.with_name("other"))


def a_second_name(path: Path) -> None:
    path.write_bytes(b"data")
    os.link(path, path.with_name("other"))


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


@pytest.mark.parametrize(
    "make", [a_symlink, a_second_name, a_socket, Path.mkdir, os.mkfifo], ids=lambda make: make.__name__
)
def test_only_a_regular_file_with_a_single_link_is_opened(
    make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the address of a socket must be short
    path = Path("blob")
    make(path)
    before = descriptors()
    with pytest.raises((CorruptBlob, OSError)) as caught:
        FILES.open_to_read(path)
    assert descriptors() == before
    if isinstance(caught.value, OSError):
        assert isinstance(translated(caught.value, path), StoreError)


def test_a_plain_file_is_opened_and_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    descriptor = FILES.open_to_read(tmp_path / "a")
    try:
        assert FILES.size(descriptor) == 10
        assert FILES.read_at(descriptor, 3, 4) == b"3456"
        assert FILES.read_at(descriptor, 8, 4) == b"89"
    finally:
        FILES.close(descriptor)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EFBIG, DiskFull),
        (errno.EROFS, StoreUnwritable),
        (errno.EACCES, StoreUnwritable),
        (errno.EPERM, StoreUnwritable),
        (errno.ENOENT, MissingBlob),
        (errno.ELOOP, CorruptBlob),
        (errno.EIO, StoreError),
        (errno.ENOTDIR, StoreError),
        (errno.EMFILE, StoreError),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else value.__name__,
)
def test_a_system_error_becomes_one_message(number: int, kind: type[OrganError]) -> None:
    error = translated(OSError(number, os.strerror(number)), Path("/store/ab/name"))
    assert type(error) is kind
    assert "name" in str(error) or "/store/ab" in str(error)
    assert "Errno" not in str(error)


def test_the_folders_of_killed_processes_are_removed(tmp_path: Path) -> None:
    with temporary_folder(tmp_path) as used:
        for name, age in (
            ("work-left", 90),
            ("work-new", 0),
            ("other", 2 * KEPT_SECONDS),
            (used.name, 2 * KEPT_SECONDS),
        ):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "shard").touch()
            moment = time.time() - age
            os.utime(tmp_path / name, (moment, moment))
        with temporary_folder(tmp_path) as folder:
            assert {path.name for path in tmp_path.iterdir()} == {"work-new", "other", used.name, folder.name}
    assert {path.name for path in tmp_path.iterdir()} == {"work-new", "other"}


def test_without_locks_the_folders_of_killed_processes_are_removed_after_a_week(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EBADF, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    for name, age in (("work-old", KEPT_SECONDS + 60), ("work-young", 90)):
        (tmp_path / name).mkdir()
        moment = time.time() - age
        os.utime(tmp_path / name, (moment, moment))
    with temporary_folder(tmp_path) as folder:
        assert {path.name for path in tmp_path.iterdir()} == {"work-young", folder.name}
