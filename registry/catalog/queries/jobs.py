"""Jobs: one by its id, the newest in pages, whether there is anything to do.

With a `contributor`, the jobs of all others count as absent; None stands for everybody's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, and_, or_, select, true
from sqlalchemy.orm import Session, undefer

from organs.registry.catalog import tables
from organs.registry.catalog.cursor import (
    Cursor,
    check_limit,
    cursor_text,
    parse_cursor,
)
from organs.registry.catalog.tables import Contributor, now
from organs.registry.digest import Digest
from organs.registry.entities.job import ACTIVE, Job, JobPage, JobSummary
from organs.registry.errors import NoSuchJob

_LIST = "jobs"
"""What places in the list are bound to."""


_PACK = "pack"
"""Member of a stored result: the key of the folder of a file that the job has left. It is not shown."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """A file that a job has left to be downloaded."""

    pack: str
    """Key of the folder that holds it."""
    name: str
    size_bytes: int
    sha256: Digest


def job_by_id(session: Session, job_id: int, contributor: str | None = None) -> Job:
    """Return the job with its arguments and its result; raises NotFound."""
    row, name = _job_row(session, job_id, contributor)
    result = None if row.result is None else json.loads(row.result)
    return Job(
        **_summary(row, name),
        arguments=json.loads(row.arguments),
        result=None if result is None else {key: value for key, value in result.items() if key != _PACK},
    )


def file_of_job(session: Session, job_id: int, contributor: str | None = None) -> JobFile | None:
    """Return the file that the job has left, which may be removed by now; raises NotFound."""
    row, _ = _job_row(session, job_id, contributor)
    result = {} if row.result is None else json.loads(row.result)
    if _PACK not in result:
        return None
    return JobFile(result[_PACK], result["file"], result["size_bytes"], Digest(result["sha256"]))


def newest_jobs(session: Session, limit: int, after: str | None = None, contributor: str | None = None) -> JobPage:
    """Return the next `limit` jobs after the place `after`, newest first. Raises BadQuery."""
    check_limit(limit)
    statement = select(tables.Job, Contributor.name).join(Contributor, Contributor.id == tables.Job.contributor_id)
    if after is not None:
        statement = statement.where(tables.Job.id < parse_cursor(_LIST, after).id)
    own = statement.where(_is_of(contributor))
    rows = session.execute(own.order_by(tables.Job.id.desc()).limit(limit + 1)).all()
    items = tuple(JobSummary(**_summary(row, name)) for row, name in rows[:limit])
    more = len(rows) > limit
    return JobPage(items=items, next=cursor_text(_LIST, Cursor(None, items[-1].id)) if more else None)


def has_jobs(session: Session, contributor: str | None = None) -> bool:
    """Whether there are any, of any state."""
    statement = (
        select(tables.Job.id).join(Contributor, Contributor.id == tables.Job.contributor_id).where(_is_of(contributor))
    )
    return session.scalar(statement.limit(1)) is not None


def active_jobs(session: Session, kind: str, contributor: str | None = None) -> tuple[Job, ...]:
    """Return the jobs of that kind that wait or run, oldest first."""
    statement = select(tables.Job, Contributor.name).join(Contributor, Contributor.id == tables.Job.contributor_id)
    active = statement.where(tables.Job.kind == kind, tables.Job.state.in_(ACTIVE), _is_of(contributor))
    rows = session.execute(active.options(undefer(tables.Job.arguments)).order_by(tables.Job.id))
    return tuple(Job(**_summary(row, name), arguments=json.loads(row.arguments), result=None) for row, name in rows)


def is_anything_due(session: Session, kinds: Sequence[str]) -> bool:
    """Whether a job of these kinds waits, or its runner has died. Asked often, so that only who has work writes."""
    waits = tables.Job.state == "queued"
    died = and_(tables.Job.state == "running", tables.Job.lease_expires_at < now())
    return (
        session.scalar(select(tables.Job.id).where(tables.Job.kind.in_(kinds), or_(waits, died)).limit(1)) is not None
    )


def is_to_be_done(session: Session, job_id: int, attempt: int) -> bool:
    """Whether the job still runs for who took it up as the `attempt`-th."""
    mine = (tables.Job.id == job_id, tables.Job.attempts == attempt, tables.Job.state == "running")
    return session.scalar(select(tables.Job.id).where(*mine)) is not None


def _is_of(contributor: str | None) -> ColumnElement[bool]:
    return true() if contributor is None else Contributor.name == contributor


def _job_row(session: Session, job_id: int, contributor: str | None) -> Row[tables.Job, str]:
    statement = select(tables.Job, Contributor.name).join(Contributor, Contributor.id == tables.Job.contributor_id)
    whole = statement.options(undefer(tables.Job.arguments), undefer(tables.Job.result))
    found = session.execute(whole.where(tables.Job.id == job_id, _is_of(contributor))).one_or_none()
    if found is None:
        raise NoSuchJob(f"there is no job {job_id}: it never was, or ended long ago")
    return found


def _summary(row: tables.Job, contributor: str) -> dict[str, Any]:
    """Return the members of a JobSummary."""
    names = ("id", "kind", "state", "progress", "note", "created_at", "started_at", "finished_at")
    return {name: getattr(row, name) for name in names} | {"contributor": contributor}
