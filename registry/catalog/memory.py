"""What readers remember of a catalog until it changes: its versions, and what was worked out of one of them.

A version is a number that this process gives to a state of the database. It is read before a transaction sees its
snapshot, so that what is remembered under a version is never older than the version.
"""

from __future__ import annotations

import os
import sqlite3
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Any, TypeVar

from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

MEMORY_KEY = "memory"
"""Where a session has its `Memory`."""
VERSION_KEY = "version"
"""Where a connection has the version that was current just before its transaction began."""
ENTRIES_MAX = 1000
"""The one roll-up of facets, and counts of some kilobytes each."""
_BUSY_TIMEOUT_MS = 30_000
_QUESTION = "PRAGMA data_version"

T = TypeVar("T")
_abandoned: list[Any] = []
"""Connections of before a fork. SQLite forbids to use them, and to close them, on this side of it."""


class Versions:
    """Numbers the states of an SQLite database, on a connection of its own that never writes.

    `PRAGMA data_version` differs from the last one that the same connection read if anybody else has committed in
    between, in this process or another. It costs some microseconds. Safe for threads, and after a fork.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = Lock()
        self._connection: Any = None
        self._owner = 0
        self._last: int | None = None
        self._number = 0

    def current(self) -> int:
        """Greater than before if anything was committed since. Raises OperationalError, SQLAlchemy's."""
        with self._lock:
            try:
                if self._connection is None or self._owner != os.getpid():
                    self._connect()
                (found,) = self._connection.execute(_QUESTION).fetchone()
            except sqlite3.DatabaseError as error:
                raise OperationalError(_QUESTION, None, error) from error
            if found != self._last:
                self._last = found
                self._number += 1
            return self._number

    def close(self) -> None:
        """Give the connection back; it is opened again when it is needed."""
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
        self._last = None  # another connection counts from elsewhere: what was known before counts as changed


class Memory:
    """Values by key, worked out once a version; the longest unused are dropped, and all when the version changes."""

    def __init__(self, entries_max: int = ENTRIES_MAX) -> None:
        self._entries_max = entries_max
        self._lock = Lock()
        self._version = -1
        self._held: OrderedDict[Hashable, _Entry] = OrderedDict()

    def recall(self, version: int, key: Hashable, make: Callable[[], T], keep: Callable[[T], bool] | None = None) -> T:
        """The value of `key` at `version`. What is not there is made, and kept if `keep` says so of it.

        Without `keep` it is made by the first who asks while the others wait for it. Who still reads an older version
        than is known makes it for himself. What raises is not kept.
        """
        entry = self._entry(version, key)
        if entry is None:
            return make()
        if keep is not None:
            found: T = entry.value if entry.made else make()
            if not entry.made and keep(found):
                entry.value, entry.made = found, True
            return found
        with entry.lock:
            if not entry.made:
                entry.value, entry.made = make(), True
            value: T = entry.value
            return value

    def __len__(self) -> int:
        return len(self._held)

    def forget(self) -> None:
        """Begin anew."""
        with self._lock:
            self._held.clear()

    def _entry(self, version: int, key: Hashable) -> _Entry | None:
        with self._lock:
            if version < self._version:
                return None
            if version > self._version:
                self._held.clear()
                self._version = version
            entry = self._held.setdefault(key, _Entry())
            self._held.move_to_end(key)
            if len(self._held) > self._entries_max:
                self._held.popitem(last=False)
            return entry


class _Entry:
    """A value that somebody may be making just now."""

    __slots__ = ("lock", "made", "value")

    def __init__(self) -> None:
        self.lock = Lock()
        self.made = False
        self.value: Any = None


def remembered(session: Session, key: Hashable, make: Callable[[], T], keep: Callable[[T], bool] | None = None) -> T:
    """The value of `key` for what `session` sees; made anew where nothing can be remembered, as by who writes."""
    memory: Memory | None = session.info.get(MEMORY_KEY)
    version: int | None = session.connection().info.get(VERSION_KEY)
    return make() if memory is None or version is None else memory.recall(version, key, make, keep)
