"""The schema of a database, and its differences from the schema of its revision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, inspect

VERSION_TABLE = "alembic_version"
SHOWN_MAX = 3
"""The most differences that are named in a sentence."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """The compared parts of one table: columns by name, and indexes by name with their columns."""

    columns: Mapping[str, str]
    """The type of each column, with NOT NULL if it must have a value."""
    indexes: Mapping[str, str]


Schema = Mapping[str, TableShape]


def schema_of(connection: Connection) -> Schema:
    """Return the tables of a database, without the table with its revision."""
    inspector = inspect(connection)
    shapes = {}
    for table in inspector.get_table_names():
        columns = {
            column["name"]: f"{column['type']}{'' if column['nullable'] else ' NOT NULL'}"
            for column in inspector.get_columns(table)
        }
        indexes = {
            index["name"] or "": f"{'unique ' if index['unique'] else ''}({', '.join(map(str, index['column_names']))})"
            for index in inspector.get_indexes(table)
            if "duplicates_constraint" not in index  # PostgreSQL also lists the indexes of unique constraints
        }
        shapes[table] = TableShape(columns, indexes)
    shapes.pop(VERSION_TABLE, None)
    return shapes


def schema_differences(expected: Schema, found: Schema, *, same_engine: bool = True) -> list[str]:
    """Return the differences between `found` and `expected`, one phrase for each.

    Other tables than the expected ones are ignored, because they do not belong to this program. Types are compared only
    if both schemas are from the same database engine.
    """
    differences = []
    for table, shape in sorted(expected.items()):
        if table not in found:
            differences.append(f"there is no table {table}")
            continue
        differences += _part_differences(f"table {table}", "column", shape.columns, found[table].columns, same_engine)
        differences += _part_differences(f"table {table}", "index", shape.indexes, found[table].indexes, same_engine)
    return differences


def in_a_sentence(differences: list[str]) -> str:
    """Return the first differences as a phrase, with the number of further differences."""
    more = len(differences) - SHOWN_MAX
    return "; ".join(differences[:SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")


def _part_differences(
    owner: str, kind: str, expected: Mapping[str, str], found: Mapping[str, str], same_engine: bool
) -> Iterator[str]:
    for name in sorted(expected.keys() - found.keys()):
        yield f"{owner} has no {kind} {name}"
    for name in sorted(found.keys() - expected.keys()):
        yield f"{owner} has a {kind} {name} that it should not have"
    for name in sorted(expected.keys() & found.keys()):
        if same_engine and expected[name] != found[name]:
            yield f"{kind} {name} of {owner} is {found[name]}, not {expected[name]}"
