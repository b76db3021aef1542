"""What all tables share: types that both databases keep, names of constraints, and checks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    REAL,
    TEXT,
    BigInteger,
    Boolean,
    CheckConstraint,
    DateTime,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    TypeDecorator,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import TypeEngine

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

# SQLite's tables are STRICT: it takes no text where a number is due. Strict tables know five types, so each of ours
# names the one that it is there.

Big = BigInteger().with_variant(Integer(), "sqlite")
"""A whole number of 64 bits. SQLite numbers rows by itself only in an INTEGER column."""
Number = Float(53).with_variant(REAL(), "sqlite")
"""A float of 64 bits."""


def text(length: int) -> String:
    """A text of at most `length` characters; SQLite needs `at_most` beside it."""
    return String(length).with_variant(TEXT(), "sqlite")


class Flag(TypeDecorator[bool]):
    """A truth value, which SQLite keeps as 0 or 1."""

    impl = Boolean
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Integer() if dialect.name == "sqlite" else Boolean())

    def process_result_value(self, value: Any, dialect: Dialect) -> bool | None:
        return None if value is None else bool(value)


class Timestamp(TypeDecorator[datetime]):
    """An aware UTC time. SQLite has none, so there it is a text that sorts like the time, to the microsecond."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(TEXT() if dialect.name == "sqlite" else DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        assert value is None or value.tzinfo is not None, "times are aware"
        if value is None:
            return None
        universal = value.astimezone(UTC)
        return f"{universal:%Y-%m-%d %H:%M:%S.%f}" if dialect.name == "sqlite" else universal

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        return datetime.fromisoformat(value).replace(tzinfo=UTC) if isinstance(value, str) else value


class Base(DeclarativeBase):
    """Holds the metadata that migrations are compared with."""

    metadata = MetaData(naming_convention=NAMING)

    @classmethod
    def __table_cls__(cls, *arguments: Any, **options: Any) -> Table:
        return Table(*arguments, sqlite_strict=True, **options)


def one_of(column: str, values: tuple[str, ...]) -> CheckConstraint:
    """A CHECK that `column` holds one of `values`."""
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


def at_most(column: str, length: int) -> CheckConstraint:
    """A CHECK on the length of a text: SQLite ignores the number in VARCHAR(n)."""
    return CheckConstraint(f"length({column}) <= {length}", name=f"{column}_length")
