"""How long a question may take the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from sqlalchemy import Connection, text
from sqlalchemy.exc import DatabaseError
from sqlalchemy.orm import Session

from organs.registry.errors import TooSlow

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
