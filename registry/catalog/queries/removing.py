"""What goes with a model that is removed, and what stays because others need it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.shared_organs import organs_placed_by, organs_without_place
from organs.registry.catalog.search.parse import nearest
from organs.registry.catalog.tables import Blob, Chimera, FilePart, Lineage, Model, ModelFile, Organ, Placement
from organs.registry.catalog.upsert import batches
from organs.registry.entities.administration import Removal
from organs.registry.errors import NotFound
from organs.registry.names import ModelName

CHIMERAS_MAX = 1000
"""That are named."""


def model_in_any_state(session: Session, name: ModelName) -> Model:
    """The model of that name, whoever may see it: the version that is asked for, else the newest that is not removed.

    Raises NotFound.
    """
    statement = select(Model).where(Model.namespace == name.namespace, Model.name == name.name)
    if name.version is not None:
        statement = statement.where(Model.version == name.version)
    order = (Model.state == "removed", Model.version.desc())
    found = session.scalars(statement.order_by(*order).limit(1)).one_or_none()
    if found is None:
        known = [f"{one}/{two}" for one, two in session.execute(select(Model.namespace, Model.name).distinct())]
        close = nearest(f"{name.namespace}/{name.name}", known)
        raise NotFound(f"no model is registered as {name}{f'; did you mean {close}?' if close else ''}")
    return found


def removal_of(session: Session, model: Model) -> Removal:
    """Return what `remove_model` would take away now."""
    places = session.scalar(select(func.count()).select_from(Placement).where(Placement.model_id == model.id)) or 0
    organs = set(organs_without_place(session, organs_placed_by(session, model.id), but=model.id))
    blobs = _needed_by_it_alone(session, model, organs)
    stored = 0
    for batch in batches(sorted(blobs)):
        stored += session.scalar(select(func.sum(Blob.stored_bytes)).where(Blob.id.in_(batch))) or 0
    return Removal(
        model=model.full_name,
        state=model.state,
        reason=model.state_reason,
        size_bytes=model.size_bytes,
        places=places,
        organs=len(organs),
        blobs=len(blobs),
        stored_bytes=int(stored),
        chimeras=tuple(_chimeras(session, model)),
    )


def _needed_by_it_alone(session: Session, model: Model, organs: Collection[int]) -> set[int]:
    """The ids of the blobs of these organs and of its files' headers that no other organ, file or blob refers to."""
    files = select(ModelFile.id).where(ModelFile.model_id == model.id)
    found = set(session.scalars(select(FilePart.blob_id).where(FilePart.file_id.in_(files)).distinct()))
    for batch in batches(sorted(organs)):
        found.update(session.scalars(select(Organ.blob_id).where(Organ.id.in_(batch))))
    for batch in batches(sorted(found)):
        staying = session.execute(select(Organ.blob_id, Organ.id).where(Organ.blob_id.in_(batch)))
        found.difference_update(blob_id for blob_id, organ_id in staying if organ_id not in organs)
        parts = select(FilePart.blob_id).where(FilePart.blob_id.in_(batch), FilePart.file_id.not_in(files))
        found.difference_update(session.scalars(parts.distinct()))
        depending = select(Blob.depends_on).where(Blob.depends_on.in_(batch))
        found.difference_update(_known(session.scalars(depending.distinct())))
    return found


def _known(ids: Iterable[int | None]) -> Sequence[int]:
    return [one for one in ids if one is not None]


def _chimeras(session: Session, model: Model) -> list[str]:
    """Chimeras that are made of it, whatever their state, oldest first."""
    made_of = (
        select(Lineage.id)
        .where(Lineage.child_model_id == Model.id, Lineage.parent_model_id == model.id)
        .where(Lineage.evidence == "recorded")
    )
    statement = (
        select(Model)
        .join(Chimera, Chimera.model_id == Model.id)
        .where(Model.state != "removed", Model.id != model.id)
        .where(made_of.exists() | (Chimera.base_model_id == model.id))
    )
    return [one.full_name for one in session.scalars(statement.order_by(Model.id).limit(CHIMERAS_MAX))]
