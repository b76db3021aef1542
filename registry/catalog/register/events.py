"""The event log and the contributors that it names. Rows are added, never changed."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from organs.registry.catalog.engine import insert_missing
from organs.registry.catalog.tables import Contributor, Event, now
from organs.registry.catalog.vocabulary import Action, checked_text, shown_text


def contributor_id(session: Session, name: str) -> int:
    """The id of the contributor `name`, made on first use."""
    row = {"name": checked_text(name, "the contributor's name", 96), "created_at": now()}
    insert_missing(session, Contributor, [row])
    return session.scalars(select(Contributor.id).where(Contributor.name == name)).one()


def record_event(
    session: Session,
    contributor: str,
    action: Action,
    what: str = "",
    said: str = "",
    *,
    model_id: int | None = None,
    submission: int | None = None,
) -> None:
    """Note that `contributor` did `action` to `what`: a model, a contributor, a token. `said` is why, or which."""
    numbered = what if submission is None else f"{what}, submission {submission}"
    session.add(
        Event(
            at=now(),
            contributor_id=contributor_id(session, contributor),
            action=action,
            model_id=model_id,
            text=shown_text(f"{numbered}: {said}" if said else numbered),
        )
    )
