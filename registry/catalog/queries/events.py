"""The event log, newest first."""

from __future__ import annotations

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from organs.registry.catalog import tables
from organs.registry.catalog.cursor import check_limit, next_cursor, parse_cursor
from organs.registry.catalog.rows import entity_of, first
from organs.registry.catalog.tables import ContributorRow, ModelRow
from organs.registry.catalog.vocabulary import Action
from organs.registry.entities.administration import (
    Event,
    EventPage,
)

_PUBLIC_ACTIONS = (Action.PUBLISH, Action.RESTORE, Action.YANK, Action.QUARANTINE)
"""A model that was registered in quarantine and became visible later has an event with one of these actions."""


def newest_events(
    session: Session, limit: int, after: str | None = None, contributor: str = "", action: str = ""
) -> EventPage:
    """Return the next `limit` events after the cursor `after`, newest first, with filters.

    `contributor` and `action` are compared without regard to case. An unknown value gives an empty page.
    Raises BadQuery.
    """
    check_limit(limit)
    query = f"events\n{contributor.lower()}\n{action.lower()}"  # a cursor is valid for one filter only
    statement = (
        select(tables.EventRow, ContributorRow.name, ModelRow)
        .join(ContributorRow, ContributorRow.id == tables.EventRow.contributor_id)
        .outerjoin(ModelRow, ModelRow.id == tables.EventRow.model_id)
    )
    if after is not None:
        statement = statement.where(tables.EventRow.id < parse_cursor(query, after).id)
    for column, value in ((ContributorRow.name, contributor), (tables.EventRow.action, action)):
        if value:
            # PostgreSQL refuses NUL, and no name contains it.
            statement = statement.where(func.lower(column) == value.replace("\0", "\N{SYMBOL FOR NULL}").lower())
    rows = session.execute(statement.order_by(tables.EventRow.id.desc()).limit(limit + 1)).all()
    items = tuple(
        entity_of(Event, row, contributor=name, model=None if model is None else model.full_name)
        for row, name, model in rows[:limit]
    )
    return EventPage(items=items, next=next_cursor(query, [row.id for row, *_ in rows], limit))


def was_done(*actions: Action) -> ColumnElement[bool]:
    """Return the condition that one of `actions` was ever done to the Model of the outer statement."""
    return (
        select(tables.EventRow.id)
        .where(tables.EventRow.model_id == ModelRow.id, tables.EventRow.action.in_(actions))
        .exists()
    )


def was_public() -> ColumnElement[bool]:
    """Return the condition that the Model of the outer statement was ever visible: from the start, or later."""
    return ~was_done(Action.SUBMIT) | was_done(*_PUBLIC_ACTIONS)


def yanked_by(session: Session, model_id: int) -> str | None:
    """Return the name of the contributor who last yanked a model, by the event log."""
    statement = select(ContributorRow.name).join(tables.EventRow, tables.EventRow.contributor_id == ContributorRow.id)
    yanks = statement.where(tables.EventRow.model_id == model_id, tables.EventRow.action == Action.YANK)
    return first(session, yanks.order_by(tables.EventRow.id.desc()))


def last_change_of_parents(session: Session) -> int:
    """Return the id of the last event that can change which parents are best: a removed model, a healed blob."""
    actions = (Action.REMOVE, Action.REMOVE_WITHDRAWN, Action.TAKE_BACK)
    return session.scalar(select(func.max(tables.EventRow.id)).where(tables.EventRow.action.in_(actions))) or 0
