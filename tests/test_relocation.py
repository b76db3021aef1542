"""Tests of moves to another database and another place for the blobs: complete, resumable, and the source stays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, inspect, make_url, select, text, update

from organs.ingest.contributions.uploads import Chunk, open_upload, receive
from organs.registry import relocation
from organs.registry.backup import DATABASE, back_up
from organs.registry.catalog import copying
from organs.registry.catalog.copying import copied_tables, copy_rows
from organs.registry.catalog.register.accounts import add_contributor, create_token
from organs.registry.catalog.tables import Blob, ContributorRow, ModelRow, Token
from organs.registry.entities.submission import UploadRequest
from organs.registry.errors import Busy, CatalogError, Conflict, CorruptBlob, NotFound
from organs.registry.local import LocalRegistry
from organs.registry.relocation import RelocationReport, relocate
from organs.registry.settings import Settings
from organs.registry.store import BlobStore
from organs.registry.upkeep import sweep
from tests.cli.in_process import OrganCommand
from tests.faults.failing import (
    blob_rows,
    flip_bit,
    ingest_path,
    overwrite,
    verify_all,
    write_model,
)
from tests.memory_bucket import MemoryService, serve_from_memory
from tests.postgres import open_on_sqlite
from tests.registry_templates import RegistryTemplates, add_family
from tests.related_models import FAMILY, family_files
from tests.small_models import assemble_model

BUCKET = "s3://organs/moved"
QUERIES = ["", "type:organ sort:-theta", "dtype:Q8_0", "likeness:0.5-1 fits:local/base"]


class Died(BaseException):
    """A simulated death of the process."""


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> dict[str, MemoryService]:
    return serve_from_memory(monkeypatch)


@pytest.fixture
def family(templates: RegistryTemplates, tmp_path: Path) -> Iterator[LocalRegistry]:
    """A registry whose blobs are files and rows, some stored by their difference to others."""
    with templates.open_copy(add_family, tmp_path / "home") as registry:
        yield registry


@pytest.fixture
def new(tmp_path: Path) -> Iterator[LocalRegistry]:
    """An empty registry: the place that a registry is moved to."""
    with LocalRegistry.open(tmp_path / "new") as registry:
        yield registry


def move(source: LocalRegistry, target: LocalRegistry) -> RelocationReport:
    return relocate(source.catalog, source.blobs, new_catalog=target.catalog, new_blobs=target.blobs)


def rows_of(registry: LocalRegistry) -> dict[str, list[str]]:
    """Return the rows of every table that is moved, in any order of the columns of times and bytes of an engine."""
    with registry.catalog.reading() as session:
        return {
            table.name: sorted(
                repr([(value.timestamp() if hasattr(value, "timestamp") else value) for value in row])
                for row in session.execute(select(table))
            )
            for table in copied_tables()
        }


def is_empty(registry: LocalRegistry) -> bool:
    return not any(rows_of(registry).values())


def stored_files(registry: LocalRegistry) -> dict[str, int]:
    return {stray.name: stray.size_bytes for stray in registry.blobs.backend.walk()}


def assert_same(first: LocalRegistry, second: LocalRegistry, folder: Path) -> None:
    """Compare rows, answers, stored and assembled files of two registries, and verify the second one."""
    assert rows_of(first) == rows_of(second)
    for query in QUERIES:
        page = first.search(query, limit=100)
        assert page == second.search(query, limit=100)
        assert page.items
    assert first.models() == second.models()
    assert stored_files(first) == stored_files(second)
    for name, data in family_files().items():
        (file,) = assemble_model(second, f"local/{name}", folder / name)
        assert file.read_bytes() == data
    report = verify_all(second)
    assert (report.faults, report.orphans, report.miscounted) == ([], 0, {})
    assert report.blobs == len(blob_rows(first))


def test_a_moved_registry_has_the_same_rows_answers_and_files_and_the_old_one_does_not_change(
    family: LocalRegistry, new: LocalRegistry, tmp_path: Path
) -> None:
    before, stored = rows_of(family), stored_files(family)
    progress: list[int] = []
    report = relocate(
        family.catalog, family.blobs, new_catalog=new.catalog, new_blobs=new.blobs, progress=progress.append
    )
    files = [row.stored_bytes for row in blob_rows(family) if row.file is not None]
    assert (report.files, report.copied, report.copied_bytes) == (len(files), len(files), sum(files))
    assert (report.rows, report.faults) == (sum(map(len, before.values())), [])
    assert sum(progress) == sum(files), "each once, although they are looked at again when nobody can write"
    assert_same(family, new, tmp_path / "out")
    ingest_path(new, write_model(tmp_path / "little.gguf"))
    assert sweep(new.catalog, new.blobs, dry_run=False).removed == 0
    with new.catalog.writing() as session:
        made = add_contributor(session, "ann")
        assert made.id == session.scalar(select(func.max(ContributorRow.id)))
    assert verify_all(new).faults == []
    assert len(new.models()) == len(FAMILY) + 1
    assert (rows_of(family), stored_files(family)) == (before, stored)


def test_blobs_move_into_a_bucket_and_back(
    family: LocalRegistry, services: dict[str, MemoryService], tmp_path: Path
) -> None:
    there = replace(Settings.in_folder(tmp_path / "there"), bucket=BUCKET)
    with LocalRegistry.from_settings(there) as in_bucket:
        move(family, in_bucket)
        assert list(services) == [BUCKET]
        assert services[BUCKET].names() == sorted(stored_files(family))
        assert not (tmp_path / "there" / "blobs").exists()
        assert_same(family, in_bucket, tmp_path / "out")
        with LocalRegistry.open(tmp_path / "back") as back:
            assert move(in_bucket, back).faults == []
            assert_same(family, back, tmp_path / "out again")


def test_only_the_database_or_only_the_blobs_move(family: LocalRegistry, new: LocalRegistry, tmp_path: Path) -> None:
    report = relocate(family.catalog, family.blobs, new_catalog=new.catalog)
    assert (report.files, report.copied) == (0, 0)
    assert rows_of(new) == rows_of(family)
    assert stored_files(new) == {}
    assert_same(family, LocalRegistry(family.settings, new.catalog, family.blobs), tmp_path / "out")
    report = relocate(family.catalog, family.blobs, new_blobs=new.blobs)
    assert (report.rows, report.copied) == (0, len(stored_files(family)))
    assert_same(family, new, tmp_path / "out again")


def test_uploads_are_not_moved_to_a_bucket(
    family: LocalRegistry, new: LocalRegistry, services: dict[str, MemoryService]
) -> None:
    with family.catalog.writing() as session:
        ann = add_contributor(session, "ann").id
    data, chunk = b"0123456789", Chunk(0, 5, 10)
    declared = UploadRequest(kind="file", size_bytes=len(data))
    upload = open_upload(family, ann, declared).public_id
    receive(family, ann, upload, chunk, [data[:5]])
    relocate(family.catalog, family.blobs, new_catalog=new.catalog)
    moved_rows = LocalRegistry(family.settings, new.catalog)
    assert open_upload(moved_rows, ann, declared).received_bytes == 5, "the folder of uploads stays where it is"
    bucket = LocalRegistry(replace(family.settings, bucket=BUCKET), family.catalog)
    relocate(family.catalog, family.blobs, new_blobs=bucket.blobs)
    with pytest.raises(NotFound):
        receive(bucket, ann, upload, chunk, [data[:5]])
    assert open_upload(bucket, ann, declared).received_bytes == 0
    assert services[BUCKET].names()


def test_a_database_with_rows_is_refused_and_nothing_is_copied(family: LocalRegistry, new: LocalRegistry) -> None:
    with new.catalog.writing() as session:
        add_contributor(session, "ann")
    before = rows_of(new)
    with pytest.raises(Conflict, match="has rows in the table contributors: name an empty one"):
        move(family, new)
    with pytest.raises(Conflict), family.catalog.reading() as source, new.catalog.writing() as target:
        copy_rows(source, target)
    with pytest.raises(Conflict):
        relocate(family.catalog, family.blobs, new_catalog=family.catalog)
    assert rows_of(new) == before
    assert stored_files(new) == {}


def test_a_move_that_is_interrupted_between_files_continues(
    family: LocalRegistry, new: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, real, left = threading.Lock(), BlobStore.copy_file, [3]

    def die_later(target: BlobStore, source: BlobStore, file: str, size_bytes: int) -> None:
        with lock:
            left[0] -= 1
            if left[0] < 0:
                raise Died
        real(target, source, file, size_bytes)

    with monkeypatch.context() as patched:
        patched.setattr(BlobStore, "copy_file", die_later)
        with pytest.raises(Died):
            move(family, new)
    assert is_empty(new)
    assert len(stored_files(new)) == 3
    report = move(family, new)
    assert (report.copied, report.files) == (len(stored_files(family)) - 3, len(stored_files(family)))
    assert_same(family, new, tmp_path / "out")


@pytest.mark.parametrize("table", ["blobs", "models", copied_tables()[-1].name])
def test_a_move_that_is_interrupted_between_rows_leaves_an_empty_database(
    table: str, family: LocalRegistry, new: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Any] = copying._copy_table

    def die_there(source: Any, target: Any, copied: Any) -> Any:
        result = real(source, target, copied)
        if copied.name == table:
            raise Died
        return result

    with monkeypatch.context() as patched:
        patched.setattr(copying, "_copy_table", die_there)
        with pytest.raises(Died):
            move(family, new)
    assert is_empty(new)
    assert stored_files(new) == stored_files(family)
    report = move(family, new)
    assert (report.copied, report.rows) == (0, sum(map(len, rows_of(family).values())))
    assert_same(family, new, tmp_path / "out")


def test_a_model_that_is_ingested_meanwhile_is_moved_too(
    family: LocalRegistry, new: LocalRegistry, tmp_path: Path
) -> None:
    ingested: list[str] = []

    def ingest_once(_size: int) -> None:
        if not ingested:
            ingested.append("little")
            ingest_path(family, write_model(tmp_path / "little.gguf"))

    relocate(family.catalog, family.blobs, new_catalog=new.catalog, new_blobs=new.blobs, progress=ingest_once)
    assert len(new.models()) == len(FAMILY) + 1
    assert_same(family, new, tmp_path / "out")


def test_nobody_can_write_between_the_last_look_for_files_and_the_copy_of_the_rows(
    family: LocalRegistry, new: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked: list[bool] = []
    copy_files = relocation._Copy.run

    def try_to_write(*arguments: Any) -> None:
        copy_files(*arguments)
        try:
            with LocalRegistry.open(family.settings.home) as other, other.catalog.writing(waits=False) as session:
                session.connection()
            locked.append(False)
        except Busy:
            locked.append(True)

    monkeypatch.setattr(relocation._Copy, "run", try_to_write)
    move(family, new)
    assert locked == [False, True], "the files are first copied while others write"


def test_a_move_and_a_sweep_exclude_each_other(family: LocalRegistry, new: LocalRegistry) -> None:
    with family.blobs.backend.sweeping(), pytest.raises(Busy):
        move(family, new)
    swept: list[int] = []

    def sweep_now(size: int) -> None:
        with LocalRegistry.open(family.settings.home) as other, pytest.raises(Busy):
            sweep(other.catalog, other.blobs, dry_run=False)
        swept.append(size)

    relocate(family.catalog, family.blobs, new_blobs=new.blobs, progress=sweep_now)
    assert swept
    assert is_empty(new)


@pytest.mark.folder
def test_a_missing_or_cut_file_is_reported_and_wrong_bytes_stay_wrong(
    family: LocalRegistry, new: LocalRegistry, tmp_path: Path
) -> None:
    missing, cut, wrong, *_ = [row for row in blob_rows(family) if row.file is not None]
    paths = [family.settings.blobs / str(row.file) for row in (missing, cut, wrong)]
    paths[0].unlink()
    overwrite(paths[1], paths[1].read_bytes()[:-1])
    overwrite(paths[2], flip_bit(paths[2].read_bytes(), 4 * paths[2].stat().st_size))
    report = move(family, new)
    assert {fault.digest: fault.reason.partition(": ")[0] for fault in report.faults} == {
        missing.digest: f"{paths[0].name} is missing from the store",
        cut.digest: f"corrupt blob {paths[1].name}",
    }
    files = set(stored_files(family)) - {missing.file, cut.file}
    assert (report.files, report.copied, set(stored_files(new))) == (len(files), len(files), files)
    assert rows_of(new) == rows_of(family)
    assert wrong.digest in {fault.digest for fault in verify_all(new).faults}
    ended = OrganCommand(family.settings.home)("migrate-store", "--to-blobs", tmp_path / "elsewhere")
    assert ended.status == CorruptBlob.exit_code
    assert f"{missing.digest[:12]}: {paths[0].name} is missing" in ended.out.replace("\n", "")


def test_a_file_of_another_size_in_the_new_place_is_replaced(family: LocalRegistry, new: LocalRegistry) -> None:
    file, size_bytes = next(iter(stored_files(family).items()))
    new.blobs.backend.prepare()
    new.blobs.backend.write(file, 5, iter([b"other"]))
    report = move(family, new)
    assert report.copied == len(stored_files(family))
    assert stored_files(new)[file] == size_bytes
    assert verify_all(new).faults == []


@pytest.mark.parametrize("rows_at_once", [1, 7, 2000])
def test_rows_that_refer_to_later_rows_of_their_table_are_copied(
    rows_at_once: int, family: LocalRegistry, new: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with family.catalog.writing() as session:
        ann = add_contributor(session, "ann")
        for label in ("first", "second", "third"):
            create_token(session, ann.id, ["upload"], label)
        tokens = list(session.scalars(select(Token).order_by(Token.id)))
        tokens[0].parent_id, tokens[1].parent_id = tokens[2].id, tokens[0].id
        alone = session.scalars(select(Blob.id).where(Blob.depends_on.is_(None)).order_by(Blob.id)).first()
        last = session.scalar(select(func.max(Blob.id)))
        session.execute(update(Blob).where(Blob.id == alone).values(depends_on=last))
    monkeypatch.setattr(copying, "ROWS_AT_ONCE", rows_at_once)
    with family.catalog.reading() as source, new.catalog.writing() as target:
        assert copy_rows(source, target) == sum(map(len, rows_of(family).values()))
    assert rows_of(new) == rows_of(family)
    with new.catalog.reading() as session:
        copied = {token.label: token for token in session.scalars(select(Token))}
        assert copied["first"].parent_id == copied["third"].id > copied["first"].id
        assert copied["second"].parent_id == copied["first"].id
        assert copied["third"].parent_id is None
        assert session.scalar(select(Blob.depends_on).where(Blob.id == alone)) == last


def swap_two_texts(session: Any) -> None:
    names = {row.id: row.name for row in session.execute(text("SELECT id, name FROM models WHERE id IN (1, 2)"))}
    session.execute(text("UPDATE models SET name = 'aside' WHERE id = 1"))
    session.execute(text("UPDATE models SET name = :name WHERE id = 2"), {"name": names[1]})
    session.execute(text("UPDATE models SET name = :name WHERE id = 1"), {"name": names[2]})


def change_bytes(session: Any) -> None:
    session.execute(text("UPDATE inline_blobs SET stored = :stored"), {"stored": b"changed"})


def move_a_time(session: Any) -> None:
    row_id, created_at = session.execute(select(ModelRow.id, ModelRow.created_at).limit(1)).one()
    later = created_at + timedelta(microseconds=1)
    session.execute(update(ModelRow).where(ModelRow.id == row_id).values(created_at=later))


def remove_a_row(session: Any) -> None:
    session.execute(text("DELETE FROM lineage WHERE id = (SELECT min(id) FROM lineage)"))


@pytest.mark.parametrize("change", [swap_two_texts, change_bytes, move_a_time, remove_a_row])
def test_a_row_that_changed_on_the_way_is_detected(
    change: Callable[[Any], None], family: LocalRegistry, new: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Any] = copying._copy_table
    last = copied_tables()[-1].name

    def copy_and_change(source: Any, target: Any, table: Any) -> Any:
        result = real(source, target, table)
        if table.name == last:
            change(target)
            target.flush()
        return result

    monkeypatch.setattr(copying, "_copy_table", copy_and_change)
    with pytest.raises(CatalogError, match="changed when they were copied"):
        move(family, new)
    assert is_empty(new)


def test_the_command_moves_both_parts_and_prints_the_new_settings(family: LocalRegistry, tmp_path: Path) -> None:
    organ, there = OrganCommand(family.settings.home), tmp_path / "there"
    database_url = Settings.in_folder(there).database_url
    by_variable = {"ORGAN_TO_DATABASE_URL": database_url}
    ended = organ("migrate-store", "--to-blobs", tmp_path / "new blobs", environment=by_variable)
    files = stored_files(family)
    rows = sum(map(len, rows_of(family).values()))
    words = " ".join(ended.out.split())
    assert words.startswith(f"{len(files)} files copied (")
    assert f"{len(files)} in the new place; {rows} rows copied and compared" in words
    assert f"ORGAN_DATABASE_URL={make_url(database_url).render_as_string()}" in ended.out
    assert ended.lines[-1] == f"  ORGAN_BLOBS_URL={tmp_path / 'new blobs'}"
    settings = replace(Settings.in_folder(there), blobs=tmp_path / "new blobs", bucket=None)
    with LocalRegistry.from_settings(settings) as moved:
        assert_same(family, moved, tmp_path / "out")
    again = organ("migrate-store", "--to-database", database_url, "--to-blobs", tmp_path / "new blobs")
    assert (again.status, again.out) == (Conflict.exit_code, "")
    assert "name an empty one" in again.err
    here = organ("migrate-store", "--to-blobs", family.settings.blobs_location)
    assert here.status == 2
    assert "the registry is there already" in here.err


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://organ:hidden-word@127.0.0.1:1/organs",
        "postgresql+nothing://organ:hidden-word@127.0.0.1/organs",
        "nothing://organ:hidden-word@127.0.0.1/organs",
        "postgresql+psycopg://organ:hidden-word@127.0.0.1:port/organs",
        "organ:hidden-word@127.0.0.1",
    ],
)
def test_a_database_that_cannot_be_opened_is_reported_without_its_password(url: str, family: LocalRegistry) -> None:
    ended = OrganCommand(family.settings.home)("migrate-store", "--to-database", url)
    assert ended.status not in (0, 70)
    assert "Traceback" not in ended.err
    assert "hidden-word" not in ended.out + ended.err
    assert ended.err


@pytest.mark.postgres
def test_the_password_of_the_new_database_is_not_printed(family: LocalRegistry, tmp_path: Path) -> None:
    url = make_url(Settings.in_folder(tmp_path / "there").database_url).set(password="hidden-word")
    ended = OrganCommand(family.settings.home).done(
        "migrate-store", "--to-database", url.render_as_string(hide_password=False)
    )
    assert "hidden-word" not in ended.out + ended.err
    assert "ORGAN_DATABASE_URL=postgresql+psycopg://organ:***@" in ended.out


@pytest.mark.postgres
def test_a_registry_moves_to_sqlite_and_back(family: LocalRegistry, new: LocalRegistry, tmp_path: Path) -> None:
    with open_on_sqlite(tmp_path / "sqlite") as moved:
        move(family, moved)
        assert_same(family, moved, tmp_path / "out")
        ingest_path(moved, write_model(tmp_path / "little.gguf"))
        move(moved, new)
        assert_same(moved, new, tmp_path / "out again")
    ingest_path(new, write_model(tmp_path / "more.gguf", seed=3))
    assert verify_all(new).faults == []


@pytest.mark.postgres
def test_ids_continue_in_every_table_after_a_move_to_postgresql(family: LocalRegistry, new: LocalRegistry) -> None:
    with family.catalog.writing() as session:
        add_contributor(session, "ann")
    move(family, new)
    checked = 0
    with new.catalog.writing() as session:
        for table in copied_tables():
            name = "id" in table.columns and session.scalar(
                text(f"SELECT pg_get_serial_sequence('{table.name}', 'id')")
            )
            highest = session.scalar(select(func.max(table.columns["id"]))) if name else None
            if highest is not None:
                assert session.scalar(text(f"SELECT nextval('{name}')")) == highest + 1
                checked += 1
    assert checked >= 8


@pytest.mark.postgres
def test_a_backup_of_postgresql_is_a_registry_open_on_sqlite(family: LocalRegistry, tmp_path: Path) -> None:
    report = back_up(family.catalog, family.blobs, family.settings, tmp_path / "copy", read_back=True)
    assert (report.faults, report.copied) == ([], len(stored_files(family)))
    assert report.database_bytes == (tmp_path / "copy" / DATABASE).stat().st_size > 0
    with open_on_sqlite(tmp_path / "fresh") as fresh:
        schema = schema_of(fresh)
    with open_on_sqlite(tmp_path / "copy") as copy:
        assert_same(family, copy, tmp_path / "out")
        assert schema_of(copy) == schema
        ingest_path(copy, write_model(tmp_path / "little.gguf"))
        assert verify_all(copy).faults == []
    with open_on_sqlite(tmp_path / "copy") as copy:
        assert len(copy.models()) == len(FAMILY) + 1


def schema_of(registry: LocalRegistry) -> dict[str, tuple[list[str], list[str]]]:
    """Return the columns and the indexes of each table of an SQLite database, and whether it is STRICT."""
    with registry.catalog.reading() as session:
        inspector = inspect(session.connection())
        strict = {row.name: row.strict for row in session.execute(text("SELECT name, strict FROM pragma_table_list"))}
        return {
            name: (
                sorted(
                    f"{column['name']} {column['type']} {column['nullable']}" for column in inspector.get_columns(name)
                ),
                [*sorted(str(index["name"]) for index in inspector.get_indexes(name)), f"strict {strict[name]}"],
            )
            for name in inspector.get_table_names()
        }
