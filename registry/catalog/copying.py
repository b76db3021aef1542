"""Copies of all rows of a catalog, from one database engine to the same or to another one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import xxhash
from sqlalchemy import Column, Table, bindparam, func, insert, select, text, update
from sqlalchemy.orm import Session

from organs.registry.catalog.tables import Base, CatalogVersion, NamedLease
from organs.registry.errors import CatalogError, Conflict

ROWS_AT_ONCE = 2000
KEPT_TABLES = {CatalogVersion.__tablename__, NamedLease.__tablename__}
"""Tables that each database has for itself."""
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
    # COPY is many times faster than INSERT. The driver writes the values of all our types as they are.
    driver: Any = connection.connection.driver_connection
    quote = connection.dialect.identifier_preparer.quote
    names = ", ".join(quote(column.name) for column in table.columns)
    with driver.cursor() as cursor, cursor.copy(f"COPY {quote(table.name)} ({names}) FROM STDIN") as copy:
        for value in values:
            copy.write_row([value[column.name] for column in table.columns])


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
