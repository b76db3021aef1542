"""The event log: who did what, newest first."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from organs.registry.catalog import tables
from organs.registry.catalog.cursor import (
    Cursor,
    check_limit,
    cursor_text,
    parse_cursor,
)
from organs.registry.catalog.tables import Contributor, Model
from organs.registry.catalog.vocabulary import Action
from organs.registry.entities.administration import (
    Event,
    EventPage,
)

_SEEN = (Action.PUBLISH, Action.RESTORE, Action.YANK, Action.QUARANTINE)
"""Of these there is one to each model that was registered in quarantine and has left it."""


def newest_events(
    session: Session, limit: int, after: str | None = None, contributor: str = "", action: str = ""
) -> EventPage:
    """Return the next `limit` events after the place `after`, newest first, of a contributor and an action if given.

    Both are compared without regard to case; an unknown contributor or action has no events. Raises BadQuery.
    """
    check_limit(limit)
    asked = f"events\n{contributor.lower()}\n{action.lower()}"  # a place in the list of one is none in another's
    columns: tuple[Any, ...] = (tables.Event, Contributor.name, Model.namespace, Model.name, Model.version)
    statement = (
        select(*columns)
        .join(Contributor, Contributor.id == tables.Event.contributor_id)
        .outerjoin(Model, Model.id == tables.Event.model_id)
    )
    if after is not None:
        statement = statement.where(tables.Event.id < parse_cursor(asked, after).id)
    if contributor:
        statement = statement.where(func.lower(Contributor.name) == _without_nul(contributor).lower())
    if action:
        statement = statement.where(func.lower(tables.Event.action) == _without_nul(action).lower())
    rows = session.execute(statement.order_by(tables.Event.id.desc()).limit(limit + 1)).all()
    items = tuple(_event(*row) for row in rows[:limit])
    more = len(rows) > limit
    return EventPage(items=items, next=cursor_text(asked, Cursor(None, items[-1].id)) if more else None)


def _event(row: tables.Event, contributor: str, namespace: str | None, name: str | None, version: int | None) -> Event:
    return Event(
        id=row.id,
        at=row.at,
        contributor=contributor,
        action=row.action,
        model=None if namespace is None else f"{namespace}/{name}@{version}",
        text=row.text,
    )


def _without_nul(text: str) -> str:
    """PostgreSQL takes no NUL, and nothing is called so."""
    return text.replace("\0", "\N{SYMBOL FOR NULL}")


def was_done(*actions: Action) -> ColumnElement[bool]:
    """Whether one of `actions` was ever done to the Model of the statement around it."""
    return select(tables.Event.id).where(tables.Event.model_id == Model.id, tables.Event.action.in_(actions)).exists()


def was_seen() -> ColumnElement[bool]:
    """Whether the Model of the statement around it ever was there for everybody: registered so, or shown since."""
    return ~was_done(Action.SUBMIT) | was_done(*_SEEN)


def yanked_by(session: Session, model_id: int) -> str | None:
    """The name of who yanked a model last, by the event log."""
    statement = select(Contributor.name).join(tables.Event, tables.Event.contributor_id == Contributor.id)
    yanks = statement.where(tables.Event.model_id == model_id, tables.Event.action == Action.YANK)
    return session.scalar(yanks.order_by(tables.Event.id.desc()).limit(1))
