"""Engines and sessions: how the catalog is read and written, with limits on queries."""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import unquote, urlsplit

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    create_engine,
    event,
    func,
    inspect,
    make_url,
    select,
    text,
    type_coerce,
)
from sqlalchemy.exc import ArgumentError, DatabaseError, DataError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection
from sqlalchemy.orm import Session

from organs.registry.catalog.cache import (
    CACHE_KEY,
    MARK_STATEMENT,
    NEXT_VERSION_STATEMENT,
    VERSION_KEY,
    VERSION_STATEMENT,
    Cache,
    Versions,
)
from organs.registry.catalog.slow import SlowStatements
from organs.registry.catalog.tables import Timestamp
from organs.registry.errors import (
    BadValue,
    Busy,
    CatalogError,
    DatabaseUnreachable,
    DiskFull,
    MissingExtra,
    OrganError,
    StoreUnwritable,
    TooSlow,
)

SEARCH_SECONDS = 2.0
COUNTS_SECONDS = 0.5
"""The limit for the counts beside a search, which may be left out."""
STEPS = 200_000
"""The number of SQLite instructions between two checks of the time limit. They take some milliseconds; quick queries
need fewer."""

_LIMIT_KEY = "limit"
_PLANNER_SETTINGS = {
    "plan_cache_mode": "force_custom_plan",  # plans depend on the bounds of a search, and only then hash ids
    "jit": "off",  # takes longer than most searches
    "max_parallel_workers_per_gather": "0",  # other requests use the other cores
    "random_page_cost": "1.1",  # the default is for disks that turn
}
_SET_TIMEOUT = text("SELECT set_config('statement_timeout', :milliseconds, true)")
"""Like SET LOCAL, but the number is a parameter, so that the statement is compiled once."""
_POSTGRESQL_CANCELED = "57014"
_POSTGRESQL_RETRIED = {"55P03", "40001", "40P01"}
"""States of a transaction that may succeed if it is repeated: a lock is held too long, or two transactions conflict."""
_POSTGRESQL_UNREACHABLE = {"", "08", "57", "53"}
"""Classes of states: no connection, the server stops or starts, it has no connection left. The driver gives none if it
could not connect."""
_POSTGRESQL_FULL = "53100"
_POSTGRESQL_READ_ONLY = "25006"


@contextmanager
def limited(session: Session, seconds: float, *, reusable: bool = True) -> Iterator[None]:
    """Stop the current statement of `session` and raise TooSlow if the block takes longer than `seconds`.

    If the session is not used after the block, pass `reusable=False`; this saves PostgreSQL three statements (a
    savepoint, its release, and the reset of the limit). In nested blocks, the earlier deadline applies. On PostgreSQL
    the limit applies to each statement.
    """
    outer: tuple[float, float] | None = session.info.get(_LIMIT_KEY)
    inner = (monotonic() + seconds, seconds)
    limit = inner if outer is None else min(outer, inner)
    connection = session.connection()
    is_postgresql = connection.dialect.name == "postgresql"
    if is_postgresql and monotonic() >= limit[0]:
        raise TooSlow(limit[1])  # the least limit of PostgreSQL is a millisecond, enough for some statements
    session.info[_LIMIT_KEY] = limit
    _set_limit(connection, limit)
    try:
        if is_postgresql and reusable:
            with session.begin_nested():  # a stopped statement aborts its transaction up to this savepoint
                yield
        else:
            yield
    except DatabaseError as error:
        code, state = (getattr(error.orig, name, None) for name in ("sqlite_errorcode", "sqlstate"))
        if code == sqlite3.SQLITE_INTERRUPT or state == _POSTGRESQL_CANCELED:
            raise TooSlow(limit[1]) from error
        raise
    finally:
        session.info[_LIMIT_KEY] = outer
        is_over = is_postgresql and not reusable  # the limit ends with the transaction
        if not (is_over or connection.closed or connection.invalidated):  # the server may have ended the connection
            _set_limit(connection, outer)


def _set_limit(connection: Connection, limit: tuple[float, float] | None) -> None:
    if connection.dialect.name == "sqlite":
        raw: Any = connection.connection.driver_connection
        if limit is None:
            raw.set_progress_handler(None, 0)
        else:
            deadline = limit[0]
            raw.set_progress_handler(lambda: monotonic() > deadline, STEPS)
    elif connection.dialect.name == "postgresql":
        milliseconds = 0 if limit is None else max(1, int(1000 * (limit[0] - monotonic())))
        connection.execute(_SET_TIMEOUT, {"milliseconds": str(milliseconds)})


