"""What is left of models that were removed, for who asks for them by name."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from registry.catalog.queries.events import was_seen
from registry.catalog.tables import Model
from registry.errors import Removed
from registry.names import ModelName

REMOVALS_MAX = 1000
"""The newest versions, of which it is told."""


def removed_versions(session: Session, name: ModelName) -> Sequence[Model]:
    """The removed versions of a name, or that of the version, newest first.

    One that was never published is none of them: it is answered for as if it never was.
    """
    named = (Model.namespace == name.namespace, Model.name == name.name, Model.state == "removed", was_seen())
    statement = select(Model).where(*named)
    if name.version is not None:
        statement = statement.where(Model.version == name.version)
    return session.scalars(statement.order_by(Model.version.desc()).limit(REMOVALS_MAX)).all()


def removal(model: Model) -> Removed:
    """What to tell who asks for it: when it was removed, and why."""
    day = "" if model.changed_at is None else f" on {model.changed_at.date().isoformat()}"
    return Removed(f"{model.full_name} was removed{day}: {model.state_reason}")
