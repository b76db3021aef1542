"""Copies of a catalog: a snapshot in a file, and all rows from one database engine to the same or to another one."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import xxhash
from sqlalchemy import Column, Table, bindparam, create_engine, event, func, insert, select, text, update
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from organs.registry.catalog.engine import BUSY_TIMEOUT_MS, REVISION_STATEMENT, Catalog, translated
from organs.registry.catalog.tables import AnswerRow, Base, CatalogVersion, NamedLease
from organs.registry.errors import Busy, CatalogError, Conflict

ROWS_AT_ONCE = 2000
KEPT_TABLES = {CatalogVersion.__tablename__, NamedLease.__tablename__, AnswerRow.__tablename__}
"""Tables that each database has for itself. Prompts and answers are kept for a day, and are in no copy."""
CHECKSUM_MODULUS = 1 << 128


def copy_rows(source: Session, target: Session) -> int:
    """Copy all rows of `source` into the empty tables of `target`, and compare them; return their number.

    Both databases must have the newest schema. `source` should see one state, so that rows agree with each other. The
    caller commits `target`. Raises Conflict if `target` has rows, CatalogError if a row in `target` differs from that
    in `source`.
    """
    check_empty(target)
    tables = copied_tables()
    total, checksums = 0, {}
    for table in tables:
        count, checksums[table.name] = _copy_table(source, target, table)
        total += count
    for table in tables:
        if _checksum(target, table) != checksums[table.name]:
            raise CatalogError(f"the rows of the table {table.name} changed when they were copied")
        _continue_ids(target, table)
    if target.get_bind().dialect.name == "postgresql":
        target.execute(text("ANALYZE"))  # without statistics, the first searches take seconds
    return total


def check_empty(target: Session) -> None:
    """Raise Conflict if a table that `copy_rows` fills has rows."""
    for table in copied_tables():
        if target.execute(select(table).limit(1)).first() is not None:
            raise Conflict(
                f"the new database has rows in the table {table.name}: name an empty one, or use this one if the "
                "registry was moved there before"
            )


def copied_tables() -> list[Table]:
    """Return the tables that `copy_rows` copies; a table comes after those that its rows refer to."""
    return [table for table in Base.metadata.sorted_tables if table.name not in KEPT_TABLES]


def _copy_table(source: Session, target: Session, table: Table) -> tuple[int, int]:
    """Copy the rows of one table; return their number and their checksum.

    A row may refer to a later row of the same table, so such references are set when all rows exist.
    """
    own_references = [column for column in table.columns if _refers_to(column, table)]
    (key,) = table.primary_key.columns if own_references else (None,)
    references: list[dict[str, Any]] = []
    count = checksum = 0
    for rows in _batches(source, table):
        count += len(rows)
        checksum += sum(map(_row_checksum, rows))
        values = [dict(row._mapping) for row in rows]
        for value in values:
            later = {column.name: value[column.name] for column in own_references}
            if key is not None and any(item is not None for item in later.values()):
                references.append({"row_key": value[key.name], **{f"new_{name}": item for name, item in later.items()}})
                value.update(dict.fromkeys(later))
        _insert(target, table, values)
    if references and key is not None:
        new_values: dict[str, Any] = {column.name: bindparam(f"new_{column.name}") for column in own_references}
        statement = update(table).where(key == bindparam("row_key")).values(new_values)
        for begin in range(0, len(references), ROWS_AT_ONCE):
            target.connection().execute(statement, references[begin : begin + ROWS_AT_ONCE])
    return count, checksum % CHECKSUM_MODULUS


def _insert(session: Session, table: Table, values: Sequence[dict[str, Any]]) -> None:
    connection = session.connection()
    if connection.dialect.name != "postgresql":
        connection.execute(insert(table), values)
        return
    # COPY is many times faster than INSERT, but it does not encode the values.
    processors = {
        column.name: column.type.dialect_impl(connection.dialect).bind_processor(connection.dialect)
        for column in table.columns
    }
    driver: Any = connection.connection.driver_connection
    quote = connection.dialect.identifier_preparer.quote
    names = ", ".join(quote(column.name) for column in table.columns)
    with driver.cursor() as cursor, cursor.copy(f"COPY {quote(table.name)} ({names}) FROM STDIN") as copy:
        for value in values:
            copy.write_row(
                [value[name] if process is None else process(value[name]) for name, process in processors.items()]
            )


def _refers_to(column: Column[Any], table: Table) -> bool:
    return any(key.column.table is table for key in column.foreign_keys)


def _batches(session: Session, table: Table) -> Iterator[Sequence[Any]]:
    result = session.execute(select(table), execution_options={"yield_per": ROWS_AT_ONCE})
    yield from result.partitions()


def _checksum(session: Session, table: Table) -> int:
    checksum = 0
    for rows in _batches(session, table):
        checksum += sum(map(_row_checksum, rows))
    return checksum % CHECKSUM_MODULUS


def _row_checksum(row: Sequence[Any]) -> int:
    """Return a number for the values of a row. The sum for a table does not depend on the order of its rows."""
    return xxhash.xxh3_128_intdigest(repr(tuple(map(_comparable, row))).encode("utf-8", "surrogatepass"))


def _comparable(value: Any) -> Any:
    """Return a value whose `repr` is the same on all engines."""
    if hasattr(value, "timestamp"):
        return value.timestamp()  # two engines may return the same time in different zones
    return bytes(value) if isinstance(value, memoryview | bytearray) else value


def _continue_ids(session: Session, table: Table) -> None:
    """Make PostgreSQL generate ids after those that were copied; SQLite does so by itself."""
    if session.get_bind().dialect.name != "postgresql" or "id" not in table.columns:
        return
    sequence = session.scalar(text("SELECT pg_get_serial_sequence(:name, 'id')"), {"name": table.name})
    if sequence is not None:
        highest = session.scalar(select(func.max(table.columns["id"])))
        if highest is not None:
            session.execute(text("SELECT setval(:sequence, :highest)"), {"sequence": sequence, "highest": highest})


SIDE_FILES = ("-wal", "-shm", "-journal")
"""The suffixes of the files that SQLite keeps beside an open database."""


def write_snapshot(catalog: Catalog, path: Path) -> None:
    """Write the committed state to the new file `path`, as an SQLite database.

    Rows of another database are read in one transaction and compared after the copy. Raises DiskFull.
    """
    # With the default mode of SQLite, all users could read the file.
    os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    with translated():
        if catalog.reader.dialect.name == "sqlite":
            with catalog.reader.connect() as connection:
                source = connection.connection.driver_connection
                assert isinstance(source, sqlite3.Connection)
                try:
                    with closing(sqlite3.connect(path)) as target_file:
                        source.backup(target_file)
                        target_file.execute("PRAGMA secure_delete = ON")
                        with target_file:
                            target_file.execute(f"DELETE FROM {AnswerRow.__tablename__}")  # noqa: S608  # our own name
                        # The copy has WAL mode, which needs a log beside it.
                        target_file.execute("PRAGMA journal_mode = DELETE")
                except sqlite3.DatabaseError as error:
                    raise DatabaseError("the copy of the database", None, error) from error
            return
        copy = open_snapshot(path)
        try:
            Base.metadata.create_all(copy.writer)  # the schema that the migrations make
            with catalog.reading() as own, copy.writing() as target:
                revision = own.execute(REVISION_STATEMENT).scalar_one()
                target.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
                target.execute(text("INSERT INTO alembic_version VALUES (:revision)"), {"revision": revision})
                target.execute(text("INSERT INTO catalog_version (id, number) VALUES (1, 1)"))
                copy_rows(own, target)
        finally:
            copy.close()


def open_snapshot(path: Path) -> Catalog:
    """Open the database in `path`, which no other process uses, without a log beside it. The caller closes it."""
    engine = create_engine(f"sqlite:///{path.as_posix()}", creator=lambda: _connect(path), poolclass=NullPool)
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return Catalog(engine, engine)


def checkpoint(path: Path) -> None:
    """Write the log beside the database `path` into it and remove the log, so that the database can be replaced.

    SQLite would read a remaining log as a part of the new database. Raises Busy if another process has the file open.
    """
    if not any(path.with_name(path.name + ending).exists() for ending in SIDE_FILES):
        return
    if path.exists():
        with translated():
            try:
                with closing(_connect(path, wait_ms=0)) as connection:
                    connection.execute("PRAGMA journal_mode = DELETE")
            except sqlite3.DatabaseError as error:
                raise DatabaseError("the older database", None, error) from error
    for ending in SIDE_FILES:
        side_file = path.with_name(path.name + ending)
        if side_file.exists() and path.exists():
            raise Busy(f"{path} is open in another process")
        side_file.unlink(missing_ok=True)


def _connect(path: Path, wait_ms: int = BUSY_TIMEOUT_MS) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in (f"busy_timeout = {wait_ms}", "foreign_keys = ON", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")
    return connection
