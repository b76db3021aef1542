"""A model's organs in pages."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Row, select
from sqlalchemy.orm import Session

from organs.registry.catalog.search.cursor import Cursor, check_limit, cursor_text, parse_cursor
from organs.registry.catalog.tables import Blob, Model, Organ, Placement


def placements_page(
    session: Session, model: Model, limit: int, after: str | None = None
) -> tuple[Sequence[Row[Placement, str, str, int | None]], str | None]:
    """The next `limit` placements of `model` in the order of its files, each as `placements_of` has it.

    `after` is the second of what the page before gave, None on the last page. Raises BadQuery for any other text.
    """
    check_limit(limit)
    listed = f"organs of {model.full_name}"
    statement = (
        select(Placement, Organ.shape, Blob.digest, Organ.nonfinite)
        .join(Organ, Organ.id == Placement.organ_id)
        .join(Blob, Blob.id == Organ.blob_id)
        .where(Placement.model_id == model.id)
        .order_by(Placement.position)
        .limit(limit + 1)
    )
    if after is not None:
        statement = statement.where(Placement.position > parse_cursor(listed, after).id)
    rows = session.execute(statement).all()
    shown = rows[:limit]
    place = Cursor(None, shown[-1][0].position) if len(rows) > limit else None
    return shown, cursor_text(listed, place) if place else None
