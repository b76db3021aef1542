"""What downloads ask: all versions of a model, the name of an organ at one of its places."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from registry.catalog.tables import Model, Placement
from registry.names import ModelName

VERSIONS_MAX = 1000
"""The newest versions, which can be asked for as tags and by commit."""


def versions_of(session: Session, name: ModelName) -> Sequence[Model]:
    """The visible and yanked versions of a model, newest first."""
    statement = select(Model).where(
        Model.namespace == name.namespace, Model.name == name.name, Model.state.in_(("visible", "yanked"))
    )
    return session.scalars(statement.order_by(Model.version.desc()).limit(VERSIONS_MAX)).all()


def name_of_organ(session: Session, organ_id: int, name: str | None) -> str | None:
    """The tensor name of the oldest visible place of the organ, or `name` if it has a visible place of that name."""
    statement = select(Placement.name).where(Placement.organ_id == organ_id, Placement.visible)
    if name is not None:
        statement = statement.where(Placement.name == name)
    return session.scalars(statement.order_by(Placement.id).limit(1)).one_or_none()
