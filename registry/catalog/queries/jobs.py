"""Jobs by id and by page, and jobs that wait for a runner.

With a `contributor`, jobs of others are not found; None means the jobs of all contributors.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Row, Select, or_, select
from sqlalchemy.orm import Session, undefer

from organs.registry.catalog.rows import entity_of, page_of_rows
from organs.registry.catalog.tables import ContributorRow, JobRow
from organs.registry.catalog.work import Claim, is_lost, is_waiting
from organs.registry.digest import Digest
from organs.registry.entities.job import ACTIVE, Job, JobPage, JobSummary
from organs.registry.errors import NoSuchJob

_PACK = "pack"
"""The member of a stored result with the key of the folder that has the job's file. Callers do not get it."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """A file of a job, for download."""

    pack: str
    """The key of its folder."""
    name: str
    size_bytes: int
    sha256: Digest


def job_by_id(session: Session, job_id: int, contributor: str | None = None) -> Job:
    """Return the job with arguments and result; raises NotFound."""
    row, name = _job_row(session, job_id, contributor)
    result = None if row.result is None else json.loads(row.result)
    shown = None if result is None else {key: value for key, value in result.items() if key != _PACK}
    return _job(row, name, shown)


def file_of_job(session: Session, job_id: int, contributor: str | None = None) -> JobFile | None:
    """Return the file of the job, or None without a file. The file may be removed already. Raises NotFound."""
    row, _ = _job_row(session, job_id, contributor)
    result = {} if row.result is None else json.loads(row.result)
    if _PACK not in result:
        return None
    return JobFile(result[_PACK], result["file"], result["size_bytes"], Digest(result["sha256"]))


def newest_jobs(session: Session, limit: int, after: str | None = None, contributor: str | None = None) -> JobPage:
    """Return the next `limit` jobs after the cursor `after`, newest first. Raises BadQuery."""
    rows, following = page_of_rows(session, _jobs(contributor), "jobs", limit, after)
    return JobPage(items=tuple(entity_of(JobSummary, row, contributor=name) for row, name in rows), next=following)


def newest_failures(session: Session, limit: int) -> tuple[JobSummary, ...]:
    """Return the `limit` jobs that failed last, of all contributors, the newest first."""
    ended = JobRow.finished_at
    statement = _jobs(None).where(JobRow.state == "failed", ended.is_not(None))
    rows = session.execute(statement.order_by(ended.desc(), JobRow.id.desc()).limit(limit))
    return tuple(entity_of(JobSummary, row, contributor=name) for row, name in rows)


def active_jobs(session: Session, kind: str, contributor: str | None = None) -> tuple[Job, ...]:
    """Return the jobs of that kind that wait or run, oldest first."""
    active = _jobs(contributor).where(JobRow.kind == kind, JobRow.state.in_(ACTIVE))
    return _with_arguments(session, active.order_by(JobRow.id))


def job_of_evolution(session: Session, evolution_id: int) -> Job | None:
    """Return the job that does an evolution, or waits to do it."""
    jobs = active_jobs(session, "evolve")
    return next((job for job in jobs if job.arguments.get("evolution") == evolution_id), None)


def newest_jobs_of_kind(session: Session, kind: str, limit: int, contributor: str | None = None) -> tuple[Job, ...]:
    """Return the `limit` newest jobs of that kind in any state, the newest first."""
    own = _jobs(contributor).where(JobRow.kind == kind)
    return _with_arguments(session, own.order_by(JobRow.id.desc()).limit(limit))


def is_anything_due(session: Session, kinds: Sequence[str] | None = None) -> bool:
    """Return whether a job of these kinds, or of any kind, waits or has lost its runner.

    Runners call it often. They open a writing session only if there is work.
    """
    due = or_(is_waiting(session, JobRow), is_lost(session, JobRow))
    statement = select(JobRow.id).where(due).limit(1)
    statement = statement if kinds is None else statement.where(JobRow.kind.in_(kinds))
    return session.scalar(statement) is not None


def last_end(session: Session, kind: str) -> tuple[str, datetime] | None:
    """Return the state and the end of the job of a kind that ended last; None if there is none."""
    ended = JobRow.finished_at
    statement = select(JobRow.state, ended).where(JobRow.kind == kind, ended.is_not(None))
    row = session.execute(statement.order_by(ended.desc()).limit(1)).first()
    return None if row is None or row[1] is None else (row[0], row[1])


def is_to_be_done(session: Session, claim: Claim) -> bool:
    """Return whether the claimed job still runs."""
    valid = (JobRow.id == claim.key[0], JobRow.holder == claim.holder, JobRow.state == "running")
    return session.scalar(select(JobRow.id).where(*valid)) is not None


def _jobs(contributor: str | None) -> Select[JobRow, str]:
    statement = select(JobRow, ContributorRow.name).join(ContributorRow, ContributorRow.id == JobRow.contributor_id)
    return statement if contributor is None else statement.where(ContributorRow.name == contributor)


def _with_arguments(session: Session, statement: Select[JobRow, str]) -> tuple[Job, ...]:
    rows = session.execute(statement.options(undefer(JobRow.arguments), undefer(JobRow.problem)))
    return tuple(_job(row, name, None) for row, name in rows)


def _job(row: JobRow, contributor: str, result: object) -> Job:
    problem = None if row.problem is None else json.loads(row.problem)
    arguments = json.loads(row.arguments)
    return entity_of(Job, row, contributor=contributor, arguments=arguments, result=result, problem=problem)


def _job_row(session: Session, job_id: int, contributor: str | None) -> Row[JobRow, str]:
    statement = _jobs(contributor).options(*map(undefer, (JobRow.arguments, JobRow.result, JobRow.problem)))
    row = session.execute(statement.where(JobRow.id == job_id)).one_or_none()
    if row is None:
        raise NoSuchJob(f"there is no job {job_id}, or it ended long ago")
    return row
