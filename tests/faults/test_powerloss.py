"""Tests of a power cut at any moment. Every possible state of the disk is checked; some are opened.

`make crash` opens all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from organs.registry.local import LocalRegistry
from organs.registry.store.files import Files
from tests.faults.crash_states import Disk
from tests.faults.journal import Journal, JournalFiles, RowsFirst, WithoutFileSync, WithoutFolderSync
from tests.faults.powerloss import (
    MakeFiles,
    Scenario,
    a_repack,
    a_repair,
    a_sweep,
    an_ingest_against_parents,
    check,
    check_placed,
    killed_and_run_again,
    placed_file,
    two_ingests,
)

pytestmark = pytest.mark.sqlite  # whose files are a part of the states of the disk


@pytest.mark.parametrize(
    ("make", "states_min", "tried"),
    [
        (two_ingests, 80, 3),
        (a_sweep, 30, 2),
        (a_repair, 25, 2),
        (a_repack, 80, 3),
        (an_ingest_against_parents, 60, 2),
    ],
)
def test_every_state_after_a_power_cut_is_sound(
    make: Callable[[Path], Scenario], states_min: int, tried: int, tmp_path: Path
) -> None:
    findings = check(make(tmp_path), tmp_path, tried)
    assert findings.violations == []
    assert findings.states >= states_min
    assert findings.thorough == tried


@pytest.mark.parametrize("dies_at", [3, 9])
def test_a_power_cut_after_a_kill_and_another_run_loses_nothing(dies_at: int, tmp_path: Path) -> None:
    findings = check(killed_and_run_again(tmp_path, dies_at), tmp_path, 1)
    assert findings.violations == []
    assert findings.states > 30


def test_a_placed_file_is_the_old_or_the_new_one_and_durable_after_success(tmp_path: Path) -> None:
    findings = check_placed(*placed_file(tmp_path))
    assert findings.violations == []
    assert findings.states > 40


@pytest.mark.parametrize("mutant", [WithoutFileSync, WithoutFolderSync, RowsFirst])
@pytest.mark.parametrize("make", [two_ingests, a_repack])
def test_an_ingest_or_a_repack_that_syncs_too_little_or_too_late_is_caught(
    make: Callable[[Path, MakeFiles], Scenario], mutant: MakeFiles, tmp_path: Path
) -> None:
    findings = check(make(tmp_path, mutant), tmp_path, 0)
    assert [reason for reason in findings.violations if reason.startswith("quick")]


def test_the_thorough_check_catches_a_missing_sync(tmp_path: Path) -> None:
    findings = check(two_ingests(tmp_path, WithoutFolderSync), tmp_path, 2)
    assert [reason for reason in findings.violations if reason.startswith("thorough")]


@pytest.mark.parametrize("mutant", [WithoutFileSync, WithoutFolderSync])
def test_a_placed_file_that_is_not_synced_is_caught(mutant: Callable[[Journal], JournalFiles], tmp_path: Path) -> None:
    assert check_placed(*placed_file(tmp_path, mutant)).violations


def test_every_writing_connection_syncs_to_disk(registry: LocalRegistry) -> None:
    engine = registry.catalog.writer
    with closing(engine.raw_connection()) as first, closing(engine.raw_connection()) as other:
        for connection in (first, other):
            cursor = connection.cursor()
            assert cursor.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert cursor.execute("PRAGMA synchronous").fetchone() == (2,), "2 is FULL"


def test_a_new_home_is_synced_before_its_database_is_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[Path, bool]] = []
    home = tmp_path / "new" / "home"

    def sync_folder(_files: Files, path: Path) -> None:
        synced.append((path, home.exists()))

    monkeypatch.setattr(Files, "sync_folder", sync_folder)
    LocalRegistry.open(home).close()
    assert synced == [(tmp_path.parent, False), (tmp_path, False), (tmp_path / "new", True)]
    LocalRegistry.open(home).close()
    assert len(synced) == 3


def test_an_unsynced_file_may_be_in_any_legal_state(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    files = JournalFiles(journal)
    descriptor = files.create(tmp_path / "a")
    files.write_at(descriptor, [b"12"], 0)
    files.write_at(descriptor, [b"34"], 2)
    files.close(descriptor)
    states = {tuple(state.values()) for state in _found(journal)}
    assert states == {(), (b"",), (b"12",), (b"\0\0",), (b"1234",), (b"\0\x0034",), (b"12\0\0",), (b"\0\0\0\0",)}


def test_a_durable_file_has_the_old_name_or_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12")
    journal = Journal(tmp_path)
    files = JournalFiles(journal)
    files.rename(tmp_path / "a", tmp_path / "b")
    assert _found(journal) == [{"a": b"12"}, {"b": b"12"}]
    files.sync_folder(tmp_path)
    files.unlink(tmp_path / "b")
    assert _found(journal)[2:] == [{}]
    *_, last = Disk(journal).states()
    assert last.files == ()


def test_a_file_in_a_lost_folder_is_lost(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    files = JournalFiles(journal)
    files.make_folder(tmp_path / "below")
    descriptor = files.create(tmp_path / "below" / "a")
    files.sync_folder(tmp_path / "below")
    files.close(descriptor)
    states = list(Disk(journal).states())
    assert {state.folders for state in states} == {(), ("below",)}
    assert all(state.folders for state in states if state.files)


def _found(journal: Journal) -> list[dict[str, bytes]]:
    disk = Disk(journal)
    return [{path: disk.contents[key] for path, key in state.files} for state in disk.states()]
