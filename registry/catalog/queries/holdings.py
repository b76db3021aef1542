"""What a registry holds: sizes of groups of models, bytes of their different organs, models outside of families."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from organs.registry.catalog.engine import batches
from organs.registry.catalog.queries.models import is_composed
from organs.registry.catalog.tables import Model, Placement


@dataclass(frozen=True, slots=True)
class GroupSize:
    """The sums over the visible models of a group."""

    models: int
    chimeras: int
    size_bytes: int
    tensors: int


def group_size(session: Session, model_ids: Collection[int]) -> GroupSize:
    """Return the sums over the visible models among `model_ids`."""
    models = chimeras = size_bytes = tensors = 0
    for batch in batches(sorted(model_ids)):
        composed = func.sum(case((is_composed(), 1), else_=0))
        statement = select(func.count(), composed, func.sum(Model.size_bytes), func.sum(Model.tensors))
        row = session.execute(statement.where(Model.id.in_(batch), Model.state == "visible")).one()
        models += row[0]
        chimeras += int(row[1] or 0)
        size_bytes += int(row[2] or 0)
        tensors += int(row[3] or 0)
    return GroupSize(models, chimeras, size_bytes, tensors)


def shared_organ_bytes(session: Session, model_ids: Collection[int]) -> int:
    """Return the bytes of equal organs of visible models beyond the first of each; it reads all of their placements."""
    shared, known = 0, set[int]()
    for batch in batches(sorted(model_ids)):
        statement = select(Placement.organ_id, func.max(Placement.size_bytes), func.count())
        statement = statement.where(Placement.model_id.in_(batch), Placement.visible).group_by(Placement.organ_id)
        for organ_id, size, count in session.execute(statement):
            shared += size * (count if organ_id in known else count - 1)
            known.add(organ_id)
    return shared


def duplicate_models(session: Session) -> GroupSize:
    """Return the sums over the visible models whose files an older model has too, under another name or version."""
    count = func.count()
    extra = (count - 1).label("extra")
    repeated = select(extra, func.max(Model.size_bytes).label("size"), func.max(Model.tensors).label("tensors"))
    repeated = repeated.where(Model.state == "visible").group_by(Model.digest).having(count > 1)
    rows = repeated.subquery()
    sums = (func.sum(rows.c.extra), func.sum(rows.c.extra * rows.c.size), func.sum(rows.c.extra * rows.c.tensors))
    models, size_bytes, tensors = session.execute(select(*sums)).one()
    return GroupSize(int(models or 0), 0, int(size_bytes or 0), int(tensors or 0))


def newest_outside(session: Session, model_ids: Collection[int], limit: int) -> Sequence[Model]:
    """Return the newest of the last `limit` visible models that are not among `model_ids` and not composed here."""
    statement = select(Model).where(Model.state == "visible", ~is_composed()).order_by(Model.id.desc()).limit(limit)
    return [model for model in session.scalars(statement) if model.id not in model_ids]
