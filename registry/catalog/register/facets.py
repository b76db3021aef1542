"""Facets and their counts over visible placements, kept by whoever registers, so that no page counts the catalog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from registry.catalog.bins import theta_bin
from registry.catalog.tables import Facet, FacetCount, Placement
from registry.catalog.upsert import batches, insert_missing, insert_or_add

_KEYS_A_STATEMENT = 100


class FacetKey(NamedTuple):
    """What a placement is found by. An architecture or licence that is not stated is the empty text."""

    type: str
    tower: str
    slot: str
    dtype: str
    architecture: str
    license: str


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


def count_placements(session: Session, placements: Sequence[Placement], sign: int = 1) -> None:
    """Add (or, with `sign` -1, take away) a model's placements from the counts."""
    counts: Mapping[tuple[int, int], int] = Counter((one.facet_id, theta_bin(one.theta)) for one in placements)
    rows = [
        {"facet_id": facet_id, "theta_bin": lower, "placements": sign * number}
        for (facet_id, lower), number in sorted(counts.items())
    ]
    insert_or_add(session, FacetCount, ["facet_id", "theta_bin"], "placements", rows)
