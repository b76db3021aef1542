"""Facets and their counts over visible placements, kept by whoever registers, so that no page counts the catalog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from organs.registry.catalog.bins import theta_bin
from organs.registry.catalog.tables import Facet, FacetCount
from organs.registry.catalog.upsert import batches, insert_missing, insert_or_add

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
