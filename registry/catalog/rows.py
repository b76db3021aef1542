"""Rows: read in batches and by page, counted, inserted, and turned into entities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, TypeVarTuple, cast

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    Delete,
    Dialect,
    Row,
    Select,
    Text,
    TypeDecorator,
    Update,
    and_,
    bindparam,
    func,
    insert,
    select,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, InstrumentedAttribute, Session
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.operators import OperatorType
from sqlalchemy.types import TypeEngine

from organs.registry.catalog.cursor import check_limit, next_cursor, parse_cursor
from organs.registry.catalog.tables import Base, ContributorRow, ModelRow, OtherName, Token, UploadRow
from organs.registry.entities.base import Entity
from organs.registry.names import ModelName

E = TypeVar("E", bound=Entity)
T = TypeVar("T")
Columns = TypeVarTuple("Columns")

ROWS_A_STATEMENT = 500
"""The most rows in one statement, because SQLite accepts only 32,766 parameters."""

OTHER_COLUMNS: Mapping[type[Base], Mapping[str, str]] = {
    ContributorRow: {"since": "created_at"},
    ModelRow: {"name": "full_name"},
    Token: {"id": "public_id"},
    UploadRow: {"id": "public_id"},
}
"""The attribute of a row that feeds a field of entities with another name."""


def entity_of(kind: type[E], row: Base, /, **more: object) -> E:
    """Return the entity `kind` with the values of `row` in the fields of the same names, and `more`.

    A value in `more` replaces that of the row. A field that neither has keeps its default.
    """
    loaded = vars(row)  # quicker than the attributes of a mapped class, which load what is missing
    for field, name in fed_fields(kind, type(row)):
        if field not in more:
            more[field] = loaded[name] if name in loaded else getattr(row, name)
    return kind(**more)


@cache
def fed_fields(kind: type[Entity], table: type[Base]) -> tuple[tuple[str, str], ...]:
    """Return the fields of `kind` that rows of `table` feed, each with the name of the attribute that feeds it."""
    names = OTHER_COLUMNS.get(table, {})
    return tuple(
        (field, name)
        for field in kind.__struct_fields__
        for name in [names.get(field, field)]
        if isinstance(getattr(table, name, None), InstrumentedAttribute | property)
    )


def rows_among(
    session: Session, statement: Select[*Columns], column: ColumnElement[Any] | Any, values: Iterable[Any]
) -> Iterator[Row[*Columns]]:
    """Yield the rows of `statement` whose `column` is among `values`, of which there may be any number."""
    for batch in batches(sorted(set(values))):
        yield from session.execute(statement.where(column.in_(batch)))


def scalars_among(session: Session, statement: Select[T], column: Any, values: Iterable[Any]) -> Iterator[T]:
    """Yield the first column of `rows_among`."""
    for batch in batches(sorted(set(values))):
        yield from session.scalars(statement.where(column.in_(batch)))


def page_of_rows(
    session: Session, statement: Any, query: str, limit: int, after: str | None, *, oldest_first: bool = False
) -> tuple[Sequence[Any], str | None]:
    """Return the next `limit` rows of `statement` after the cursor `after` of `query`, and the next cursor.

    The rows are ordered by the id of the table that the first column selects, the newest first. Raises BadQuery.
    """
    check_limit(limit)
    row_id = statement.column_descriptions[0]["entity"].id
    if after is not None:
        end = parse_cursor(query, after).id
        statement = statement.where(row_id > end if oldest_first else row_id < end)
    rows = session.execute(statement.order_by(row_id if oldest_first else row_id.desc()).limit(limit + 1)).all()
    return rows[:limit], next_cursor(query, [row[0].id for row in rows], limit)


def first(session: Session, statement: Select[T]) -> T | None:
    """Return the first column of the first row, or None."""
    return session.scalars(statement.limit(1)).one_or_none()


def count(session: Session, table: Any, *conditions: ColumnElement[bool] | Any) -> int:
    """Return the number of rows of `table`, or of a SELECT of it, that meet the conditions."""
    statement = select(func.count()).select_from(table).where(*conditions)
    return cast(int, session.scalar(statement))


def execute_quietly(session: Session, statement: Delete | Update) -> int:
    """Execute a statement without a change of loaded objects, of which there can be tens of thousands.

    Return the number of rows that it changed.
    """
    options: dict[str, Any] = {"synchronize_session": False}
    result: Any = session.execute(statement, execution_options=options)
    return cast(int, result.rowcount)


def is_named(name: ModelName, table: type[ModelRow | OtherName] = ModelRow) -> ColumnElement[bool]:
    """Return the condition that a row has this name, in the version of `name` if it has one."""
    same = and_(table.namespace == name.namespace, table.name == name.name)
    return same if name.version is None else and_(same, table.version == name.version)


_AT_ONCE = {"render_nulls": True}
"""Without this, rows with None in other columns are inserted by statements of their own."""


def insert_all(session: Session, table: type[DeclarativeBase], rows: Sequence[Mapping[str, object]]) -> None:
    """Insert `rows`, which name the same columns, into `table`."""
    if rows:
        session.execute(insert(table), rows, execution_options=_AT_ONCE)


def insert_missing(session: Session, table: type[DeclarativeBase], rows: Sequence[Mapping[str, object]]) -> None:
    """Insert as `insert_all` does, except rows that violate a unique constraint."""
    if rows:
        session.execute(_insert(session)(table).on_conflict_do_nothing(), rows, execution_options=_AT_ONCE)


def insert_missing_returning(
    session: Session, table: type[DeclarativeBase], column: str, rows: Sequence[Mapping[str, object]]
) -> set[Any]:
    """Insert as `insert_missing` does; return the values in `column` of the inserted rows."""
    if not rows:
        return set()
    statement = _insert(session)(table).on_conflict_do_nothing().returning(getattr(table, column))
    return set(session.scalars(statement, rows, execution_options=_AT_ONCE))


def insert_or_add(
    session: Session,
    table: type[DeclarativeBase],
    keys: Sequence[str],
    count: str,
    rows: Sequence[Mapping[str, object]],
) -> None:
    """Insert `rows`. If a row with the same `keys` exists, add the value of the column `count` to it instead."""
    if not rows:
        return
    statement = _insert(session)(table)
    column = getattr(table, count)
    added = {count: column + statement.excluded[count]}
    session.execute(
        statement.on_conflict_do_update(index_elements=list(keys), set_=added), rows, execution_options=_AT_ONCE
    )


def batches(items: Sequence[T], size: int = ROWS_A_STATEMENT) -> Iterator[Sequence[T]]:
    """Yield `items` in slices that fit into one statement."""
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


class _Ids(TypeDecorator[list[int]]):
    """Any number of ids as one parameter. The number of parameters of a statement is limited."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return ARRAY(BigInteger) if dialect.name == "postgresql" else Text()

    def process_bind_param(self, value: Sequence[int] | None, dialect: Dialect) -> Any:
        assert value is not None
        return list(value) if dialect.name == "postgresql" else f"[{','.join(map(str, value))}]"


