"""What downloads ask: all versions of a model, the name of an organ at one of its places."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from registry.catalog.tables import Model, Placement
from registry.catalog.vocabulary import REACHABLE_STATES
from registry.names import ModelName

VERSIONS_MAX = 1000
"""The newest versions, which can be asked for as tags and by commit."""


def versions_of(session: Session, name: ModelName) -> Sequence[Model]:
    """The versions of a model: visible ones, newest first, then yanked ones."""
    statement = select(Model).where(
        Model.namespace == name.namespace, Model.name == name.name, Model.state.in_(REACHABLE_STATES)
    )
    return session.scalars(statement.order_by(Model.state != "visible", Model.version.desc()).limit(VERSIONS_MAX)).all()


def name_of_organ(session: Session, organ_id: int, name: str | None) -> str | None:
    """The tensor name of the oldest place of the organ, or `name` if it has a place of that name.

    Places in models that nobody may see do not count.
    """
    statement = select(Placement.name).join(Model, Model.id == Placement.model_id)
    statement = statement.where(Placement.organ_id == organ_id, Model.state.in_(REACHABLE_STATES))
    if name is not None:
        statement = statement.where(Placement.name == name)
    return session.scalars(statement.order_by(Placement.id).limit(1)).one_or_none()
