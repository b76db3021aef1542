"""`like:`: placements ranked by the correlation of their organ's fingerprint with that of one organ."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.narrow import Narrowed
from organs.registry.catalog.queries.organs import organs_by_prefix, places_of_organ
from organs.registry.catalog.queries.ranking import matches
from organs.registry.catalog.search import Query
from organs.registry.catalog.search.cursor import Cursor
from organs.registry.catalog.tables import Fingerprint, Organ, Placement
from organs.registry.errors import BadQuery

COMPARED_MAX = 20_000
"""Placements that are compared, those of the same block first."""

Likeness = tuple[float, int]
"""A correlation and the id of a placement."""


def alike_placements(
    session: Session, narrowed: Narrowed, query: Query, after: Cursor | None, limit: int
) -> tuple[list[Likeness], list[str]]:
    """The next `limit` placements behind `after`, the most alike first, and what should be said about it.

    Only organs of the same slot and shape are compared. Raises NotFound, Ambiguous, BadQuery for an organ that has no
    fingerprint.
    """
    assert query.like is not None
    organ, own = _organ(session, query.like)
    places = [placement for placement, _ in places_of_organ(session, organ.id)]
    same_block = [Placement.block.in_({place.block for place in places if place.block is not None})]
    slots = sorted({place.slot for place in places})
    rows = _candidates(session, narrowed, organ, slots, same_block, COMPARED_MAX + 1)
    if len(rows) <= COMPARED_MAX:
        elsewhere = [Placement.block.is_(None) | ~same_block[0]]
        rows += _candidates(session, narrowed, organ, slots, elsewhere, COMPARED_MAX + 1 - len(rows))
    notes = [f"only the first {COMPARED_MAX} organs of its slot and shape were compared: narrow the query"]
    notes = notes if len(rows) > COMPARED_MAX else []
    ranked = _ranked(own, rows[:COMPARED_MAX], query.unique)
    if after is not None:
        ranked = [row for row in ranked if row < (after.value, after.id)]
    return ranked[:limit], notes


def _organ(session: Session, prefix: str) -> tuple[Organ, bytes]:
    organ, _ = organs_by_prefix(session, prefix, visible=True)[0]
    own = session.get(Fingerprint, organ.id)
    if own is None:
        raise BadQuery(f"like:{prefix}", "this organ has no fingerprint: it has fewer than 256 values, or no kernel")
    return organ, own.values


def _candidates(
    session: Session,
    narrowed: Narrowed,
    organ: Organ,
    slots: Sequence[str],
    where: Sequence[ColumnElement[bool]],
    limit: int,
) -> list[tuple[int, int, bytes]]:
    """Placement, organ and fingerprint."""
    statement = (
        select(Placement.id, Placement.organ_id, Fingerprint.values)
        .with_hint(Placement, "INDEXED BY ix_placements_place", "sqlite")
        .join(Organ, Organ.id == Placement.organ_id)
        .join(Fingerprint, Fingerprint.organ_id == Placement.organ_id)
        .where(Placement.slot.in_(slots), Placement.visible, Organ.shape == organ.shape)
        .where(*where, *matches(narrowed, Placement))
        .limit(limit)
    )
    return [(row_id, organ_id, values) for row_id, organ_id, values in session.execute(statement)]


def _ranked(own: bytes, rows: Sequence[tuple[int, int, bytes]], unique: bool) -> list[Likeness]:
    """The most alike first, equal ones by falling id; organs that are constant are like nothing."""
    from organs.registry.lineage import correlations  # loads numpy, which no other search needs

    different = {organ_id: values for _, organ_id, values in rows}
    found = dict(zip(different, correlations(own, list(different.values())), strict=True))
    if unique:
        rows = list(
            {organ_id: (row_id, organ_id, values) for row_id, organ_id, values in sorted(rows, reverse=True)}.values()
        )
    alike = [(value, row_id) for row_id, organ_id, _ in rows if (value := found[organ_id]) is not None]
    return sorted(alike, reverse=True)