BUSY_TIMEOUT_MS = 30_000
STATEMENTS_MAX = 2000
"""The most compiled statements in the cache. Searches have many forms, and to compile a statement takes longer than to
run it."""
POOL_SIZE, POOL_OVERFLOW = 5, 27
"""The number of connections of each engine that stay open, and of further connections. Together they are more than the
threads of a server process."""
MAPPED_MAX_BYTES = 2 * 1024**3
"""The bytes of the database that readers map into memory. This takes a fifth less work than a system call for each
page."""

_WRITER_LOCK = 1
"""The advisory lock of PostgreSQL that a writer holds. SQLite needs none: it has one writer at a time."""
_WAITS = "organ_waits"
"""The option of connections that says whether a transaction waits for other writers."""
_PRIMARY = 0xFF
"""The mask of the primary code in an extended result code."""
_FULL_EXTENDED = {sqlite3.SQLITE_IOERR_SHMSIZE}
"""The code if the shared index file beside the database cannot grow. For other files SQLite reports SQLITE_FULL."""
_UNWRITABLE = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}
_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Catalog:
    """The database of one registry."""

    reader: Engine
    writer: Engine
    versions: Versions | None = None
    cache: Cache = field(default_factory=Cache)
    slow: SlowStatements = field(default_factory=SlowStatements)
    """The slow statements of this process."""

    @contextmanager
    def reading(self, seconds: float | None = None) -> Iterator[Session]:
        """Open a session that only reads. With `seconds`, TooSlow is raised after that time."""
        with translated(), Session(self.reader, info={CACHE_KEY: self.cache}) as session:
            if seconds is None:
                yield session
            else:
                with limited(session, seconds, reusable=False):
                    yield session

    @contextmanager
    def writing(self, *, waits: bool = True) -> Iterator[Session]:
        """Open a session whose transaction commits at the end of the block; if the block raises, it is rolled back.

        There is one writer at a time, so writers never wait for each other in a circle. While another one writes, it
        waits up to BUSY_TIMEOUT_MS; without `waits`, it raises Busy immediately.
        """
        engine = self.writer if waits else self.writer.execution_options(**{_WAITS: False})
        with translated(), Session(engine, expire_on_commit=False) as session, session.begin():
            if engine.dialect.name == "postgresql":
                timeout = BUSY_TIMEOUT_MS if waits else 1  # 0 would mean no limit
                session.execute(text(f"SET LOCAL lock_timeout = {timeout}"))
                session.execute(text(f"SELECT pg_advisory_xact_lock({_WRITER_LOCK})"))
            else:
                changes = _changes(session)  # SQLite locks the database now: a transaction is lazy otherwise
            yield session
            if not session.in_transaction():  # the block rolled it back
                return
            session.flush()
            if engine.dialect.name == "postgresql":
                session.execute(NEXT_VERSION_STATEMENT)
            elif _changes(session) != changes:
                session.connection().exec_driver_sql(f"{MARK_STATEMENT} = {secrets.randbelow(_MARKS)}")

    @contextmanager
    def counting(self) -> Iterator[Session]:
        """Open a session that writes rows on which no answer depends, such as counts of requests.

        Cached answers stay valid. On PostgreSQL it does not wait for writers, and a row may be lost if the database
        server loses its power.
        """
        with translated(), Session(self.writer, expire_on_commit=False) as session, session.begin():
            if self.writer.dialect.name == "postgresql":
                session.execute(text("SET LOCAL synchronous_commit = off"))
            else:
                session.connection()
            yield session

    def version(self) -> int | None:
        """Return a number that increases with every commit, of this process or another.

        Read it before the session whose results are cached under it. It is only valid in this process and for this
        catalog. It is None if results must not be cached.
        """
        with translated():
            if self.reader.dialect.name == "postgresql":
                with self.reader.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                    number: int = connection.execute(VERSION_STATEMENT).scalar_one()
                    return number
            return None if self.versions is None else self.versions.current()

    def close(self) -> None:
        """Close all connections."""
        self.cache.clear()
        if self.versions is not None:
            self.versions.close()
        self.reader.dispose()
        self.writer.dispose()


_MARKS = 1 << 31


def _changes(session: Session) -> int:
    """Return how many rows the connection of the session, of SQLite, has changed."""
    raw: Any = session.connection().connection.driver_connection
    changes: int = raw.total_changes
    return changes


def database_now(session: Session) -> datetime:
    """Return the time by the database's clock: all leases and expiries use it, so that machines' clocks may differ."""
    is_server = session.get_bind().dialect.name == "postgresql"
    clock = func.clock_timestamp() if is_server else func.strftime("%Y-%m-%d %H:%M:%f", "now")
    moment: datetime = session.execute(select(type_coerce(clock, Timestamp))).scalar_one()
    return moment


