"""Facet counts over visible placements and running totals, kept in the transaction that changes them."""

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
from organs.registry.catalog.vocabulary import theta_bin
from organs.registry.entities.about import RegistryTotals

FACETS_A_MODEL_MAX = 1000
"""Real models have some dozens. One made to have a slot for each of its tensors must not slow every search down."""
ODD_SLOT = "(odd)"
"""The slot of the facets behind the limit: such placements are found by all other fields."""

_KEYS_A_STATEMENT = 100


class FacetKey(NamedTuple):
    """What a placement is found by. An architecture or licence that is not stated is the empty text."""

    type: str
    tower: str
    slot: str
    dtype: str
    architecture: str
    license: str


class Counted(Protocol):
    """What of a placement is counted."""

    @property
    def facet_id(self) -> int:
        """Its facet."""

    @property
    def theta(self) -> float | None:
        """In degrees."""


def facet_ids(session: Session, keys: Iterable[FacetKey]) -> dict[FacetKey, int]:
    """The ids of the facets of `keys`, made where they are new."""
    wanted = sorted(set(keys))
    insert_missing(session, Facet, [key._asdict() for key in wanted])
    columns = [getattr(Facet, name) for name in FacetKey._fields]
    found: dict[FacetKey, int] = {}
    for batch in batches(wanted, _KEYS_A_STATEMENT):
        for facet_id, *key in session.execute(select(Facet.id, *columns).where(tuple_(*columns).in_(batch))):
            found[FacetKey(*key)] = facet_id
    return found


def bounded_keys(keys: Iterable[FacetKey]) -> list[FacetKey]:
    """The `keys` of one model's placements in order; from the thousandth different one on the slot is left out."""
    kept: set[FacetKey] = set()
    found = []
    for key in keys:
        if key not in kept and len(kept) >= FACETS_A_MODEL_MAX:
            found.append(key._replace(slot=ODD_SLOT))
            continue
        kept.add(key)
        found.append(key)
    return found


def count_placements(session: Session, placements: Sequence[Counted], sign: int = 1) -> None:
    """Add (or, with `sign` -1, take away) a model's placements from the counts."""
    counts: Mapping[tuple[int, int], int] = Counter((one.facet_id, theta_bin(one.theta)) for one in placements)
    rows = [
        {"facet_id": facet_id, "theta_bin": lower, "placements": sign * number}
        for (facet_id, lower), number in sorted(counts.items())
    ]
    insert_or_add(session, FacetCount, ["facet_id", "theta_bin"], "placements", rows)


class Sized(Protocol):
    """What of a blob is counted."""

    @property
    def size_bytes(self) -> int:
        """Plain."""

    @property
    def stored_bytes(self) -> int:
        """Stored."""


def add_to_totals(session: Session, changes: Mapping[str, int]) -> None:
    """Add `changes`, by the name of the total; what is negative is taken away."""
    # In one order for everybody, so that two writers never wait in a ring.
    rows = [{"name": name, "value": change} for name, change in sorted(changes.items()) if change]
    insert_or_add(session, Total, ["name"], "value", rows)


def blob_changes(came: Iterable[Sized], went: Iterable[Sized] = ()) -> Counter[str]:
    """What the totals change by when the blobs `came` count from now on, and those that `went` no longer do."""
    changes: Counter[str] = Counter()
    for sign, blobs in ((1, came), (-1, went)):
        for blob in blobs:
            changes["blobs"] += sign
            changes["size_bytes"] += sign * blob.size_bytes
            changes["stored_bytes"] += sign * blob.stored_bytes
    return changes


def is_counted(state: str) -> bool:
    """Whether a blob in `state` counts: all but those that are doomed."""
    return state != "doomed"


def repair_totals(session: Session) -> dict[str, tuple[int, int]]:
    """Count everything and write it down; for each total that was wrong, what was kept and what is right."""
    counted = counted_totals(session)
    wrong = differences(running_totals(session), counted)
    if wrong:
        session.execute(delete(Total))
        session.execute(
            insert(Total), [{"name": name, "value": value} for name, value in structs.asdict(counted).items()]
        )
    return wrong


def differences(kept: RegistryTotals, counted: RegistryTotals) -> dict[str, tuple[int, int]]:
    """The totals that differ, by name: as they are kept, and as they should be."""
    right = structs.asdict(counted)
    return {name: (value, right[name]) for name, value in structs.asdict(kept).items() if value != right[name]}
