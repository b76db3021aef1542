"""Tests of a power cut at any moment. Every possible state of the disk is checked; some are opened.

`make crash` opens all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from organs.registry.local import LocalRegistry
from organs.registry.store.files import Files
from tests.faults.journal import RowsFirst, WithoutFileSync, WithoutFolderSync
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
def test_an_ingest_that_syncs_too_little_or_too_late_is_caught(mutant: MakeFiles, tmp_path: Path) -> None:
    findings = check(two_ingests(tmp_path, mutant), tmp_path, 2)
    assert {reason.partition(":")[0] for reason in findings.violations} == {"quick", "thorough"}


@pytest.mark.parametrize("mutant", [WithoutFileSync, WithoutFolderSync])
def test_a_placed_file_that_is_not_synced_is_caught(mutant: MakeFiles, tmp_path: Path) -> None:
    assert check_placed(*placed_file(tmp_path, mutant)).violations


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
