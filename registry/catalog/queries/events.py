"""The event log, newest first."""

from __future__ import annotations

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from organs.registry.catalog.rows import entity_of, first, page_of_rows
from organs.registry.catalog.tables import ContributorRow, EventRow, ModelRow
from organs.registry.catalog.vocabulary import Action
from organs.registry.entities.server import Event, EventPage

_PUBLIC_ACTIONS = (Action.PUBLISH, Action.RESTORE, Action.YANK, Action.QUARANTINE)
"""A model that was registered in quarantine and became visible later has an event with one of these actions."""


def newest_events(
    session: Session, limit: int, after: str | None = None, contributor: str = "", action: str = ""
) -> EventPage:
    """Return the next `limit` events after the cursor `after`, newest first, with filters.

    `contributor` and `action` are compared without regard to case. An unknown value gives an empty page.
    Raises BadQuery.
    """
    query = f"events\n{contributor.lower()}\n{action.lower()}"  # a cursor is valid for one filter only
    statement = (
        select(EventRow, ContributorRow.name, ModelRow)
        .join(ContributorRow, ContributorRow.id == EventRow.contributor_id)
        .outerjoin(ModelRow, ModelRow.id == EventRow.model_id)
    )
    for column, value in ((ContributorRow.name, contributor), (EventRow.action, action)):
        if value:
            # PostgreSQL refuses NUL, and no name contains it.
            statement = statement.where(func.lower(column) == value.replace("\0", "\N{SYMBOL FOR NULL}").lower())
    rows, following = page_of_rows(session, statement, query, limit, after)
    items = tuple(
        entity_of(Event, row, contributor=name, model=None if model is None else model.full_name)
        for row, name, model in rows
    )
    return EventPage(items=items, next=following)


def was_done(*actions: Action) -> ColumnElement[bool]:
    """Return the condition that one of `actions` was ever done to the ModelRow of the outer statement."""
    return select(EventRow.id).where(EventRow.model_id == ModelRow.id, EventRow.action.in_(actions)).exists()


def was_public() -> ColumnElement[bool]:
    """Return the condition that the ModelRow of the outer statement was ever visible: from the start, or later."""
    return ~was_done(Action.SUBMIT) | was_done(*_PUBLIC_ACTIONS)


def yanked_by(session: Session, model_id: int) -> str | None:
    """Return the name of the contributor who last yanked a model, by the event log."""
    statement = select(ContributorRow.name).join(EventRow, EventRow.contributor_id == ContributorRow.id)
    yanks = statement.where(EventRow.model_id == model_id, EventRow.action == Action.YANK)
    return first(session, yanks.order_by(EventRow.id.desc()))


def last_change_of_parents(session: Session) -> int:
    """Return the id of the last event that can change which parents are best: a removed model, a healed blob."""
    actions = (Action.REMOVE, Action.REMOVE_WITHDRAWN, Action.TAKE_BACK)
    return session.scalar(select(func.max(EventRow.id)).where(EventRow.action.in_(actions))) or 0
