"""Engines and sessions: how the catalog is read, written and copied, with limits on queries."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, DatabaseError
from sqlalchemy.exc import TimeoutError as NoConnection
from sqlalchemy.orm import DeclarativeBase, Session
from sqlalchemy.pool import NullPool

from organs.registry.catalog.memory import MEMORY_KEY, VERSION_KEY, Memory, Versions
from organs.registry.errors import Busy, CatalogError, DiskFull, NotAllowed, OrganError, StoreUnwritable, TooSlow

ROWS_A_STATEMENT = 500
"""Bounds the parameters of one statement: SQLite takes 32,766."""

T = TypeVar("T")


def insert_missing(session: Session, table: type[DeclarativeBase], rows: Sequence[Mapping[str, object]]) -> None:
    """Insert `rows` into `table`, leaving out those that break a unique constraint."""
    if not rows:
        return
    session.execute(_insert(session)(table).on_conflict_do_nothing(), rows)


def insert_missing_and_tell(
    session: Session, table: type[DeclarativeBase], column: str, rows: Sequence[Mapping[str, object]]
) -> set[Any]:
    """The same; the values in `column` of the rows that were inserted."""
    if not rows:
        return set()
    statement = _insert(session)(table).on_conflict_do_nothing().returning(getattr(table, column))
    return set(session.scalars(statement, rows))


def insert_or_add(
    session: Session,
    table: type[DeclarativeBase],
    keys: Sequence[str],
    count: str,
    rows: Sequence[Mapping[str, object]],
) -> None:
    """Insert `rows`, or add their `count` to the row that has the same `keys`."""
    if not rows:
        return
    statement = _insert(session)(table)
    column = getattr(table, count)
    added = {count: column + statement.excluded[count]}
    session.execute(statement.on_conflict_do_update(index_elements=list(keys), set_=added), rows)


def batches(items: Sequence[T], size: int = ROWS_A_STATEMENT) -> Iterator[Sequence[T]]:
    """`items` in slices that fit into one statement."""
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


def _insert(session: Session) -> Any:
    # Loaded when it is spoken: the other dialect would cost every start of the command a while.
    if session.get_bind().dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert
    from sqlalchemy.dialects import sqlite

    return sqlite.insert


SEARCH_SECONDS = 2.0
COUNTS_SECONDS = 0.5
"""Of the counts beside a search, which may be left out."""
STEPS = 200_000
"""Of SQLite's machine, from one look at the clock to the next: some milliseconds. A quick question takes fewer."""

_LIMIT_KEY = "limit"
_POSTGRESQL_CANCELED = "57014"


@contextmanager
def limited(session: Session, seconds: float) -> Iterator[None]:
    """Stop the statement that `session` is at when the block has taken `seconds`; then TooSlow is raised.

    The session goes on after that. Inside another such block the earlier end holds. PostgreSQL gives each statement
    that time.
    """
    outer: tuple[float, float] | None = session.info.get(_LIMIT_KEY)
    own = (monotonic() + seconds, seconds)
    limit = own if outer is None else min(outer, own)
    session.info[_LIMIT_KEY] = limit
    connection = session.connection()
    _set(connection, limit)
    try:
        if connection.dialect.name == "postgresql":
            with session.begin_nested():  # a statement that was stopped spoils its transaction, up to here
                yield
        else:
            yield
    except DatabaseError as error:
        if _was_stopped(error):
            raise TooSlow(limit[1]) from error
        raise
    finally:
        session.info[_LIMIT_KEY] = outer
        if not connection.closed:
            _set(connection, outer)


def _set(connection: Connection, limit: tuple[float, float] | None) -> None:
    if connection.dialect.name == "sqlite":
        raw: Any = connection.connection.driver_connection
        if limit is None:
            raw.set_progress_handler(None, 0)
        else:
            until = limit[0]
            raw.set_progress_handler(lambda: monotonic() > until, STEPS)
    elif connection.dialect.name == "postgresql":
        left = 0 if limit is None else max(1, int(1000 * (limit[0] - monotonic())))
        connection.execute(text(f"SET LOCAL statement_timeout = {left}"))


def _was_stopped(error: DatabaseError) -> bool:
    code = getattr(error.orig, "sqlite_errorcode", None)
    return code == sqlite3.SQLITE_INTERRUPT or getattr(error.orig, "sqlstate", None) == _POSTGRESQL_CANCELED


BUSY_TIMEOUT_MS = 30_000
STATEMENTS_MAX = 2000
"""Forms of statements that are kept compiled. Searches have many, and compiling one takes longer than running it."""
CONNECTIONS_KEPT, CONNECTIONS_MORE = 5, 27
"""Of each engine, open all the time and when they are needed: more than a process of the server has threads."""
EXPERIMENTAL = (
    "PostgreSQL support is experimental: only the main operations are tested on it. "
    "Keep a backup, or use the default database (SQLite) for anything that you cannot lose."
)
MAPPED_MAX_BYTES = 2 * 1024**3
"""Of the database, that readers map into memory: a fifth less work than reading each page by a call."""

