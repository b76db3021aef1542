"""The event log: who did what. Rows are added, never changed."""

from __future__ import annotations

from sqlalchemy.orm import Session

from registry.catalog.clock import now
from registry.catalog.register.contributors import contributor_id
from registry.catalog.tables import Event
from registry.catalog.vocabulary import shown_text


def record_event(session: Session, contributor: str, action: str, text: str = "", model_id: int | None = None) -> None:
    """Note that `contributor` did `action`, a few words, to a model or to what `text` says."""
    session.add(
        Event(
            at=now(),
            contributor_id=contributor_id(session, contributor),
            action=action,
            model_id=model_id,
            text=shown_text(text),
        )
    )
