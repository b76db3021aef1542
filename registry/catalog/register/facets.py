"""Counts of visible placements by facet, and running totals, updated in the transaction that changes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import structs
from sqlalchemy import delete, insert, select, tuple_
from sqlalchemy.orm import Session

from organs.registry.catalog.engine import (
    batches,
    insert_missing,
    insert_or_add,
)
from organs.registry.catalog.queries.reports import (
    counted_totals,
    running_totals,
)
from organs.registry.catalog.tables import Facet, FacetCount, Total
from organs.registry.catalog.vocabulary import STACK_CODEC, theta_bin
from organs.registry.entities.about import RegistryTotals

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


class Counted(Protocol):
    """The attributes of a placement that are counted."""

    @property
    def facet_id(self) -> int:
        """The id of its facet."""

    @property
    def theta(self) -> float | None:
        """θ in degrees."""


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


def count_placements(session: Session, placements: Sequence[Counted], sign: int = 1) -> None:
    """Add the placements of a model to the counts; with `sign` -1, subtract them."""
    counts = Counter((placement.facet_id, theta_bin(placement.theta)) for placement in placements)
    rows = [
        {"facet_id": facet_id, "theta_bin": lower, "placements": sign * number}
        for (facet_id, lower), number in sorted(counts.items())
    ]
    insert_or_add(session, FacetCount, ["facet_id", "theta_bin"], "placements", rows)


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
