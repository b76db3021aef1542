"""Tests of sessions and engines: pragmas of every connection, read-only readers, and waiting writers."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from sqlalchemy import make_url, not_, select, text
from sqlalchemy.exc import OperationalError

from organs.registry.catalog import engine as engine_module
from organs.registry.catalog.engine import BUSY_TIMEOUT_MS, is_unavailable, translated
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.rows import among
from organs.registry.catalog.slow import SlowStatements
from organs.registry.catalog.tables import ContributorRow
from organs.registry.errors import Busy, CatalogError, DatabaseUnreachable, DiskFull, OrganError, StoreUnwritable
from organs.registry.local import LocalRegistry
from organs.registry.settings import Settings
from tests import postgres

NOISE = b"not a database at all " * 400


@pytest.mark.sqlite
def test_a_database_named_as_a_file_uri_is_where_the_uri_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    database = tmp_path / "not there" / "registry.sqlite3"
    settings = replace(Settings.in_folder(tmp_path), database_url=f"sqlite:///file:{quote(str(database))}?uri=true")
    LocalRegistry.from_settings(settings).close()
    assert database.is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["not there"]


@pytest.mark.sqlite
@pytest.mark.parametrize("kind", ["reader", "writer"])
def test_every_connection_of_both_engines_has_the_pragmas(kind: str, registry: LocalRegistry) -> None:
    engine = getattr(registry.catalog, kind)
    with ExitStack() as stack:
        # Raw connections: several connections of the writer are open together without waiting for its lock.
        connections = [stack.enter_context(engine.pool.connect()) for _ in range(4)]
        assert len({id(connection.dbapi_connection) for connection in connections}) == 4
        for connection in connections:
            cursor = connection.cursor()
            pragmas = {
                name: cursor.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("foreign_keys", "busy_timeout", "journal_mode", "synchronous", "query_only")
            }
            cursor.close()
            expected = {"foreign_keys": 1, "busy_timeout": BUSY_TIMEOUT_MS, "journal_mode": "wal"}
            expected["synchronous"] = 2  # FULL: a commit is on the disk when it returns
            assert pragmas == expected | {"query_only": int(kind == "reader")}


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO facet_counts VALUES (1, 5, 1)",
        "UPDATE contributors SET name = 'x'",
        "DELETE FROM contributors",
        "DROP TABLE facets",
    ],
)
def test_a_reader_cannot_write(statement: str, registry: LocalRegistry) -> None:
    with pytest.raises(StoreUnwritable), registry.catalog.reading() as session:
        session.execute(text(statement))


def test_a_reader_sees_one_state_during_concurrent_writes(registry: LocalRegistry) -> None:
    with registry.catalog.reading() as session:
        assert session.scalars(select(ContributorRow.name)).all() == []
        with registry.catalog.writing() as other:
            contributor_id(other, "ada")
            other.flush()
            with registry.catalog.reading() as third:
                assert third.scalars(select(ContributorRow.name)).all() == []
        assert session.scalars(select(ContributorRow.name)).all() == []
    with registry.catalog.reading() as session:
        assert session.scalars(select(ContributorRow.name)).all() == ["ada"]


def test_a_writer_that_waits_too_long_learns_which_process_holds_the_lock(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres.locked_database(registry.settings.home):
        monkeypatch.setattr(engine_module, "BUSY_TIMEOUT_MS", 1)
        registry.catalog.writer.dispose()
        with pytest.raises(Busy, match="another process has locked"), registry.catalog.writing() as session:
            contributor_id(session, "ada")
    with registry.catalog.writing() as session:
        assert contributor_id(session, "ada") == 1


@pytest.mark.sqlite
def test_a_full_disk_is_reported_and_nothing_is_committed(registry: LocalRegistry) -> None:
    with registry.catalog.writing() as session:
        contributor_id(session, "ada")

    def fill() -> None:
        with registry.catalog.writing() as session:
            session.execute(text("PRAGMA max_page_count = 1"))  # SQLite's own way to run out of room
            for number in range(5_000):
                contributor_id(session, f"{number:080}")

    with pytest.raises(DiskFull):
        fill()
    with registry.catalog.reading() as session:
        assert session.scalars(select(ContributorRow.name)).all() == ["ada"]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_FULL, DiskFull),
        (sqlite3.SQLITE_IOERR_SHMSIZE, DiskFull),
        (sqlite3.SQLITE_READONLY, StoreUnwritable),
        (sqlite3.SQLITE_READONLY_DIRECTORY, StoreUnwritable),
        (sqlite3.SQLITE_CANTOPEN_ISDIR, StoreUnwritable),
        (sqlite3.SQLITE_PERM, StoreUnwritable),
        (sqlite3.SQLITE_BUSY, Busy),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, Busy),
        (sqlite3.SQLITE_LOCKED_SHAREDCACHE, Busy),
        (sqlite3.SQLITE_IOERR_WRITE, CatalogError),
        (sqlite3.SQLITE_CORRUPT, CatalogError),
        (None, CatalogError),
    ],
)
def test_each_sqlite_error_code_becomes_a_catalog_error(code: int | None, expected: type[OrganError]) -> None:
    error = sqlite3.OperationalError("readonly, locked and full")
    if code is not None:
        error.sqlite_errorcode = code
    with pytest.raises(OrganError) as caught, translated():
        raise OperationalError("SELECT 1", None, error)
    assert type(caught.value) is expected


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("in_the_way", "kind", "reason"),
    [
        (lambda home: home.touch(), StoreUnwritable, "cannot be created"),
        (lambda home: (home / "registry.sqlite3").mkdir(parents=True), StoreUnwritable, "unable to open"),
        (lambda home: (home.mkdir(), (home / "registry.sqlite3").write_bytes(NOISE)), CatalogError, "not a database"),
        (lambda home: (home.mkdir(), (home / "registry.sqlite3").touch()), None, ""),
    ],
    ids=["a file as the folder", "a folder as the database", "another file", "an empty file"],
)
def test_what_is_in_the_place_of_a_database_is_refused_and_kept_unless_it_is_empty(
    in_the_way: Callable[[Path], object], kind: type[OrganError] | None, reason: str, tmp_path: Path
) -> None:
    in_the_way(tmp_path / "home")
    if kind is None:
        LocalRegistry.open(tmp_path / "home").close()
        return
    with pytest.raises(kind, match=reason):
        LocalRegistry.open(tmp_path / "home")
    assert [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()] in ([], [b""], [NOISE])


def test_a_home_without_rights_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "exists", refused)
    with pytest.raises(StoreUnwritable, match=r"^no access to .*/home/registry.sqlite3: Permission denied$"):
        LocalRegistry.open(tmp_path / "home")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "the URL of the database has no '://'"),
        ("/a/path.sqlite3", "the URL of the database has no '://'; write sqlite:///FILE or"),
        ("unknown://me:secret@host/name", "databases of 'unknown' are not supported"),
        ("postgresql://ada:secret@host:port/organs", "begins with 'postgresql' and is not valid; write"),
        ("sqlite://", "an SQLite database in memory is not supported"),
        ("sqlite:///:memory:", "an SQLite database in memory is not supported"),
        ("sqlite://host/file.db", "has three slashes, or four"),
    ],
)
def test_a_wrong_url_of_a_database_is_refused_without_its_password(url: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=re.escape(problem)) as refused:
        LocalRegistry.from_settings(Settings(tmp_path, url, tmp_path / "blobs"))
    assert "secret" not in str(refused.value)


@pytest.mark.sqlite
def test_closing_closes_every_file(tmp_path: Path) -> None:
    def open_files() -> list[str]:
        return sorted(
            str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink() and _in_test(link)
        )

    def _in_test(link: Path) -> bool:
        return str(link.readlink()).startswith(str(tmp_path))

    with LocalRegistry.open(tmp_path) as registry:
        with registry.catalog.reading() as session:
            session.scalars(select(ContributorRow)).all()
        assert open_files() != []
    assert open_files() == []


def test_any_number_of_ids_is_one_parameter(registry: LocalRegistry) -> None:
    with registry.catalog.writing() as session:
        ids = [contributor_id(session, name) for name in ("ann", "bob", "eve")]
    every = select(ContributorRow.id).order_by(ContributorRow.id)
    with registry.catalog.reading() as session:
        for chosen in ([], ids[:1], ids[1:], [*ids, *range(1_000_000, 1_100_000)]):
            matching = every.where(among(ContributorRow.id, chosen), ContributorRow.name != "eve")
            others = every.where(not_(among(ContributorRow.id, chosen)) | (ContributorRow.name == "eve"))
            assert session.scalars(matching).all() == [row_id for row_id in ids[:2] if row_id in chosen]
            assert session.scalars(others).all() == [
                row_id for row_id in ids if row_id not in chosen or row_id == ids[2]
            ]


def test_slow_statements_are_logged_and_kept_without_their_values(
    registry: LocalRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    assert registry.catalog.slow.newest() == ()
    slow, seen = SlowStatements(), []
    slow.watch(registry.catalog.reader, "reader", slow_seconds=0)
    slow.observe(seen.append)
    with registry.catalog.reading() as session:
        session.execute(text("SELECT  :value\n FROM contributors"), {"value": "zzsecret"})
    with pytest.raises(CatalogError), registry.catalog.reading() as session:
        session.execute(text("SELECT nothing FROM contributors"))
    failed, done = (found for found in slow.newest() if found.statement.startswith("SELECT"))
    assert done.statement.endswith(" FROM contributors")
    assert (done.is_stopped, failed.is_stopped) == (False, True)
    assert (len(seen), seen[-1], slow.newest()[0]) == (slow.count, failed, failed)
    assert "zzsecret" not in f"{caplog.text}{slow.newest()}"
    assert "SELECT nothing FROM contributors" in caplog.text


@pytest.mark.postgres
def test_a_connection_that_ends_within_a_time_limit_means_that_the_database_does_not_answer(
    registry: LocalRegistry,
) -> None:
    def read() -> None:
        with registry.catalog.reading(seconds=60) as session:
            process = session.scalar(text("SELECT pg_backend_pid()"))
            with registry.catalog.writing() as other:
                other.execute(text(f"SELECT pg_terminate_backend({process}, 60000)"))
            session.execute(text("SELECT 1"))

    with pytest.raises(DatabaseUnreachable):
        read()
    with registry.catalog.reading(seconds=60) as session:
        assert session.scalar(text("SELECT 1")) == 1


@pytest.mark.postgres
def test_a_server_that_refuses_a_connection_is_distinguished_from_one_that_does_not_accept_any(tmp_path: Path) -> None:
    url = make_url(Settings.in_folder(tmp_path).database_url)
    wrong = url.set(database="absent").render_as_string(hide_password=False)
    assert not is_unavailable(wrong)
    assert is_unavailable("postgresql+psycopg://ada:secret@127.0.0.1:1/organs")
    with pytest.raises(DatabaseUnreachable, match="the database server refuses the connection: check the user"):
        LocalRegistry.from_settings(replace(Settings.in_folder(tmp_path), database_url=wrong))
