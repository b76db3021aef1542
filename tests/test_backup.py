"""Tests of backups: complete during writes, incremental, and the old one stays until the new one is complete."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from organs.ingest.contributions.uploads import spool_of
from organs.registry.backup import DATABASE, FRESH, MARK, BackupReport, back_up
from organs.registry.catalog.queries.accounts import contributor_by_name
from organs.registry.catalog.queries.blobs import blobs_by_digest, names_of_blob
from organs.registry.catalog.register.accounts import add_contributor, create_token
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.register.submissions import NOT_COPIED
from organs.registry.catalog.tables import SubmissionRow, UploadRow
from organs.registry.errors import Busy, DiskFull, NotAllowed, StoreError
from organs.registry.local import LocalRegistry
from organs.registry.store.files import Files
from organs.registry.upkeep import sweep
from tests.card_images import POINTS, put_card
from tests.cli.crowded import put_submission
from tests.cli.in_process import OrganCommand
from tests.faults.failing import (
    SteppedFiles,
    add_unneeded_blobs,
    blob_rows,
    flip_bit,
    ingest_path,
    let_time_pass,
    model_bytes,
    overwrite,
    run_sweep,
    verify_all,
    write_model,
)
from tests.postgres import open_on_sqlite
from tests.small_models import assemble_model, row_counts
from tests.submissions import put_upload


def copied(
    registry: LocalRegistry, folder: Path, *, files: Files | None = None, read_back: bool = False
) -> BackupReport:
    return back_up(registry.catalog, registry.blobs, registry.settings, folder, files=files, read_back=read_back)


def blob_files(folder: Path) -> list[Path]:
    return sorted((folder / "blobs").glob("??/*"))


def assert_whole(folder: Path) -> None:
    with open_on_sqlite(folder) as copy:
        report = verify_all(copy)
        assert (report.faults, report.miscounted, report.orphans) == ([], {}, 0)


@contextmanager
def busy(registry: LocalRegistry, folder: Path, models: int) -> Iterator[threading.Event]:
    """Run a thread that ingests, and sweeps without a grace period, during the block."""
    done, failed = threading.Event(), []

    def work() -> None:
        try:
            with LocalRegistry.open(registry.settings.home) as own:
                for number in range(1, models + 1):
                    ingest_path(own, write_model(folder / f"more{number}.gguf", seed=number))
                    try:
                        sweep(own.catalog, own.blobs, grace=timedelta(), dry_run=False)
                    except Busy:
                        continue
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            done.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        thread.join()
    assert failed == []


def backups_beside_a_writer(registry: LocalRegistry, folder: Path, models: int) -> int:
    """Make backups until the writer is done, open and read each completely, and return their number."""
    made = 0
    with busy(registry, folder, models) as done:
        while not done.is_set() or made == 0:
            try:
                copied(registry, folder / "copy")
            except Busy:
                continue  # a sweep was running
            assert_whole(folder / "copy")
            made += 1
    copied(registry, folder / "copy")
    assert_whole(folder / "copy")
    return made + 1


def test_a_backup_during_an_ingest_and_a_sweep_is_complete(filled: LocalRegistry, tmp_path: Path) -> None:
    assert backups_beside_a_writer(filled, tmp_path, models=3) >= 2
    with open_on_sqlite(tmp_path / "copy") as copy:
        assert row_counts(copy)["models"] == 4


@pytest.mark.slow
def test_many_backups_during_ingests_and_sweeps_are_complete(filled: LocalRegistry, tmp_path: Path) -> None:
    assert backups_beside_a_writer(filled, tmp_path, models=60) >= 5


def test_a_restored_registry_assembles_the_original_file_and_has_the_images_of_cards(
    filled: LocalRegistry, tmp_path: Path
) -> None:
    image = put_card(filled, "local/little")
    report = copied(filled, tmp_path / "copy", read_back=True)
    assert (report.faults, report.blobs) == ([], len(blob_rows(filled)))
    assert report.read_bytes == sum(row.size_bytes for row in blob_rows(filled))
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [MARK, "blobs", DATABASE]
    (tmp_path / "copy").rename(tmp_path / "restored")
    with open_on_sqlite(tmp_path / "restored") as restored:
        (back,) = assemble_model(restored, "local/little", tmp_path / "out")
        with restored.catalog.reading() as session:
            blob = blobs_by_digest(session, [image])[image]
            assert names_of_blob(session, blob.id) == ["local/little@1: image images/plot.png of its card"]
        with restored.blobs.open(blob) as stored:
            assert stored.read() == POINTS
    assert back.read_bytes() == model_bytes()


def test_a_second_backup_copies_new_files_and_drops_removed_files(filled: LocalRegistry, tmp_path: Path) -> None:
    first = copied(filled, tmp_path / "copy")
    assert first.copied == len(blob_files(tmp_path / "copy")) > 0
    again = copied(filled, tmp_path / "copy")
    assert (again.copied, again.copied_bytes, again.removed) == (0, 0, 0)
    before = {path.name: path.stat().st_ino for path in blob_files(tmp_path / "copy")}
    needless = filled.blobs.put(b"needless" * 20_000)
    add_unneeded_blobs(filled, needless)
    assert copied(filled, tmp_path / "copy").copied == 1
    let_time_pass(filled)
    run_sweep(filled)
    run_sweep(filled)
    assert copied(filled, tmp_path / "copy").removed == 1
    assert {path.name: path.stat().st_ino for path in blob_files(tmp_path / "copy")} == before


def test_a_backup_that_fails_at_any_call_leaves_the_older_one_complete(filled: LocalRegistry, tmp_path: Path) -> None:
    class Died(BaseException):
        pass

    calls: list[str] = []
    copied(filled, tmp_path / "older")
    ingest_path(filled, write_model(tmp_path / "more.gguf", seed=5))
    shutil.copytree(tmp_path / "older", tmp_path / "counted")
    copied(filled, tmp_path / "counted", files=SteppedFiles(lambda _call, name: calls.append(name)))
    exchanged = len(calls) - calls[::-1].index("rename")
    stops = [*range(1, exchanged, max(1, exchanged // 3)), exchanged, exchanged + 1]
    for stop in stops:

        def die(call: int, _name: str, stop: int = stop) -> None:
            if call >= stop:
                raise Died

        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(tmp_path / "older", tmp_path / "copy")
        with pytest.raises(Died):
            copied(filled, tmp_path / "copy", files=SteppedFiles(die))
        with open_on_sqlite(tmp_path / "copy") as older:
            assert row_counts(older)["models"] == (2 if stop > exchanged else 1), calls[stop - 1]
            assert verify_all(older).faults == []
    copied(filled, tmp_path / "copy")
    assert_whole(tmp_path / "copy")
    assert not (tmp_path / "copy" / FRESH).exists()


def test_a_damaged_copy_is_found_by_reading_back_and_copied_again(filled: LocalRegistry, tmp_path: Path) -> None:
    copied(filled, tmp_path / "copy")
    rotten = blob_files(tmp_path / "copy")[0]
    sound = rotten.read_bytes()
    overwrite(rotten, flip_bit(sound, 8 * len(sound) - 1))
    assert copied(filled, tmp_path / "copy").copied == 0, "its size is right"
    report = copied(filled, tmp_path / "copy", read_back=True)
    assert (report.copied, report.faults) == (1, [])
    assert rotten.read_bytes() == sound


@pytest.mark.folder
def test_a_missing_blob_is_reported_with_the_models_that_need_it(filled: LocalRegistry, tmp_path: Path) -> None:
    gone = next(row for row in blob_rows(filled) if row.file is not None)
    (filled.settings.blobs / (gone.file or "")).unlink()
    ended = OrganCommand(filled.settings.home)("backup", tmp_path / "copy")
    assert ended.status == 7
    assert f"{gone.digest}" in ended.out
    assert "needed by local/little@1" in ended.out
    (fault,) = copied(filled, tmp_path / "copy").faults
    assert fault.digest == gone.digest


def test_a_copy_keeps_a_sound_file_that_the_registry_has_lost(filled: LocalRegistry, tmp_path: Path) -> None:
    copied(filled, tmp_path / "copy")
    for path in filled.settings.blobs.glob("??/*"):
        path.unlink()
    assert copied(filled, tmp_path / "copy").faults == []
    assert_whole(tmp_path / "copy")


def test_a_backup_and_a_sweep_exclude_each_other(filled: LocalRegistry, tmp_path: Path) -> None:
    with filled.blobs.backend.sweeping(), pytest.raises(Busy):
        copied(filled, tmp_path / "copy")

    def sweep_now(_call: int, name: str) -> None:
        if name == "rename" and (tmp_path / "copy" / MARK).exists():
            with pytest.raises(Busy):
                run_sweep(filled)
            swept.append(name)

    swept: list[str] = []
    copied(filled, tmp_path / "copy", files=SteppedFiles(sweep_now))
    assert swept


def test_a_backup_that_is_open_elsewhere_is_not_replaced(filled: LocalRegistry, tmp_path: Path) -> None:
    copied(filled, tmp_path / "copy")
    with open_on_sqlite(tmp_path / "copy") as used:
        with used.catalog.writing() as session:
            add_contributor(session, "ann")
        with used.catalog.reading() as session:
            contributor_by_name(session, "ann")
            with pytest.raises(Busy):
                copied(filled, tmp_path / "copy")
    copied(filled, tmp_path / "copy")
    assert_whole(tmp_path / "copy")


@pytest.mark.parametrize("inside", ["", "blobs", "copies", "blobs/copies", ".."])
def test_a_backup_into_the_registry_itself_is_refused(inside: str, filled: LocalRegistry) -> None:
    with pytest.raises(NotAllowed):
        copied(filled, filled.settings.home / inside)


def test_a_folder_with_other_files_is_refused_and_not_changed(filled: LocalRegistry, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for mark in (None, "{}", "[]", "no json", '{"form": "something else"}'):
        other.mkdir(exist_ok=True)
        (other / "kept").write_text("kept")
        if mark is not None:
            (other / MARK).write_text(mark)
        with pytest.raises(NotAllowed, match="is not a backup"):
            copied(filled, other)
        assert not (other / DATABASE).exists()
    with open_on_sqlite(tmp_path / "second") as second, pytest.raises(NotAllowed):
        copied(filled, second.settings.home)


def test_a_full_disk_is_reported_before_anything_is_copied(filled: LocalRegistry, tmp_path: Path) -> None:
    class Full(Files):
        def free_bytes(self, path: Path) -> int:
            return 16 * 1024 * 1024 if path.name == "blobs" else super().free_bytes(path)

    with pytest.raises(DiskFull):
        copied(filled, tmp_path / "copy", files=Full())
    assert blob_files(tmp_path / "copy") == []
    assert isinstance(DiskFull("x"), StoreError)


def test_uploads_sessions_and_secrets_are_not_copied(filled: LocalRegistry, tmp_path: Path) -> None:
    for name, state in (("ann", "checking"), ("bob", "published")):
        put_submission(filled, name, state=state)
    upload = put_upload(filled, "ann", [b"abc"])
    with spool_of(filled).locked(upload) as file:
        assert b"".join(file.read(0, 3)) == b"abc"
    with filled.catalog.writing() as session:
        secret = create_token(session, contributor_id(session, "ann"), ["upload"], "laptop").text.encode()
    copied(filled, tmp_path / "copy")
    assert not (tmp_path / "copy" / "uploads").exists()
    assert not any(secret in path.read_bytes() for path in (tmp_path / "copy").rglob("*") if path.is_file())
    with open_on_sqlite(tmp_path / "copy") as copy, copy.catalog.reading() as session:
        found = session.query(SubmissionRow).order_by(SubmissionRow.id)
        assert [(row.state, row.reason) for row in found] == [("withdrawn", NOT_COPIED), ("published", None)]
        assert session.query(UploadRow).count() == 0
    assert row_counts(filled)["uploads"] == 1, "the registry itself is as it was"


def test_the_command_reports_the_contents_of_the_copy(filled: LocalRegistry, tmp_path: Path) -> None:
    organ = OrganCommand(filled.settings.home)
    only = organ.done("backup", tmp_path / "blobs only", "--blobs-only", "--verify", "--json").values
    assert only["copied"] == len(blob_files(tmp_path / "blobs only")) > 0
    assert (only["database_bytes"], (tmp_path / "blobs only" / DATABASE).exists()) == (0, False)
    first, second = organ.done("backup", tmp_path / "copy", "--verify").lines
    assert first.startswith(f"{only['copied']} files copied (")
    assert second.startswith(f"{tmp_path / 'copy'} has 1 model, a database of ")
    assert second.endswith("read back and hashed")
    assert_whole(tmp_path / "copy")
    refused = organ("backup", tmp_path)
    assert (refused.status, refused.out) == (4, "")
    assert "choose another" in refused.err
