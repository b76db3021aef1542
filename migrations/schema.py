"""Compare the schema of a database with the one that its revision should have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, inspect

VERSION_TABLE = "alembic_version"
SHOWN_MAX = 3
"""Differences that are named in a sentence."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """What is compared of one table: columns by name, and indexes by name with their columns."""

    columns: Mapping[str, str]
    """The type of each, with NOT NULL where it has to have a value."""
    indexes: Mapping[str, str]


Schema = Mapping[str, TableShape]


def schema_of(connection: Connection) -> Schema:
    """Return the tables of a database, without the one that holds its revision."""
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
            if "duplicates_constraint" not in index  # PostgreSQL lists the indexes of unique constraints too
        }
        shapes[table] = TableShape(columns, indexes)
    shapes.pop(VERSION_TABLE, None)
    return shapes


def schema_differences(expected: Schema, found: Schema, *, same_engine: bool = True) -> list[str]:
    """Return how `found` differs from `expected`, one phrase for each difference.

    Tables that are not expected are left out: they are not ours. Types are compared only where both schemas are of
    the same database engine.
    """
    differences = []
    for table, shape in sorted(expected.items()):
        if table not in found:
            differences.append(f"there is no table {table}")
            continue
        differences += _of_parts(f"table {table}", "column", shape.columns, found[table].columns, same_engine)
        differences += _of_parts(f"table {table}", "index", shape.indexes, found[table].indexes, same_engine)
    return differences


def in_a_sentence(differences: list[str]) -> str:
    """Return the first differences, and how many more there are."""
    more = len(differences) - SHOWN_MAX
    return "; ".join(differences[:SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")


def _of_parts(
    owner: str, kind: str, expected: Mapping[str, str], found: Mapping[str, str], same_engine: bool
) -> Iterator[str]:
    for name in sorted(expected.keys() - found.keys()):
        yield f"{owner} has no {kind} {name}"
    for name in sorted(found.keys() - expected.keys()):
        yield f"{owner} has a {kind} {name} that it should not have"
    for name in sorted(expected.keys() & found.keys()):
        if same_engine and expected[name] != found[name]:
            yield f"{kind} {name} of {owner} is {found[name]}, not {expected[name]}"
