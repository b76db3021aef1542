"""A copy of the database at one moment, made while others read and write it.

SQLite's own online backup reads all pages within one read transaction: in WAL mode it stops nobody, and what is
committed meanwhile is not in the copy. The copy is one file, with nothing beside it.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import create_engine, event
from sqlalchemy.exc import DatabaseError
from sqlalchemy.pool import NullPool

from organs.registry.catalog.engine import BUSY_TIMEOUT_MS, Catalog, translated
from organs.registry.errors import Busy, NotAllowed

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