_WAITS = "organ_waits"
"""The option of connections that says whether a transaction waits for others that write."""
_PRIMARY = 0xFF
"""An extended result code has the primary one in its lowest byte."""
_FULL_EXTENDED = {sqlite3.SQLITE_IOERR_SHMSIZE}
"""The file of the shared index beside the database could not grow; of other files SQLite says SQLITE_FULL itself."""
_UNWRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}
_HELD = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Catalog:
    """The database of one registry."""

    reader: Engine
    writer: Engine
    versions: Versions | None = None
    memory: Memory = field(default_factory=Memory)

    @contextmanager
    def reading(self, seconds: float | None = None) -> Iterator[Session]:
        """A session that reads; nothing that it does is kept. With `seconds`, TooSlow is raised when they are over."""
        with translated(), Session(self.reader, info={MEMORY_KEY: self.memory}) as session:
            if seconds is None:
                yield session
            else:
                with limited(session, seconds):
                    yield session

    @contextmanager
    def writing(self, *, waits: bool = True) -> Iterator[Session]:
        """A session whose transaction commits at the end of the block, or not at all.

        While another writes it waits, up to BUSY_TIMEOUT_MS. One that does not wait raises Busy, or of PostgreSQL
        CatalogError, at the first statement that another keeps from being done.
        """
        engine = self.writer if waits else self.writer.execution_options(**{_WAITS: False})
        with translated(), Session(engine, expire_on_commit=False) as session, session.begin():
            if not waits and engine.dialect.name == "postgresql":
                session.execute(text("SET LOCAL lock_timeout = 1"))  # milliseconds; 0 would be for ever
            yield session

    def version(self) -> int | None:
        """A number that is greater when anybody, here or in another process, has committed since the last one.

        Read it before the session whose results are to be kept under it. It means nothing to another process, nor to
        another catalog. None where the database cannot tell: then nothing may be kept. Today only SQLite can.
        """
        with translated():
            return None if self.versions is None else self.versions.current()

    def close(self) -> None:
        """Give the connections back."""
        self.memory.forget()
        if self.versions is not None:
            self.versions.close()
        self.reader.dispose()
        self.writer.dispose()


@contextmanager
def translated() -> Iterator[None]:
    """What the database's driver raises inside the block becomes one of our errors."""
    try:
        yield
    except DatabaseError as error:
        raise _error_of(error) from error
    except NoConnection as error:
        raise Busy("this process asks the database too much at once") from error


def open_catalog(database_url: str, migrate: Callable[[Engine], None], head: str) -> Catalog:
    """Open the database, make it if it is not there, and bring its schema to `head` by calling `migrate`.

    Logs a warning for PostgreSQL, which is experimental.

    Raises SchemaTooNew when a newer version wrote it, CatalogError when it is no database of ours.
    """
    try:
        url = make_url(database_url)
        if url.get_backend_name() == "sqlite":
            _make_database(Path(_database_file(url)))
        reader, writer = _engine(url, writes=False), _engine(url, writes=True)
        catalog = Catalog(reader, writer, _numbered(reader))
    except (ArgumentError, ModuleNotFoundError) as error:  # no URL, or one for a driver that is not installed
        kind = database_url.partition("://")[0][:40]  # not the rest, which may hold a password
        raise CatalogError(f"no database can be opened by a URL that begins with {kind!r}: {error}") from error
    if reader.dialect.name == "postgresql":
        _log.warning(EXPERIMENTAL)
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
    if url.database.startswith("file:") and "uri" in url.query:
        return unquote(urlsplit(url.database).path)
    return url.database


def _engine(url: URL, *, writes: bool) -> Engine:
    backend = url.get_backend_name()
    engine = create_engine(
        url,
        pool_pre_ping=backend != "sqlite",
        pool_size=CONNECTIONS_KEPT,
        max_overflow=CONNECTIONS_MORE,
        query_cache_size=STATEMENTS_MAX,
    )
    if engine.dialect.name == "sqlite":
        _heed_hints(engine)
        event.listen(engine, "connect", _sqlite_writer if writes else _sqlite_reader)
        if writes:
            event.listen(engine, "begin", _begin_immediate)
    elif engine.driver == "psycopg":
        event.listen(engine, "connect", _load_numeric_as_number)
        if not writes:  # one state for a whole transaction, as on SQLite, and no changes
            engine = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return engine