class _Among(FunctionElement[bool]):
    """The condition that a column is one of some ids."""

    name = "among"
    type = Boolean()
    inherit_cache = True

    def self_group(self, against: OperatorType | None = None) -> _Among:
        return self  # SQLAlchemy would add "= 1" on SQLite, and then no index is used


@compiles(_Among, "sqlite")
def _among_on_sqlite(element: _Among, compiler: SQLCompiler, **options: Any) -> str:
    column, ids = (compiler.process(clause, **options) for clause in element.clauses)
    return f"({column} IN (SELECT value FROM json_each({ids})))"  # noqa: S608 compiled SQL


@compiles(_Among, "postgresql")
def _among_on_postgresql(element: _Among, compiler: SQLCompiler, **options: Any) -> str:
    column, ids = (compiler.process(clause, **options) for clause in element.clauses)
    return f"({column} = ANY ({ids}))"


def among(column: Any, ids: Iterable[int]) -> ColumnElement[bool]:
    """Return the condition that `column` is one of `ids`. There may be thousands of ids."""
    return _Among(column, bindparam(None, list(ids), _Ids, unique=True))


def _insert(session: Session) -> Any:
    # The imports are local, so that a command loads only the dialect that it uses.
    if session.get_bind().dialect.name == "postgresql":
        from sqlalchemy.dialects import postgresql

        return postgresql.insert
    from sqlalchemy.dialects import sqlite

    return sqlite.insert
