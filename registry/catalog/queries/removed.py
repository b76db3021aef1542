"""Models that were yanked or removed: what is left of them, and which of some names are among them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import and_, or_, select, tuple_
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.events import was_seen
from organs.registry.catalog.tables import Model
from organs.registry.catalog.upsert import batches
from organs.registry.errors import BadName, Removed
from organs.registry.names import ModelName, parse_model_name

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


def withdrawn_models(session: Session, full_names: Collection[str]) -> dict[str, Model]:
    """Return the models among `full_names` (`acme/tiny@1`) that were yanked or removed, by name.

    One that was removed before it was published is left out, as is whatever has no such name.
    """
    wanted = sorted({key for name in full_names if (key := _version_key(name)) is not None})
    gone = or_(Model.state == "yanked", and_(Model.state == "removed", was_seen()))
    found: dict[str, Model] = {}
    for batch in batches(wanted):
        named = tuple_(Model.namespace, Model.name, Model.version).in_(batch)
        found |= {model.full_name: model for model in session.scalars(select(Model).where(named, gone))}
    return found


def _version_key(full_name: str) -> tuple[str, str, int] | None:
    try:
        name = parse_model_name(full_name)
    except BadName:
        return None
    return None if name.version is None else (name.namespace, name.name, name.version)