def _load_numeric_as_number(connection: Any, _record: object) -> None:
    """Let NUMERIC arrive as int or float, never as Decimal.

    No column of ours is NUMERIC, but PostgreSQL's sums and averages of whole numbers are.
    """
    from psycopg.adapt import Loader

    class NumberLoader(Loader):  # type: ignore[misc,unused-ignore]  # the driver is an extra
        def load(self, data: bytes | bytearray | memoryview) -> int | float:
            text = bytes(data).decode("ascii")
            return int(text) if text.lstrip("-").isdigit() else float(text)

    connection.adapters.register_loader("numeric", NumberLoader)


def _numbered(reader: Engine) -> Versions | None:
    """Let every transaction of `reader` begin with the number of what is there, which is None where nobody can tell."""
    if reader.dialect.name != "sqlite":
        return None
    versions = Versions(reader)

    def begin(connection: Any) -> None:
        connection.info[VERSION_KEY] = versions.current()  # before the snapshot, which is then no older than its number
        connection.exec_driver_sql("BEGIN")

    event.listen(reader, "begin", begin)
    return versions


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
    _pragmas(connection, ("query_only = ON", f"mmap_size = {MAPPED_MAX_BYTES}"))


def _pragmas(connection: Any, more: tuple[str, ...]) -> None:
    connection.isolation_level = None  # transactions begin where we say, not where the driver guesses
    cursor = connection.cursor()
    for pragma in (f"busy_timeout = {BUSY_TIMEOUT_MS}", "foreign_keys = ON", *more):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_immediate(connection: Any) -> None:
    if connection.get_execution_options().get(_WAITS, True):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        return
    _allow_waiting(connection, 0)
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    finally:
        _allow_waiting(connection, BUSY_TIMEOUT_MS)  # the next transaction of this connection waits again


def _allow_waiting(connection: Any, milliseconds: int) -> None:
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {milliseconds}").close()


def _revision(engine: Engine) -> str | None:
    with engine.connect() as connection:
        if not inspect(connection).has_table("alembic_version"):
            return None
        return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _make_database(database: Path) -> None:
    """Make the file of a new database, empty, and the folder that it lies in; only their owner may read them.

    SQLite would make the file readable for everybody, and gives its log the same mode. It brings its files to the disk,
    but not the folders above them.
    """
    if database.exists():
        return
    from organs.registry.store.files import (  # with the codecs, which searches never load
        PRIVATE_FILE,
        Files,
        make_durable_folder,
    )

    try:
        make_durable_folder(Files(), database.parent)
        os.close(os.open(database, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, PRIVATE_FILE))
    except OSError as error:
        raise StoreUnwritable(f"{database} cannot be made: {error.strerror}") from error


OWN_FILES = ("-wal", "-shm", "-journal")
"""What SQLite keeps beside a database while it is open."""


def write_snapshot(catalog: Catalog, path: Path) -> None:
    """Write what is committed now to the new file `path`; raises NotAllowed for what is no SQLite, DiskFull."""
    if not can_snapshot(catalog):
        raise NotAllowed("only an SQLite database can be copied while it is served")
    with translated(), catalog.reader.connect() as connection:
        source = connection.connection.driver_connection
        assert isinstance(source, sqlite3.Connection)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))  # SQLite would let everybody read it
            with closing(sqlite3.connect(path)) as target:
                source.backup(target)
                target.execute("PRAGMA journal_mode = DELETE")  # as it is copied it would want a log beside it
        except sqlite3.DatabaseError as error:
            raise DatabaseError("the copy of the database", None, error) from error


def can_snapshot(catalog: Catalog) -> bool:
    """Whether its database can be copied so."""
    return bool(catalog.reader.dialect.name == "sqlite")


def open_snapshot(path: Path) -> Catalog:
    """The database in `path`, which nobody else uses, without a log beside it; whoever opens it closes it."""
    engine = create_engine(f"sqlite:///{path.as_posix()}", creator=lambda: _connect(path), poolclass=NullPool)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return Catalog(engine, engine)


def settle(path: Path) -> None:
    """Bring what stands beside the database in `path` into it, if there is one: then another can take its place.

    What is left beside it would be taken for a part of that other one. Raises Busy while somebody has it open.
    """
    if not any(path.with_name(path.name + ending).exists() for ending in OWN_FILES):
        return
    if path.exists():
        with translated():
            try:
                with closing(_connect(path, wait_ms=0)) as connection:
                    connection.execute("PRAGMA journal_mode = DELETE")
            except sqlite3.DatabaseError as error:
                raise DatabaseError("the older database", None, error) from error
    for ending in OWN_FILES:
        beside = path.with_name(path.name + ending)
        if beside.exists() and path.exists():
            raise Busy(f"{path} is open in another process")
        beside.unlink(missing_ok=True)


def _connect(path: Path, wait_ms: int = BUSY_TIMEOUT_MS) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in (f"busy_timeout = {wait_ms}", "foreign_keys = ON", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")
    return connection
