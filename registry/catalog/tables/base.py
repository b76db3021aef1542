"""What all tables share: types that both databases keep, names of constraints, and checks."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    Integer,
    MetaData,
    TypeDecorator,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

Identity = BigInteger().with_variant(Integer, "sqlite")
"""SQLite numbers rows by itself only in an INTEGER column; both are 64 bits wide."""


class Timestamp(TypeDecorator[datetime]):
    """An aware UTC time. SQLite has no time zones, so it is stored there without one and handed back with it."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        assert value is None or value.tzinfo is not None, "times are aware"
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value is not None and value.tzinfo is None else value


class Base(DeclarativeBase):
    """Holds the metadata that migrations are compared with."""

    metadata = MetaData(naming_convention=NAMING)


def one_of(column: str, values: tuple[str, ...]) -> CheckConstraint:
    """A CHECK that `column` holds one of `values`."""
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


def at_most(column: str, length: int) -> CheckConstraint:
    """A CHECK on the length of a text: SQLite ignores the number in VARCHAR(n)."""
    return CheckConstraint(f"length({column}) <= {length}", name=f"{column}_length")
