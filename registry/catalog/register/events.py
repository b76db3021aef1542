"""The event log. Rows are added and never changed."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from organs.registry.catalog.rows import insert_missing
from organs.registry.catalog.tables import ContributorRow, EventRow, now
from organs.registry.catalog.vocabulary import Action, checked_text, shown_text


def contributor_id(session: Session, name: str) -> int:
    """Return the id of the contributor `name`. A missing contributor is added."""
    row = {"name": checked_text(name, "the contributor's name", 96), "created_at": now()}
    insert_missing(session, ContributorRow, [row])
    return session.scalars(select(ContributorRow.id).where(ContributorRow.name == name)).one()


def record_event(
    session: Session,
    contributor: str,
    action: Action,
    subject: str = "",
    note: str = "",
    *,
    model_id: int | None = None,
    submission: int | None = None,
) -> None:
    """Record that `contributor` did `action` to `subject`, a model, contributor or token. `note` has details."""
    numbered = subject if submission is None else f"{subject}, submission {submission}"
    session.add(
        EventRow(
            at=now(),
            contributor_id=contributor_id(session, contributor),
            action=action,
            model_id=model_id,
            text=shown_text(f"{numbered}: {note}" if note else numbered),
        )
    )
