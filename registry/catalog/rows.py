"""Rows: read in batches, counted, and turned into entities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, TypeVar, TypeVarTuple, cast

from sqlalchemy import ColumnElement, Delete, Row, Select, Update, and_, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from organs.registry.catalog.engine import batches
from organs.registry.catalog.tables import Base, ContributorRow, ModelRow, OtherName, Token, UploadRow
from organs.registry.entities.base import Entity
from organs.registry.names import ModelName

E = TypeVar("E", bound=Entity)
T = TypeVar("T")
Columns = TypeVarTuple("Columns")

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