@contextmanager
def translated() -> Iterator[None]:
    """Translate the exceptions of the database driver into errors of this project."""
    try:
        yield
    except DatabaseError as error:
        raise _error_of(error) from error
    except NoConnection as error:
        raise Busy("this process has too many queries at once: try again") from error


def parse_database_url(text: str) -> URL:
    """Return the URL of a database, with the driver of this project. The message of an error does not have the text.

    Raises CatalogError for another kind of database, and MissingExtra without the driver.
    """
    kind, separator, _ = text.partition("://")  # the rest may have a password
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:  # a ValueError for a wrong port
        problem = f"begins with {kind[:40]!r} and is not valid" if separator else "has no '://'"
        raise CatalogError(f"the URL of the database {problem}; {_URL_FORMS}") from error
    if url.drivername in _POSTGRESQL_NAMES:
        if importlib.util.find_spec("psycopg") is None:
            message = "PostgreSQL needs the package psycopg: pip install 'organ-registry[postgres]'"
            raise MissingExtra(message, "postgres")
        return url.set(drivername=_POSTGRESQL_NAMES[0])
    if url.get_backend_name() != "sqlite":
        raise CatalogError(f"databases of {kind[:40]!r} are not supported; {_URL_FORMS}")
    if url.host:
        raise CatalogError("the URL of an SQLite database has three slashes, or four before an absolute path")
    if url.database in (None, "", ":memory:"):
        raise CatalogError("an SQLite database in memory is not supported: give the path of a file")
    return url


_REFUSED = (
    "the database server refuses the connection: check the user, the password and the name of the database, and "
    "whether it has a connection left"
)
_POSTGRESQL_NAMES = ("postgresql+psycopg", "postgresql", "postgres")
_URL_FORMS = "write sqlite:///FILE or postgresql+psycopg://USER@HOST/NAME"


PING_SECONDS = 5
"""The time in which a server must say whether it accepts connections."""


def is_unavailable(database_url: str) -> bool:
    """Return whether the database is a server that cannot be reached, or that does not accept connections yet.

    A server that would refuse the user, the password or the name of the database is available.
    """
    url = parse_database_url(database_url)
    if url.get_backend_name() == "sqlite":
        return False
    from psycopg.conninfo import make_conninfo
    from psycopg.pq import PGconn, Ping

    _, arguments = url.get_dialect()().create_connect_args(url)
    options = make_conninfo(**{"connect_timeout": PING_SECONDS, **arguments})
    return PGconn.ping(options.encode()) in (Ping.REJECT, Ping.NO_RESPONSE)


def open_catalog(database_url: str, migrate: Callable[[Engine], None], head: str) -> Catalog:
    """Open the database, or create it, and bring its schema to `head` by calling `migrate`.

    Raises SchemaTooNew if a newer version wrote the database, and CatalogError if it is not a database of this program.
    """
    url = parse_database_url(database_url)
    try:
        if url.get_backend_name() == "sqlite":
            database = url.database or ""
            is_uri = database.startswith("file:") and "uri" in url.query
            _create_database(Path(unquote(urlsplit(database).path) if is_uri else database))
        reader, writer = _engine(url, writes=False), _engine(url, writes=True)
        versions = None
        if reader.dialect.name == "sqlite":
            versions = Versions(reader)
            event.listen(reader, "begin", partial(_begin_reading, versions))
        catalog = Catalog(reader, writer, versions)
        catalog.slow.watch(reader, "reader")
        catalog.slow.watch(writer, "writer")
    except (ArgumentError, ModuleNotFoundError) as error:
        raise CatalogError(f"the database cannot be opened: {error}") from error
    try:
        with translated():
            with catalog.reader.connect() as connection:
                has_schema = inspect(connection).has_table("alembic_version")
                revision = connection.execute(REVISION_STATEMENT).scalar() if has_schema else None
            if revision != head:
                migrate(catalog.writer)
    except OrganError as error:
        catalog.close()
        if isinstance(error, DatabaseUnreachable) and not is_unavailable(database_url):
            raise DatabaseUnreachable(_REFUSED) from error
        raise
    return catalog


REVISION_STATEMENT = text("SELECT version_num FROM alembic_version")


def _begin_reading(versions: Versions, connection: Any) -> None:
    """Begin a transaction of a reader (SQLite), and store the version of the database in the connection."""
    connection.info[VERSION_KEY] = versions.current()  # before the snapshot, so that the snapshot is not older
    connection.exec_driver_sql("BEGIN")


