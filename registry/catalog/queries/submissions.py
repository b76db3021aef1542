"""Submissions: one's own, those that wait for an administrator, and what is asked while one is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Row, Select, func, or_, select
from sqlalchemy.orm import Session, undefer

from organs.registry.catalog.actions import Action
from organs.registry.catalog.queries.events import was_done
from organs.registry.catalog.search.cursor import Cursor, check_limit, cursor_text, parse_cursor
from organs.registry.catalog.tables import Chimera, Contributor, Job, Model, Submission
from organs.registry.digest import Digest
from organs.registry.errors import NotFound
from organs.registry.names import ModelName

UNDER_WAY = ("checking", "ready", "publishing")
"""States in which the bytes still lie with the uploads."""
OPEN = (*UNDER_WAY, "quarantined")
_LIST = "submissions"
_LOOKED_AT = ("checking", "publishing")


@dataclass(frozen=True, slots=True)
class FoundSubmission:
    """A submission with who sent it, what became of it, and how far its job is."""

    row: Submission
    contributor: str
    model: Model | None
    job_state: str | None
    """None where its job is forgotten, or never was."""
    progress: float
    note: str


@dataclass(frozen=True, slots=True)
class SubmissionPage:
    """One page, newest first."""

    items: tuple[FoundSubmission, ...]
    next: str | None


def submission_by_id(session: Session, submission_id: int, contributor_id: int | None = None) -> FoundSubmission:
    """The submission; with a contributor, those of all others count as absent. Raises NotFound."""
    statement = _found().where(Submission.id == submission_id)
    if contributor_id is not None:
        statement = statement.where(Submission.contributor_id == contributor_id)
    row = session.execute(statement).one_or_none()
    if row is None:
        raise NotFound(f"there is no submission {submission_id} of yours")
    return _of_row(row)


def submissions_page(
    session: Session,
    limit: int,
    after: str | None = None,
    *,
    contributor_id: int | None = None,
    state: str | None = None,
) -> SubmissionPage:
    """The next `limit` behind `after`, newest first: of one contributor, or in one state. Raises BadQuery."""
    check_limit(limit)
    statement = _found()
    if contributor_id is not None:
        statement = statement.where(Submission.contributor_id == contributor_id)
    if state is not None:
        statement = statement.where(Submission.state == state)
    if after is not None:
        statement = statement.where(Submission.id < parse_cursor(_LIST, after).id)
    rows = session.execute(statement.order_by(Submission.id.desc()).limit(limit + 1)).all()
    items = tuple(_of_row(row) for row in rows[:limit])
    more = len(rows) > limit
    return SubmissionPage(items, cursor_text(_LIST, Cursor(None, items[-1].row.id)) if more else None)


def known_contributor_id(session: Session, name: str) -> int | None:
    """The id of the contributor of exactly that name, if there is one."""
    return session.scalar(select(Contributor.id).where(Contributor.name == name))


def open_submissions(
    session: Session, contributor_id: int, states: Sequence[str] = OPEN, after_id: int = 0
) -> Sequence[Submission]:
    """The contributor's submissions in `states` that came after one, oldest first, with their manifests."""
    own = (Submission.contributor_id == contributor_id, Submission.id > after_id)
    statement = select(Submission).where(*own, Submission.state.in_(states))
    return session.scalars(statement.order_by(Submission.id).options(undefer(Submission.manifest))).all()


def same_submissions(session: Session, contributor_id: int, name: ModelName, manifest: str) -> Sequence[Submission]:
    """The contributor's open submissions of just these files under that name, oldest first."""
    same = (Submission.namespace == name.namespace, Submission.name == name.name, Submission.manifest == manifest)
    own = select(Submission).where(Submission.contributor_id == contributor_id, Submission.state.in_(OPEN), *same)
    return session.scalars(own.order_by(Submission.id)).all()


def count_open_submissions(session: Session, contributor_id: int) -> int:
    """How many submissions of the contributor have not ended."""
    own = select(func.count()).select_from(Submission).where(Submission.contributor_id == contributor_id)
    return session.scalar(own.where(Submission.state.in_(OPEN))) or 0


def abandoned_submissions(session: Session, limit: int = 100) -> Sequence[tuple[int, str | None, str | None]]:
    """Ids of submissions whose job has ended without a word of what became of them; its state and note, if it is there.

    Such are those of a runner that died twice, of a job that was cancelled, and of a fault of ours.
    """
    ended = or_(Job.id.is_(None), Job.state.in_(("failed", "cancelled", "finished")))
    statement = (
        select(Submission.id, Job.state, Job.note)
        .outerjoin(Job, Job.id == Submission.job_id)
        .where(Submission.state.in_(_LOOKED_AT), ended)
        .order_by(Submission.id)
        .limit(limit)
    )
    return [(row[0], row[1], row[2]) for row in session.execute(statement)]


def forsaken_models(session: Session, row: Submission) -> Sequence[Model]:
    """Quarantined models of the submission's contributor and name that no open submission waits for, nor may be about
    to. Those that an administrator has hidden, and chimeras, are none.
    """
    own = (Submission.contributor_id == row.contributor_id, Submission.state.in_(OPEN))
    same = (Submission.namespace == row.namespace, Submission.name == row.name)
    waiting = select(Submission.id).where(
        *own, *same, or_(Submission.model_id.is_(None), Submission.model_id == Model.id)
    )
    composed = select(Chimera.model_id).where(Chimera.model_id == Model.id)
    mine = (Model.contributor_id == row.contributor_id, Model.namespace == row.namespace, Model.name == row.name)
    unwanted = (~waiting.exists(), ~was_done(Action.QUARANTINE, Action.YANK), ~composed.exists())
    return session.scalars(select(Model).where(*mine, Model.state == "quarantined", *unwanted)).all()


def is_any_abandoned(session: Session) -> bool:
    """Whether there are any such."""
    return bool(abandoned_submissions(session, 1))


def refused_with_digest(session: Session, digest: Digest, contributor_id: int) -> Submission | None:
    """The contributor's newest submission of exactly these bytes whose model an administrator refused."""
    own = (Submission.contributor_id == contributor_id, Submission.state == "refused")
    statement = (
        select(Submission)
        .join(Model, Model.id == Submission.model_id)
        .where(*own, Submission.decided_by.is_not(None), Model.digest == digest)
    )
    return session.scalars(statement.order_by(Submission.id.desc()).limit(1)).one_or_none()


def _of_row(row: Row[Submission, str, Model, str, float, str]) -> FoundSubmission:
    submission, contributor, model, job_state, progress, note = row
    return FoundSubmission(submission, contributor, model, job_state, progress or 0.0, note or "")


def _found() -> Select[Submission, str, Model, str, float, str]:
    columns = (Submission, Contributor.name, Model, Job.state, Job.progress, Job.note)
    statement: Select[Submission, str, Model, str, float, str] = select(*columns)
    return (
        statement.join(Contributor, Contributor.id == Submission.contributor_id)
        .outerjoin(Model, Model.id == Submission.model_id)
        .outerjoin(Job, Job.id == Submission.job_id)
    )
