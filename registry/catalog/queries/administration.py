"""What administrators look at: what waits for their word, and the registry in numbers that are nobody else's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, Select, func, select
from sqlalchemy.orm import Session

from organs.registry.catalog.search.cursor import Cursor, check_limit, cursor_text, parse_cursor
from organs.registry.catalog.tables import Contributor, Model, Submission, Upload
from organs.registry.catalog.vocabulary import CONTRIBUTOR_STATES, MODEL_STATES
from organs.registry.errors import NotFound

_WAITING, _CONTRIBUTORS = "quarantine", "admin contributors"
"""What places in the lists are bound to."""


@dataclass(frozen=True, slots=True)
class WaitingPage:
    """One page of submissions that wait for an administrator, each with its contributor's name and its model."""

    items: tuple[Row[Submission, str, Model | None], ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class AccountsPage:
    """One page of contributors."""

    items: tuple[Contributor, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class Numbers:
    """The registry as its administrators see it."""

    waiting: int
    """Submissions that wait for their word."""
    models: dict[str, int]
    """By state."""
    contributors: dict[str, int]
    """By state."""
    uploads: int
    """Under way, or waiting to be published."""
    upload_bytes: int
    """As they were declared."""


def waiting_submissions(session: Session, limit: int, after: str | None = None) -> WaitingPage:
    """The next `limit` submissions that wait for an administrator, the one that has waited longest first.

    Raises BadQuery.
    """
    check_limit(limit)
    statement = _submissions().where(Submission.state == "quarantined")
    if after is not None:
        statement = statement.where(Submission.id > parse_cursor(_WAITING, after).id)
    rows = session.execute(statement.order_by(Submission.id).limit(limit + 1)).all()
    shown = tuple(rows[:limit])
    more = len(rows) > limit
    return WaitingPage(shown, cursor_text(_WAITING, Cursor(None, shown[-1][0].id)) if more else None)


def submission_by_id(session: Session, submission_id: int) -> Row[Submission, str, Model | None]:
    """The submission of that number, whatever its state, with its contributor's name and its model. Raises NotFound."""
    found = session.execute(_submissions().where(Submission.id == submission_id)).one_or_none()
    if found is None:
        raise NotFound(f"there is no submission {submission_id}")
    return found


def all_contributors(session: Session, limit: int, after: str | None = None) -> AccountsPage:
    """The next `limit` contributors, newest first, those without a visible model among them. Raises BadQuery."""
    check_limit(limit)
    statement = select(Contributor)
    if after is not None:
        statement = statement.where(Contributor.id < parse_cursor(_CONTRIBUTORS, after).id)
    rows = session.scalars(statement.order_by(Contributor.id.desc()).limit(limit + 1)).all()
    shown = tuple(rows[:limit])
    more = len(rows) > limit
    return AccountsPage(shown, cursor_text(_CONTRIBUTORS, Cursor(None, shown[-1].id)) if more else None)


def numbers_for_administrators(session: Session) -> Numbers:
    """Counted now: few ask, and the tables are small beside those of organs."""
    waiting = select(func.count()).select_from(Submission).where(Submission.state == "quarantined")
    uploads = session.execute(select(func.count(), func.sum(Upload.size_bytes)).select_from(Upload)).one()
    models = dict(session.execute(select(Model.state, func.count()).group_by(Model.state)).all())
    people = dict(session.execute(select(Contributor.state, func.count()).group_by(Contributor.state)).all())
    return Numbers(
        waiting=session.scalar(waiting) or 0,
        models={state: models.get(state, 0) for state in MODEL_STATES},
        contributors={state: people.get(state, 0) for state in CONTRIBUTOR_STATES},
        uploads=uploads[0],
        upload_bytes=int(uploads[1] or 0),
    )


def _submissions() -> Select[*tuple[Any, ...]]:
    return (
        select(Submission, Contributor.name, Model)
        .join(Contributor, Contributor.id == Submission.contributor_id)
        .outerjoin(Model, Model.id == Submission.model_id)
    )
