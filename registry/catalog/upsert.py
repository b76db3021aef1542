"""Inserts that give way to a row that is there already, in the two dialects that we speak."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy.orm import DeclarativeBase, Session

ROWS_A_STATEMENT = 500
"""Bounds the parameters of one statement: SQLite takes 32,766."""

T = TypeVar("T")


def insert_missing(session: Session, table: type[DeclarativeBase], rows: Sequence[dict[str, Any]]) -> None:
    """Insert `rows` into `table`, leaving out those that break a unique constraint."""
    if not rows:
        return
    session.execute(_insert(session)(table).on_conflict_do_nothing(), rows)


def insert_missing_and_tell(
    session: Session, table: type[DeclarativeBase], column: str, rows: Sequence[dict[str, Any]]
) -> set[Any]:
    """The same; the values in `column` of the rows that were inserted."""
    if not rows:
        return set()
    statement = _insert(session)(table).on_conflict_do_nothing().returning(getattr(table, column))
    return set(session.scalars(statement, rows))


def insert_or_add(
    session: Session, table: type[DeclarativeBase], keys: Sequence[str], count: str, rows: Sequence[dict[str, Any]]
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
