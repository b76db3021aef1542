"""The event log: who did what, newest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, func, select
from sqlalchemy.orm import Session

from organs.registry.catalog.search.cursor import Cursor, check_limit, cursor_text, parse_cursor
from organs.registry.catalog.tables import Contributor, Event, Model
from organs.registry.catalog.vocabulary import Action

_SEEN = (Action.PUBLISH, Action.RESTORE, Action.YANK, Action.QUARANTINE)
"""Of these there is one to each model that was registered in quarantine and has left it."""


@dataclass(frozen=True, slots=True)
class EventPage:
    """One page of events, each with the name of who did it, and of the model that it was done to, if it was one."""

    items: tuple[Row[Event, str, str | None, str | None, int | None], ...]
    next: str | None


def newest_events(
    session: Session, limit: int, after: str | None = None, contributor: str = "", action: str = ""
) -> EventPage:
    """The next `limit` events behind `after`, newest first; of a contributor and of an action, where they are given.

    Both are compared without regard to capitals; a contributor or an action that there is not has no events. Raises
    BadQuery.
    """
    check_limit(limit)
    asked = f"events\n{contributor.lower()}\n{action.lower()}"  # a place in the list of one is none in another's
    columns: tuple[Any, ...] = (Event, Contributor.name, Model.namespace, Model.name, Model.version)
    statement = (
        select(*columns)
        .join(Contributor, Contributor.id == Event.contributor_id)
        .outerjoin(Model, Model.id == Event.model_id)
    )
    if after is not None:
        statement = statement.where(Event.id < parse_cursor(asked, after).id)
    if contributor:
        statement = statement.where(func.lower(Contributor.name) == _without_nul(contributor).lower())
    if action:
        statement = statement.where(func.lower(Event.action) == _without_nul(action).lower())
    rows = session.execute(statement.order_by(Event.id.desc()).limit(limit + 1)).all()
    shown = tuple(rows[:limit])
    more = len(rows) > limit
    return EventPage(shown, cursor_text(asked, Cursor(None, shown[-1][0].id)) if more else None)


def _without_nul(text: str) -> str:
    """PostgreSQL takes no NUL, and nothing is called so."""
    return text.replace("\0", "\N{SYMBOL FOR NULL}")


def was_done(*actions: Action) -> ColumnElement[bool]:
    """Whether one of `actions` was ever done to the Model of the statement around it."""
    return select(Event.id).where(Event.model_id == Model.id, Event.action.in_(actions)).exists()


def was_seen() -> ColumnElement[bool]:
    """Whether the Model of the statement around it ever was there for everybody: registered so, or shown since."""
    return ~was_done(Action.SUBMIT) | was_done(*_SEEN)


def yanked_by(session: Session, model_id: int) -> str | None:
    """The name of who yanked a model last, by the event log."""
    statement = select(Contributor.name).join(Event, Event.contributor_id == Contributor.id)
    yanks = statement.where(Event.model_id == model_id, Event.action == Action.YANK)
    return session.scalar(yanks.order_by(Event.id.desc()).limit(1))
