"""Tests of placing files and their folder: complete or not at all, for any failing call."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from organs.registry.errors import DiskFull, StoreError, StoreUnwritable
from organs.registry.store.files import Files, folder_for_placing, placed
from tests.faults.failing import SteppedFiles, failing_from, failing_once

NEW = b"new" * 100


def place(path: Path, files: Files | None = None) -> None:
    with placed(path, len(NEW), files) as file:
        file.write(NEW[:200])
        file.write(NEW[200:])


def calls_of(path: Path) -> list[str]:
    calls: list[str] = []
    place(path, SteppedFiles(lambda _number, name: calls.append(name)))
    return calls


def test_the_bytes_are_durable_before_the_name_and_the_name_before_the_end(tmp_path: Path) -> None:
    calls = calls_of(tmp_path / "a")
    assert calls == [
        *("free_bytes", "create_direct", "write_at", "truncate"),
        *("sync", "close", "rename", "sync_folder"),
    ]
    assert (tmp_path / "a").read_bytes() == NEW


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("failing", [failing_once, failing_from])
def test_a_failing_call_leaves_the_old_or_the_new_file_complete(
    failing: Callable[[int, int], SteppedFiles], number: int, tmp_path: Path
) -> None:
    calls = calls_of(tmp_path / "counted")
    (tmp_path / "counted").unlink()
    for at, call in enumerate(calls, 1):
        (tmp_path / "a").write_bytes(b"old")
        with pytest.raises(StoreError):
            place(tmp_path / "a", failing(at, number))
        expected = NEW if call == "sync_folder" else b"old"
        assert (tmp_path / "a").read_bytes() == expected
        remaining = {path.name for path in tmp_path.iterdir()} - {"a"}
        if failing is failing_once:
            assert remaining == set()
        for name in remaining:  # no file can be removed from a disk on which every call fails
            assert name.startswith(".organ-")
            (tmp_path / name).unlink()


def test_a_block_that_raises_leaves_only_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def interrupted() -> None:
        with placed(tmp_path / "a", 1) as file:
            file.write(NEW)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_full_disk_is_detected_before_anything_is_created(tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match="are needed"), placed(tmp_path / "a", 2**62):
        raise AssertionError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["gone", "file", "loop"])
def test_a_path_that_is_not_a_folder_is_reported(folder: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(StoreUnwritable, match="not a folder that can be written to"):
        place(tmp_path / folder / "a")


def test_a_new_folder_is_durable_before_files_are_placed_in_it(tmp_path: Path) -> None:
    calls: list[str] = []
    with folder_for_placing(tmp_path / "new", SteppedFiles(lambda _number, name: calls.append(name))):
        assert calls == ["make_folder", "sync_folder"]
        place(tmp_path / "new" / "a")
    with folder_for_placing(tmp_path / "new"):
        place(tmp_path / "new" / "b")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a", "b"]


def test_only_a_new_and_unused_folder_is_removed(tmp_path: Path) -> None:
    def fail_in(folder: Path) -> None:
        with folder_for_placing(folder):
            if folder.name == "used":
                place(folder / "a")
            raise KeyError

    (tmp_path / "mine").mkdir()
    for name in ("mine", "new", "used"):
        with pytest.raises(KeyError):
            fail_in(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "used"]


@pytest.mark.parametrize("at", [1, 2])
def test_a_folder_that_cannot_be_created_leaves_nothing(at: int, tmp_path: Path) -> None:
    with pytest.raises(DiskFull), folder_for_placing(tmp_path / "new", failing_once(at, errno.ENOSPC)):
        raise AssertionError
    assert list(tmp_path.iterdir()) == []


def test_missing_parents_are_created_and_stay_only_if_they_are_used(tmp_path: Path) -> None:
    for name in ("used", "unused"):
        with folder_for_placing(tmp_path / name / "inner") as made:
            assert made == [tmp_path / name, tmp_path / name / "inner"]
            if name == "used":
                place(made[-1] / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["used"]
    below_file = folder_for_placing(tmp_path / "used" / "inner" / "a" / "new")
    with pytest.raises(StoreUnwritable, match="a: exists, and is not a folder"), below_file:
        raise AssertionError


@pytest.mark.parametrize("name", ["there", "new"])
@pytest.mark.parametrize("error", [BrokenPipeError(), FileExistsError(), OSError(errno.ENOSPC, "full")])
def test_an_error_of_the_block_is_not_one_of_the_folder(error: OSError, name: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    with pytest.raises(OSError) as raised, folder_for_placing(tmp_path / name):  # noqa: PT011  # compared below
        raise error
    assert raised.value is error
