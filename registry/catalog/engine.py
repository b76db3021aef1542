"""Engines and sessions: one way to read, one way to write, and the schema brought up to date.

Readers see a consistent snapshot and cannot change anything. Writers take SQLite's write lock when they begin, so
that two of them wait for each other instead of failing halfway.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DatabaseError
from sqlalchemy.orm import Session

from registry.errors import Busy, CatalogError, DiskFull, OrganError, StoreUnwritable

BUSY_TIMEOUT_MS = 30_000

_PRIMARY = 0xFF
"""An extended result code has the primary one in its lowest byte."""
_FULL_EXTENDED = {sqlite3.SQLITE_IOERR_SHMSIZE}
"""The file of the shared index beside the database could not grow; of other files SQLite says SQLITE_FULL itself."""
_UNWRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}
_HELD = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


@dataclass(frozen=True, slots=True)
class Catalog:
    """The database of one registry."""

    reader: Engine
    writer: Engine

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session that reads; nothing that it does is kept."""
        with translated(), Session(self.reader) as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A session whose transaction commits at the end of the block, or not at all."""
        with translated(), Session(self.writer, expire_on_commit=False) as session, session.begin():
            yield session

    def close(self) -> None:
        """Give the connections back."""
        self.reader.dispose()
        self.writer.dispose()


@contextmanager
def translated() -> Iterator[None]:
    """What the database's driver raises inside the block becomes one of our errors."""
    try:
        yield
    except DatabaseError as error:
        raise _error_of(error) from error


def open_catalog(database_url: str, migrate: Callable[[Engine], None], head: str) -> Catalog:
    """Open the database, make it if it is not there, and bring its schema to `head` by calling `migrate`.

    Raises SchemaTooNew when a newer version wrote it, CatalogError when it is no database of ours.
    """
    try:
        url = make_url(database_url)
        if url.get_backend_name() == "sqlite":
            _make_folder_of(Path(_database_file(url)))
        catalog = Catalog(_engine(url, writes=False), _engine(url, writes=True))
    except (ArgumentError, ModuleNotFoundError) as error:  # no URL, or one for a driver that is not installed
        kind = database_url.partition("://")[0][:40]  # not the rest, which may hold a password
        raise CatalogError(f"no database can be opened by a URL that begins with {kind!r}: {error}") from error
    try:
        with translated():
            if _revision(catalog.reader) != head:
                migrate(catalog.writer)
    except OrganError:
        catalog.close()
        raise
    return catalog


def _error_of(error: DatabaseError) -> OrganError:
    """Our error by SQLite's result code; other drivers have none, and what they say is passed on."""
    said = str(error.orig)
    code = getattr(error.orig, "sqlite_errorcode", None)
    if code is None:
        return CatalogError(f"the database failed: {said}")
    if code in _FULL_EXTENDED or code & _PRIMARY == sqlite3.SQLITE_FULL:
        return DiskFull(f"the database's disk is full: {said}")
    if code & _PRIMARY in _UNWRITABLE:
        return StoreUnwritable(f"the database cannot be written: {said}")
    if code & _PRIMARY in _HELD:
        return Busy(f"the database is held by another process: {said}")
    return CatalogError(f"the database failed: {said}")


def _database_file(url: URL) -> str:
    if url.database in (None, "", ":memory:"):
        raise CatalogError("an SQLite database in memory is a new one for every connection: give the path of a file")
    assert url.database is not None
    return url.database


def _engine(url: URL, *, writes: bool) -> Engine:
    engine = create_engine(url, pool_pre_ping=url.get_backend_name() != "sqlite")
    if engine.dialect.name == "sqlite":
        _heed_hints(engine)
        event.listen(engine, "connect", _sqlite_writer if writes else _sqlite_reader)
        event.listen(engine, "begin", _begin_immediate if writes else _begin_deferred)
    return engine


def _heed_hints(engine: Engine) -> None:
    """Let `with_hint(table, "INDEXED BY …", "sqlite")` reach SQLite: SQLAlchemy itself leaves its hints out."""
    from sqlalchemy.dialects.sqlite.base import SQLiteCompiler

    class Hinted(SQLiteCompiler):
        def get_from_hint_text(self, table: Any, text: str | None) -> str | None:
            return text

    engine.dialect.statement_compiler = Hinted


def _sqlite_writer(connection: Any, _record: object) -> None:
    _pragmas(connection, ("journal_mode = WAL", "synchronous = FULL"))


def _sqlite_reader(connection: Any, _record: object) -> None:
    _pragmas(connection, ("query_only = ON",))


def _pragmas(connection: Any, more: tuple[str, ...]) -> None:
    connection.isolation_level = None  # transactions begin where we say, not where the driver guesses
    cursor = connection.cursor()
    for pragma in (f"busy_timeout = {BUSY_TIMEOUT_MS}", "foreign_keys = ON", *more):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_immediate(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _begin_deferred(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN")


def _revision(engine: Engine) -> str | None:
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _make_folder_of(database: Path) -> None:
    """The folder that a new database will lie in: SQLite brings its files to the disk, not the folders above them."""
    if database.exists():
        return
    from registry.store.files import Files, make_durable_folder  # with the codecs, which searches never load

    try:
        make_durable_folder(Files(), database.parent)
    except OSError as error:
        raise StoreUnwritable(f"{database.parent} cannot be made: {error.strerror}") from error
