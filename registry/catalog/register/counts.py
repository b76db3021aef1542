"""Counts: visible placements by facet, running totals, downloads, and requests.

The first two are updated in the transaction that changes what they count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import timedelta
from hashlib import blake2b
from typing import NamedTuple, Protocol

from msgspec import structs
from sqlalchemy import case, delete, func, insert, select, tuple_, update
from sqlalchemy.orm import Session

from organs.registry.catalog.engine import database_now
from organs.registry.catalog.queries.reports import (
    counted_totals,
    running_totals,
)
from organs.registry.catalog.rows import batches, insert_missing, insert_or_add, scalars_among
from organs.registry.catalog.tables import DailyDownloads, Facet, FacetCount, ModelRow, Placement, RateCount, Total
from organs.registry.catalog.vocabulary import STACK_CODEC, theta_bin
from organs.registry.entities.server import RegistryTotals

FACETS_A_MODEL_MAX = 1000
"""The most facets of one model. Real models have some dozens. The limit protects all searches from a hostile model with
a slot for each tensor."""
OTHER_SLOT = "(odd)"
"""The slot of facets beyond the limit. Searches find their placements by all other fields."""

_STATEMENT_KEYS = 100


class FacetKey(NamedTuple):
    """The values of a facet. A missing architecture or license is the empty text."""

    type: str
    tower: str
    slot: str
    dtype: str
    architecture: str
    license: str


def facet_ids(session: Session, keys: Iterable[FacetKey]) -> dict[FacetKey, int]:
    """Return the ids of the facets of `keys`; new facets are added."""
    unique = sorted(set(keys))
    insert_missing(session, Facet, [key._asdict() for key in unique])
    columns = [getattr(Facet, name) for name in FacetKey._fields]
    ids: dict[FacetKey, int] = {}
    for batch in batches(unique, _STATEMENT_KEYS):
        for facet_id, *key in session.execute(select(Facet.id, *columns).where(tuple_(*columns).in_(batch))):
            ids[FacetKey(*key)] = facet_id
    return ids


def bounded_keys(keys: Iterable[FacetKey]) -> list[FacetKey]:
    """Return the `keys` of a model's placements in order. After FACETS_A_MODEL_MAX keys, new ones get OTHER_SLOT."""
    seen: set[FacetKey] = set()
    bounded = []
    for key in keys:
        if key in seen or len(seen) < FACETS_A_MODEL_MAX:
            seen.add(key)
            bounded.append(key)
        else:
            bounded.append(key._replace(slot=OTHER_SLOT))
    return bounded


def count_placements(session: Session, model_id: int, sign: int = 1) -> int:
    """Add the placements of a model to the counts; with `sign` -1, subtract them. Return their number."""
    placements = session.execute(select(Placement.facet_id, Placement.theta).where(Placement.model_id == model_id))
    counts = Counter((facet_id, theta_bin(theta)) for facet_id, theta in placements)
    rows = [
        {"facet_id": facet_id, "theta_bin": lower, "placements": sign * number}
        for (facet_id, lower), number in sorted(counts.items())
    ]
    insert_or_add(session, FacetCount, ["facet_id", "theta_bin"], "placements", rows)
    return counts.total()


class Sized(Protocol):
    """The attributes of a blob that are counted."""

    @property
    def size_bytes(self) -> int:
        """Plain bytes."""

    @property
    def stored_bytes(self) -> int:
        """Stored bytes."""

    @property
    def codec(self) -> str:
        """The name of the codec. Stacks are not counted: their plain bytes are those of their parts."""


def add_to_totals(session: Session, changes: Mapping[str, int]) -> None:
    """Add `changes`, positive or negative, to the totals with these names."""
    rows = [{"name": name, "value": change} for name, change in changes.items() if change]
    insert_or_add(session, Total, ["name"], "value", rows)


def blob_changes(added: Iterable[Sized], removed: Iterable[Sized] = ()) -> Counter[str]:
    """Return the changes of the totals after the blobs `added` begin to count and those `removed` stop counting."""
    changes: Counter[str] = Counter()
    for sign, blobs in ((1, added), (-1, removed)):
        for blob in blobs:
            if blob.codec == STACK_CODEC:
                continue
            changes["blobs"] += sign
            changes["size_bytes"] += sign * blob.size_bytes
            changes["stored_bytes"] += sign * blob.stored_bytes
    return changes


def is_counted(state: str) -> bool:
    """Return whether blobs in `state` count in the totals. Doomed blobs do not."""
    return state != "doomed"


def repair_totals(session: Session) -> dict[str, tuple[int, int]]:
    """Count all rows and correct the totals; return the stored and the right value of each wrong total."""
    counted = counted_totals(session)
    wrong = differences(running_totals(session), counted)
    if wrong:
        session.execute(delete(Total))
        session.execute(
            insert(Total), [{"name": name, "value": value} for name, value in structs.asdict(counted).items()]
        )
    return wrong


def differences(stored: RegistryTotals, counted: RegistryTotals) -> dict[str, tuple[int, int]]:
    """Return the stored and the counted value of the totals that differ, by name."""
    right = structs.asdict(counted)
    return {name: (value, right[name]) for name, value in structs.asdict(stored).items() if value != right[name]}


def add_to_count(session: Session, name: str, seconds: float, amount: int) -> tuple[int, float]:
    """Add `amount` to the count `name`; return the count, and after how many seconds it begins again at 0.

    A new count begins again after `seconds`. The database must be PostgreSQL: the servers of an SQLite database are on
    one machine and share memory. Times are those of the database server.
    """
    from sqlalchemy.dialects import postgresql  # a command loads only the dialect that it uses

    key = blake2b(name.encode(), digest_size=16).hexdigest()
    moment = func.clock_timestamp()
    row = postgresql.insert(RateCount).values(key=key, expires_at=moment + timedelta(seconds=seconds), count=amount)
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
