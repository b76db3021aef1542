"""Search: a query to a page of organs at their places, and to counts beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from organs.registry.catalog.memory import remembered
from organs.registry.catalog.queries.alike import alike_placements
from organs.registry.catalog.queries.narrow import Narrowed, narrow
from organs.registry.catalog.queries.ranking import ranked_placements
from organs.registry.catalog.queries.spread import facet_counts
from organs.registry.catalog.search import FacetCounts, FoundOrgan, Query, SearchPage
from organs.registry.catalog.search.cursor import Cursor, check_limit, cursor_text, parse_cursor
from organs.registry.catalog.tables import Blob, Model, Organ, Placement
from organs.registry.digest import Digest


def search_organs(session: Session, query: Query, limit: int, after: str | None = None) -> SearchPage:
    """The next `limit` organs that `query` finds behind `after`, which is the `next` of the page before.

    The order is total, so that pages neither repeat nor skip. Raises BadQuery for an `after` that is no such text,
    NotFound, Ambiguous for a `like:` that names no organ.
    """
    cursor = _place(query, limit, after)
    return _page(session, query, narrow(session, query), limit, cursor)


def count_organs(session: Session, query: Query, seconds: float | None = None) -> FacetCounts:
    """How what `query` finds is spread over type, slot, dtype, architecture, licence and θ.

    Organs are counted at all of their places: `like:` and `unique:` change nothing. What takes longer than `seconds` to
    count is left out.
    """
    return _counts(session, query, narrow(session, query), seconds)


def search_and_count(
    session: Session, query: Query, limit: int, after: str | None, counts_seconds: float
) -> tuple[SearchPage, FacetCounts]:
    """Both at once, of one state of the catalog."""
    cursor = _place(query, limit, after)
    narrowed = narrow(session, query)
    page = _page(session, query, narrowed, limit, cursor)
    return page, _counts(session, query, narrowed, counts_seconds)


def _counts(session: Session, query: Query, narrowed: Narrowed, seconds: float | None) -> FacetCounts:
    """The counts, remembered for the pages that follow unless they were hurried."""
    key = ("counts", frozenset(query.terms), narrowed.models_asked)
    return remembered(session, key, lambda: facet_counts(session, narrowed, seconds), lambda made: not made.hurried)


def _place(query: Query, limit: int, after: str | None) -> Cursor | None:
    check_limit(limit)
    return None if after is None else parse_cursor(str(query), after, missing=query.like is None)


def _page(session: Session, query: Query, narrowed: Narrowed, limit: int, cursor: Cursor | None) -> SearchPage:
    rows: Sequence[tuple[float | None, int]]
    notes = list(narrowed.notes)
    if query.like is not None:
        rows, more_notes = alike_placements(session, narrowed, query, cursor, limit + 1)
        notes += more_notes
    else:
        rows = ranked_placements(session, narrowed, query.sort, query.unique, cursor, limit + 1)
    shown = rows[:limit]
    likeness = {row_id: value for value, row_id in shown} if query.like is not None else {}
    items = _found(session, [row_id for _, row_id in shown], likeness)
    place = Cursor(*shown[-1]) if len(rows) > limit else None
    return SearchPage(items, cursor_text(str(query), place) if place else None, tuple(notes))


_PLACES = Placement.__table__
_ORGANS, _BLOBS, _MODELS = Organ.__table__, Blob.__table__, Model.__table__
_FOUND: Any = (
    # Columns in the order that FoundOrgan is made of, not objects: half of a search's time went into making those.
    select(
        _PLACES.c.id,
        _BLOBS.c.digest,
        _MODELS.c.namespace,
        _MODELS.c.name,
        _MODELS.c.version,
        _ORGANS.c.shape,
        _MODELS.c.architecture,
        _MODELS.c.license,
        _ORGANS.c.nonfinite,
        *(
            _PLACES.c[name]
            for name in (
                *("name", "type", "tower", "block", "slot", "dtype", "size_bytes"),
                *("theta", "magnitude", "signal", "spectral_signal", "stable_rank"),
            )
        ),
    )
    .select_from(_PLACES)
    .join(_ORGANS, _ORGANS.c.id == _PLACES.c.organ_id)
    .join(_BLOBS, _BLOBS.c.id == _ORGANS.c.blob_id)
    .join(_MODELS, _MODELS.c.id == _PLACES.c.model_id)
    .where(_PLACES.c.id.in_(bindparam("ids", expanding=True)))
)


def _found(session: Session, ids: Sequence[int], likeness: Mapping[int, float | None]) -> tuple[FoundOrgan, ...]:
    """The placements `ids`, in that order."""
    if not ids:
        return ()
    found = {}
    for (
        row_id, digest, namespace, model, version, shape, architecture, license_, nonfinite, name, type_, tower, block,
        slot, dtype, size_bytes, theta, magnitude, signal, spectral_signal, stable_rank,
    ) in session.execute(_FOUND, {"ids": list(ids)}):  # fmt: skip
        found[row_id] = FoundOrgan(
            digest=Digest(digest),
            model=f"{namespace}/{model}@{version}",
            name=name,
            type=type_,
            tower=tower,
            block=block,
            slot=slot,
            dtype=dtype,
            shape=tuple(map(int, shape.split("x"))),
            size_bytes=size_bytes,
            theta=theta,
            magnitude=magnitude,
            signal=signal,
            spectral_signal=spectral_signal,
            stable_rank=stable_rank,
            architecture=architecture,
            license=license_,
            likeness=likeness.get(row_id),
            nonfinite=nonfinite,
        )
    return tuple(found[row_id] for row_id in ids)
