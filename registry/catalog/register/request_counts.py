"""Counts of downloads, and of requests that all servers of a registry share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from hashlib import blake2b

from sqlalchemy import case, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from organs.registry.catalog.clock import database_now
from organs.registry.catalog.engine import (
    insert_or_add,
)
from organs.registry.catalog.rows import scalars_among
from organs.registry.catalog.tables import (
    DailyDownloads,
    ModelRow,
    RateCount,
)


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


def add_downloads(session: Session, counted: Mapping[tuple[int, str], int]) -> None:
    """Add downloads, by model id and day (YYYY-MM-DD, UTC), to the daily counts and to the sums of the models."""
    sums: Counter[int] = Counter()
    for (model_id, _), downloads in counted.items():
        sums[model_id] += downloads
    existing = set(scalars_among(session, select(ModelRow.id), ModelRow.id, sums))
    rows = [
        {"model_id": model_id, "day": day, "downloads": downloads}
        for (model_id, day), downloads in sorted(counted.items())
        if model_id in existing
    ]
    insert_or_add(session, DailyDownloads, ["model_id", "day"], "downloads", rows)
    for model_id in sorted(existing):
        added = ModelRow.downloads + sums[model_id]
        session.execute(update(ModelRow).where(ModelRow.id == model_id).values(downloads=added))
