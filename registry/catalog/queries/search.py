"""Search: a query to a page of organs at their places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from registry.catalog.queries.alike import alike_placements
from registry.catalog.queries.narrow import narrow
from registry.catalog.queries.ranking import ranked_placements
from registry.catalog.queries.spread import facet_counts
from registry.catalog.search import FacetCounts, FoundOrgan, Query, SearchPage
from registry.catalog.search.cursor import Cursor, check_limit, cursor_text, parse_cursor
from registry.catalog.tables import Blob, Model, Organ, Placement
from registry.digest import Digest


def search_organs(session: Session, query: Query, limit: int, after: str | None = None) -> SearchPage:
    """The next `limit` organs that `query` finds behind `after`, which is the `next` of the page before.

    The order is total, so that pages neither repeat nor skip. Raises BadQuery for an `after` that is no such text,
    NotFound, Ambiguous for a `like:` that names no organ.
    """
    check_limit(limit)
    text = str(query)
    cursor = None if after is None else parse_cursor(text, after, missing=query.like is None)
    narrowed = narrow(session, query)
    rows: Sequence[tuple[float | None, int]]
    if query.like is not None:
        rows, notes = alike_placements(session, narrowed, query, cursor, limit + 1)
        narrowed.notes += notes
    else:
        rows = ranked_placements(session, narrowed, query.sort, query.unique, cursor, limit + 1)
    shown = rows[:limit]
    likeness = {row_id: value for value, row_id in shown} if query.like is not None else {}
    items = _found(session, [row_id for _, row_id in shown], likeness)
    more = len(rows) > limit
    return SearchPage(items, cursor_text(text, Cursor(*shown[-1])) if more else None, tuple(narrowed.notes))


def count_organs(session: Session, query: Query) -> FacetCounts:
    """How what `query` finds is spread over type, slot, dtype, architecture, licence and θ.

    Organs are counted at all of their places: `like:` and `unique:` change nothing.
    """
    return facet_counts(session, narrow(session, query))


def _found(session: Session, ids: Sequence[int], likeness: Mapping[int, float | None]) -> tuple[FoundOrgan, ...]:
    """The placements `ids`, in that order."""
    statement = (
        select(Placement, Organ.shape, Blob.digest, Model)
        .join(Organ, Organ.id == Placement.organ_id)
        .join(Blob, Blob.id == Organ.blob_id)
        .join(Model, Model.id == Placement.model_id)
        .where(Placement.id.in_(ids))
    )
    rows = {row[0].id: row for row in session.execute(statement)}
    found = []
    for row_id in ids:
        placement, shape, digest, model = rows[row_id]
        found.append(
            FoundOrgan(
                digest=Digest(digest),
                model=model.full_name,
                name=placement.name,
                type=placement.type,
                tower=placement.tower,
                block=placement.block,
                slot=placement.slot,
                dtype=placement.dtype,
                shape=tuple(int(length) for length in shape.split("x")),
                size_bytes=placement.size_bytes,
                theta=placement.theta,
                magnitude=placement.magnitude,
                signal=placement.signal,
                spectral_signal=placement.spectral_signal,
                stable_rank=placement.stable_rank,
                architecture=model.architecture,
                license=model.license,
                likeness=likeness.get(row_id),
            )
        )
    return tuple(found)
