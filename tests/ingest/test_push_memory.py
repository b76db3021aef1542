"""Tests of the memory of pushes: a file is hashed once, and wrong entries are detected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from organs.ingest.contributions import cut_files
from organs.ingest.contributions.cut_files import Memory
from organs.ingest.contributions.sending import Misfit
from organs.registry.errors import BadSource
from tests.client.scripted_server import ReceivedRequest
from tests.ingest.memory_registry import FakeRegistry
from tests.ingest.push_cases import RecordedProgress, large_model, run_push, write_model_file
from tests.small_models import small_model

# Remembered digests and submissions.


def test_a_file_is_hashed_once(fake: FakeRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_model_file(tmp_path, large_model())
    first = run_push(fake, path, dry_run=True)
    monkeypatch.setattr("organs.ingest.contributions.cut_files.FilePass", None)  # calling it would fail
    shown = RecordedProgress()
    assert run_push(fake, path, shown, dry_run=True) == first
    assert shown.done_bytes["read"] == path.stat().st_size


def test_a_file_that_was_written_to_is_hashed_again(fake: FakeRegistry, tmp_path: Path) -> None:
    path = write_model_file(tmp_path, small_model(seed=1))
    run_push(fake, path)
    run_push(fake, write_model_file(tmp_path, changed := small_model(seed=2)))
    assert fake.file() == changed


def test_a_change_with_the_same_date_and_size_is_found_by_the_registry(fake: FakeRegistry, tmp_path: Path) -> None:
    path = write_model_file(tmp_path, small_model(seed=1))
    run_push(fake, path, dry_run=True)
    before = path.stat()
    with path.open("r+b") as file:
        file.write(changed := small_model(seed=2))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(Misfit, match="another digest"):
        run_push(fake, path)
    assert not fake.manifests
    run_push(fake, path)
    assert fake.file() == changed


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"file": 1}', "\0"])
def test_an_invalid_memory_entry_is_ignored(fake: FakeRegistry, tmp_path: Path, content: str) -> None:
    path = write_model_file(tmp_path, small_model())
    run_push(fake, path, dry_run=True)
    (entry,) = (tmp_path / "cache").iterdir()
    entry.write_text(content)
    assert run_push(fake, path).state == "published"


def test_a_memory_that_cannot_be_written_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    memory = Memory(tmp_path / "file" / "push")
    memory.store_submission("u", "n", "d", 7)
    assert memory.submission("u", "n", "d") is None


def test_the_oldest_memory_entries_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_files, "ENTRIES_MAX", 8)
    memory = Memory(tmp_path / "cache")
    for number in range(11):
        memory.store_submission("u", "n", str(number), 7)
    assert len(list((tmp_path / "cache").iterdir())) == 8
    assert memory.submission("u", "n", "10") == 7


def test_a_file_that_changes_while_it_is_sent_is_not_submitted(fake: FakeRegistry, tmp_path: Path) -> None:
    path = write_model_file(tmp_path, large_model())

    def change(asked: ReceivedRequest) -> None:
        if asked.method == "PATCH":
            os.utime(path)

    fake.fails = change
    with pytest.raises(BadSource, match="changed while it was read"):
        run_push(fake, path)
    assert not fake.manifests
