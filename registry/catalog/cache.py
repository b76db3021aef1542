"""The cache of values computed from the catalog, which are valid until the catalog changes.

A version is a number of a state of the database. On SQLite, this process counts the states that it meets; it reads the
version before a transaction sees its snapshot, so a value that is cached under a version is never older than it. On
PostgreSQL, a row of the database has the version, so that a snapshot contains its own version. On both, transactions of
`Catalog.counting` make no new version.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from organs.registry.recent import RecentValues

CACHE_KEY = "cache"
"""The key of the `Cache` in `Session.info`."""
VERSION_KEY = "version"
"""The key of the version in the `info` of a connection (SQLite) or of a session (PostgreSQL)."""
VERSION_STATEMENT = text("SELECT number FROM catalog_version")
NEXT_VERSION_STATEMENT = text(
    "UPDATE catalog_version SET number = number + 1 WHERE pg_current_xact_id_if_assigned() IS NOT NULL"
)
"""Counts the version up, in PostgreSQL, if the transaction has changed anything."""
ENTRIES_MAX = 1000
"""The most values in a cache: one roll-up of facets, counts of some kilobytes, and ids of models of at most 40 kB with
their SELECT."""
_BUSY_TIMEOUT_MS = 30_000
_DATA_VERSION = "PRAGMA data_version"
MARK_STATEMENT = "PRAGMA user_version"
"""The mark of a state of an SQLite database: a random number, which each transaction with a new version replaces."""

T = TypeVar("T")
_abandoned: list[Any] = []
"""Connections that a forked process inherited. They are kept here, because SQLite forbids the process to use or close
them."""


class Versions:
    """A source of version numbers for the states of an SQLite database, with its own connection, which never writes.

    `PRAGMA data_version` changes between two reads of one connection if another connection has committed in between, in
    this process or another. It costs some microseconds. Only then the mark of the state is read, which some commits do
    not change. Safe for threads, and after a fork.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = Lock()
        self._connection: Any = None
        self._owner = 0
        self._last: int | None = None
        self._mark: int | None = None
        self._number = 0

    def current(self) -> int:
        """Return a number that increases with every commit of others that makes a new version.

        Raises SQLAlchemy's OperationalError.
        """
        with self._lock:
            try:
                if self._connection is None or self._owner != os.getpid():
                    self._connect()
                (data_version,) = self._connection.execute(_DATA_VERSION).fetchone()
                if data_version != self._last:
                    is_known, before = self._last is not None, self._mark
                    (self._mark,) = self._connection.execute(MARK_STATEMENT).fetchone()
                    self._last = data_version
                    self._number += not is_known or self._mark != before
            except sqlite3.DatabaseError as error:
                raise OperationalError(_DATA_VERSION, None, error) from error
            return self._number

    def close(self) -> None:
        """Close the connection; it is opened again when it is needed."""
        with self._lock:
            if self._connection is not None and self._owner == os.getpid():
                self._connection.close()
            self._connection = None

    def _connect(self) -> None:
        if self._connection is not None:
            _abandoned.append(self._connection)
        arguments, options = self._engine.dialect.create_connect_args(self._engine.url)
        self._connection = self._engine.dialect.connect(*arguments, **options)
        self._connection.isolation_level = None
        self._connection.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
        self._connection.execute("PRAGMA query_only = ON")
        self._owner = os.getpid()
        self._last = None  # another connection has other numbers, so a change is assumed


class Cache:
    """Values by key, computed once for each version. A new version drops all values; a full cache drops
    the least recently used value."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._lock = Lock()
        self._version = -1
        self._values = RecentValues[Hashable, Any](entries_max)

    def get(self, version: int, key: Hashable, compute: Callable[[], T], keep: Callable[[T], bool] | None = None) -> T:
        """Return the value of `key` at `version`; compute it if it is missing, and store it if `keep` accepts it.

        Without `keep`, the first thread computes the value while the others wait for it. A reader of an older version
        than the newest known computes the value for itself. If `compute` raises, nothing is stored.
        """
        with self._lock:
            if version > self._version:  # other threads may still add values to the old ones
                self._version, self._values = version, RecentValues(self._entries_max)
            is_old, values = version < self._version, self._values
        value: T = compute() if is_old else values.get(key, compute, keep)
        return value

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        """Drop all values."""
        self._values.clear()


def cached(session: Session, key: Hashable, compute: Callable[[], T], keep: Callable[[T], bool] | None = None) -> T:
    """Return the value of `key` for the state that `session` sees. Writing sessions always compute it."""
    cache: Cache | None = session.info.get(CACHE_KEY)
    if cache is None:
        return compute()
    connection = session.connection()
    version: int | None = connection.info.get(VERSION_KEY)
    if connection.dialect.name == "postgresql":
        version = session.info.get(VERSION_KEY)
        if version is None:  # read once for each session: its transaction sees one state of the catalog
            version = session.info[VERSION_KEY] = connection.scalar(VERSION_STATEMENT)
    return compute() if version is None else cache.get(version, key, compute, keep)
