"""Jobs: one by its id, the newest in pages, whether there is anything to do.

Where a `contributor` is named, the jobs of all others count as absent; None is for who may see everybody's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Row, and_, or_, select, true
from sqlalchemy.orm import Session, undefer

from organs.registry.catalog.clock import now
from organs.registry.catalog.search.cursor import Cursor, check_limit, cursor_text, parse_cursor
from organs.registry.catalog.tables import Contributor, Job
from organs.registry.errors import NoSuchJob

_LIST = "jobs"
"""What places in the list are bound to."""


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of jobs, each with the name of who asked for it."""

    items: tuple[Row[Job, str], ...]
    next: str | None


def job_by_id(session: Session, job_id: int, contributor: str | None = None) -> Row[Job, str]:
    """The job with its arguments and its result, and who asked for it; raises NotFound."""
    statement = select(Job, Contributor.name).join(Contributor, Contributor.id == Job.contributor_id)
    whole = statement.options(undefer(Job.arguments), undefer(Job.result)).where(Job.id == job_id)
    found = session.execute(whole.where(_is_of(contributor))).one_or_none()
    if found is None:
        raise NoSuchJob(f"there is no job {job_id}: it never was, or ended long ago")
    return found


def newest_jobs(session: Session, limit: int, after: str | None = None, contributor: str | None = None) -> JobPage:
    """The next `limit` jobs behind `after`, newest first, without arguments and results. Raises BadQuery."""
    check_limit(limit)
    statement = select(Job, Contributor.name).join(Contributor, Contributor.id == Job.contributor_id)
    if after is not None:
        statement = statement.where(Job.id < parse_cursor(_LIST, after).id)
    own = statement.where(_is_of(contributor))
    rows = session.execute(own.order_by(Job.id.desc()).limit(limit + 1)).all()
    shown = tuple(rows[:limit])
    more = len(rows) > limit
    return JobPage(shown, cursor_text(_LIST, Cursor(None, shown[-1][0].id)) if more else None)


def has_jobs(session: Session, contributor: str | None = None) -> bool:
    """Whether there are any, of any state."""
    statement = select(Job.id).join(Contributor, Contributor.id == Job.contributor_id).where(_is_of(contributor))
    return session.scalar(statement.limit(1)) is not None


def active_jobs(session: Session, kind: str, contributor: str | None = None) -> Sequence[Job]:
    """The jobs of that kind that wait or run, oldest first, with their arguments."""
    statement = select(Job).join(Contributor, Contributor.id == Job.contributor_id).options(undefer(Job.arguments))
    active = statement.where(Job.kind == kind, Job.state.in_(("queued", "running")), _is_of(contributor))
    return session.scalars(active.order_by(Job.id)).all()


def is_anything_due(session: Session, kinds: Sequence[str]) -> bool:
    """Whether a job of these kinds waits, or its runner has died. Asked often, so that only who has work writes."""
    waits = Job.state == "queued"
    died = and_(Job.state == "running", Job.lease_expires_at < now())
    return session.scalar(select(Job.id).where(Job.kind.in_(kinds), or_(waits, died)).limit(1)) is not None


def is_to_be_done(session: Session, job_id: int, attempt: int) -> bool:
    """Whether the job still runs for who took it up as the `attempt`-th."""
    mine = (Job.id == job_id, Job.attempts == attempt, Job.state == "running")
    return session.scalar(select(Job.id).where(*mine)) is not None


def _is_of(contributor: str | None) -> ColumnElement[bool]:
    return true() if contributor is None else Contributor.name == contributor
