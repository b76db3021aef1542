"""The registry in numbers: as they are kept, and as a count of everything gives them."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.queries.models import count_models
from organs.registry.catalog.tables import Blob, Model, Placement, Total


@dataclass(frozen=True, slots=True)
class Totals:
    """What the registry holds. An organ at several places is one; a doomed blob is none."""

    models: int
    """That are visible."""
    placements: int
    """Of those models."""
    organs: int
    """At those places."""
    blobs: int
    size_bytes: int
    """Plain."""
    stored_bytes: int


def running_totals(session: Session) -> Totals:
    """The numbers as the writers keep them: a handful of rows."""
    kept = dict(session.execute(select(Total.name, Total.value)).all())
    return Totals(**{name: kept.get(name, 0) for name in Totals.__slots__})


def visible_bytes(session: Session) -> int:
    """Return the size of the files of all visible models together."""
    return int(session.scalar(select(func.sum(Model.size_bytes)).where(Model.state == "visible")) or 0)


def counted_totals(session: Session) -> Totals:
    """The same by looking at everything: seconds in a large catalog."""
    placements = select(func.count()).select_from(Placement).where(Placement.visible)
    plain, stored = (func.coalesce(func.sum(column), 0) for column in (Blob.size_bytes, Blob.stored_bytes))
    sums = session.execute(select(func.count(), plain, stored).where(Blob.state != "doomed")).one()
    return Totals(
        models=count_models(session),
        placements=session.scalar(placements) or 0,
        organs=_count_organs(session),
        blobs=sums[0],
        size_bytes=int(sums[1]),
        stored_bytes=int(sums[2]),
    )


def _count_organs(session: Session) -> int:
    # All that are placed, read off one index, less the few that have hidden places only: a third of the time that it
    # takes to look for a visible place of each.
    placed = session.scalar(select(func.count()).select_from(select(Placement.organ_id).distinct().subquery())) or 0
    visible = aliased(Placement)
    shown = select(visible.id).where(visible.organ_id == Placement.organ_id, visible.visible).exists()
    hidden = select(Placement.organ_id).where(~Placement.visible, ~shown).distinct()
    return placed - (session.scalar(select(func.count()).select_from(hidden.subquery())) or 0)
