"""Counts of requests that all servers of a registry share."""

from __future__ import annotations

from datetime import timedelta
from hashlib import blake2b

from sqlalchemy import case, delete, func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from organs.registry.catalog.clock import database_now
from organs.registry.catalog.tables import RateCount


def add_to_count(session: Session, name: str, seconds: float, amount: int) -> tuple[int, float]:
    """Add `amount` to the count `name`; return the count, and after how many seconds it begins again at 0.

    A new count begins again after `seconds`. The database must be PostgreSQL: the servers of an SQLite database are on
    one machine and share memory. Times are those of the database server.
    """
    key = blake2b(name.encode(), digest_size=16).hexdigest()
    moment = func.clock_timestamp()
    row = insert(RateCount).values(key=key, expires_at=moment + timedelta(seconds=seconds), count=amount)
    has_expired = RateCount.expires_at <= moment
    statement = row.on_conflict_do_update(
        index_elements=[RateCount.key],
        set_={
            "count": case((has_expired, row.excluded.count), else_=RateCount.count + row.excluded.count),
            "expires_at": case((has_expired, row.excluded.expires_at), else_=RateCount.expires_at),
        },
    ).returning(RateCount.count, func.extract("epoch", RateCount.expires_at - moment))
    count, left_seconds = session.execute(statement).one()
    return count, float(left_seconds)


def remove_expired_counts(session: Session) -> None:
    """Remove the counts that have expired."""
    session.execute(delete(RateCount).where(RateCount.expires_at < database_now(session)))