def _error_of(error: DatabaseError) -> OrganError:
    """Return the error of this project for the result code of SQLite, or the state of PostgreSQL."""
    message = str(error.orig)
    code = getattr(error.orig, "sqlite_errorcode", None)
    state: str = getattr(error.orig, "sqlstate", None) or ""
    primary = None if code is None else code & _PRIMARY
    if primary in _LOCKED or state in _POSTGRESQL_RETRIED:
        return Busy(f"another process has locked the database: {message}")
    if primary in _UNWRITABLE or state == _POSTGRESQL_READ_ONLY:
        return StoreUnwritable(f"the database cannot be written: {message}")
    if code in _FULL_EXTENDED or primary == sqlite3.SQLITE_FULL or state == _POSTGRESQL_FULL:
        return DiskFull(f"the disk of the database is full: {message}")
    if hasattr(error.orig, "sqlstate"):
        is_broken = isinstance(error, OperationalError) and state[:2] in _POSTGRESQL_UNREACHABLE
        if error.connection_invalidated or is_broken:
            _log.warning("the database does not answer: %s", message)  # the message names hosts and users
            return DatabaseUnreachable("the database does not answer: try again later")
        if isinstance(error, DataError):
            return BadValue(f"the database refuses a value: {message}")
    return CatalogError(f"the database failed: {message}")


def _engine(url: URL, *, writes: bool) -> Engine:
    engine = create_engine(
        url,
        pool_pre_ping=url.get_backend_name() != "sqlite",
        pool_size=POOL_SIZE,
        max_overflow=POOL_OVERFLOW,
        query_cache_size=STATEMENTS_MAX,
    )
    if engine.dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite.base import SQLiteCompiler

        class Hinted(SQLiteCompiler):
            """A compiler for `with_hint(table, "INDEXED BY …", "sqlite")`: that of SQLAlchemy leaves hints out."""

            def get_from_hint_text(self, table: Any, text: str | None) -> str | None:
                return text

        engine.dialect.statement_compiler = Hinted
        if writes:
            event.listen(engine, "begin", _begin_immediate)
    event.listen(engine, "connect", partial(_prepare_connection, engine.driver, writes))
    if engine.driver == "psycopg" and not writes:  # one snapshot for a transaction, as on SQLite, and no writes
        engine = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return engine


def _prepare_connection(driver: str, writes: bool, connection: Any, _record: object) -> None:
    """Set the options of a new connection of the driver."""
    if driver == "psycopg":
        _load_numeric_as_number(connection)
        if not writes:
            connection.execute("; ".join(f"SET {name} = {value}" for name, value in _PLANNER_SETTINGS.items()))
            connection.commit()
        return
    connection.isolation_level = None  # the driver must not begin transactions by itself
    own = ("journal_mode = WAL", "synchronous = FULL")
    if not writes:
        own = ("query_only = ON", f"mmap_size = {MAPPED_MAX_BYTES}")
    for pragma in (f"busy_timeout = {BUSY_TIMEOUT_MS}", "foreign_keys = ON", *own):
        connection.execute(f"PRAGMA {pragma}").close()


def _load_numeric_as_number(connection: Any) -> None:
    """Load NUMERIC as int or float instead of Decimal.

    No column has this type, but PostgreSQL's sums and averages of whole numbers do.
    """
    from psycopg.adapt import Loader

    class NumberLoader(Loader):  # type: ignore[misc,unused-ignore]  # the driver is an extra
        def load(self, data: bytes | bytearray | memoryview) -> int | float:
            text = bytes(data).decode("ascii")
            return int(text) if text.lstrip("-").isdigit() else float(text)

    connection.adapters.register_loader("numeric", NumberLoader)


def _begin_immediate(connection: Any) -> None:
    waits = connection.get_execution_options().get(_WAITS, True)
    try:
        if not waits:
            connection.exec_driver_sql("PRAGMA busy_timeout = 0").close()
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    finally:
        if not waits:  # the next transaction of this connection waits again
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}").close()


def _create_database(database: Path) -> None:
    """Create the empty file of a new database, and its folder; only their owner may read them.

    SQLite would create the file with a mode that lets all users read it, and its log gets the same mode. SQLite syncs
    its files, but not the folders above them.
    """
    try:
        if database.exists():
            return
    except OSError as error:
        raise StoreUnwritable(f"no access to {database}: {error.strerror}") from error
    from organs.registry.store.files import (  # imports the codecs, which searches do not need
        PRIVATE_FILE,
        Files,
        make_durable_folder,
    )

    try:
        make_durable_folder(Files(), database.parent)
        os.close(os.open(database, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, PRIVATE_FILE))
    except OSError as error:
        raise StoreUnwritable(f"{database} cannot be created: {error.strerror}") from error
