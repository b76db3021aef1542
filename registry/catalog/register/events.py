"""The event log: who did what. Rows are added, never changed."""

from __future__ import annotations

from sqlalchemy.orm import Session

from organs.registry.catalog.actions import Action
from organs.registry.catalog.clock import now
from organs.registry.catalog.register.contributors import contributor_id
from organs.registry.catalog.tables import Event
from organs.registry.catalog.vocabulary import shown_text


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
