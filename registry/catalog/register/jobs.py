"""Rows of jobs: added within limits, claimed by kind, cancelled, removed. `registry.catalog.work` ends them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from organs.registry.catalog.engine import database_now
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.rows import count
from organs.registry.catalog.tables import ContributorRow, JobRow
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.catalog.work import JOBS, Claim, claim_next, claimed, recover
from organs.registry.entities.base import Entity
from organs.registry.errors import BadInput, NoSuchJob, QueueFull, TooMany

QUEUED_MAX = 100
"""The most waiting jobs of all kinds together."""
WAITING_MAX = 10
"""The most waiting jobs of one contributor. `local` does not have this limit."""
WAITING_RETRY_SECONDS = 30.0
"""The time after which a contributor at the limit should try again."""
JSON_MAX_BYTES = 1024 * 1024
"""The largest arguments of a job, and the largest result."""
RETENTION = timedelta(days=30)
"""The time for which jobs are kept after their end."""
_ENDED = ("finished", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class JobClaim(Claim):
    """A job that a runner has claimed."""

    kind: str
    arguments: dict[str, Any]
    contributor: str
    """The contributor who queued it."""
    waited: timedelta
    """How long before this claim it was queued."""

    @property
    def id(self) -> int:
        """The id of the job."""
        return self.key[0]


def enqueue_job(session: Session, kind: str, arguments: Entity | Mapping[str, object], contributor: str = LOCAL) -> int:
    """Add a job at the end of the queue; return its id.

    Raises QueueFull if QUEUED_MAX jobs wait, TooMany if WAITING_MAX of the contributor wait, and BadInput for arguments
    that are not JSON or too large.
    """
    text = job_json(arguments, "arguments")
    owner_id, queued = contributor_id(session, contributor), JobRow.state == "queued"
    waiting = count(session, JobRow, queued)
    if waiting >= QUEUED_MAX:
        raise QueueFull(waiting)
    if contributor != LOCAL:
        own = count(session, JobRow, queued, JobRow.contributor_id == owner_id)
        if own >= WAITING_MAX:
            raise TooMany(
                f"{own} of your jobs wait already: wait until one is done, or cancel one", WAITING_RETRY_SECONDS
            )
    row = JobRow(
        kind=kind,
        state="queued",
        contributor_id=owner_id,
        attempts=0,
        arguments=text,
        progress=0.0,
        note="",
        created_at=database_now(session),
    )
    session.add(row)
    session.flush()
    return row.id


def job_json(values: Entity | Mapping[str, object], name: str) -> str:
    """Return `values` as JSON; raises BadInput, with `name`, if that fails or exceeds JSON_MAX_BYTES."""
    try:
        plain = msgspec.to_builtins(values) if isinstance(values, Entity) else values
        text = json.dumps(plain, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"the {name} of a job must be JSON: {error}") from error
    if len(text) > JSON_MAX_BYTES:  # all of it is ASCII
        raise BadInput(f"the {name} of a job take {len(text):,} bytes; {JSON_MAX_BYTES:,} are allowed")
    return text


def claim_job(session: Session, kinds: Sequence[str], *, alone: bool = False) -> JobClaim | None:
    """Claim the job of these kinds that has waited longest; None if none waits.

    With `alone`, None is also returned while a runner has another job of these kinds, or has not stopped a cancelled
    one yet.
    """
    if alone:
        held = (JobRow.state.in_(("running", "cancelled")), JobRow.lease_expires_at > database_now(session))
        if session.scalar(select(JobRow.id).where(JobRow.kind.in_(kinds), *held).limit(1)) is not None:
            return None
    recover(session, JOBS)  # also of kinds that this runner does not do
    row = claim_next(session, JOBS, JobRow.kind.in_(kinds))
    if row is None:
        return None
    assert row.holder is not None
    assert row.started_at is not None
    row.progress = 0.0
    return JobClaim(
        JOBS,
        (row.id,),
        row.holder,
        row.attempts,
        kind=row.kind,
        arguments=json.loads(row.arguments),
        contributor=session.get_one(ContributorRow, row.contributor_id).name,
        waited=row.started_at - row.created_at,
    )


def report_progress(session: Session, claim: JobClaim, progress: float, note: str) -> bool:
    """Record the progress, from 0 to 1, and the present step; return whether the job is still to be done."""
    row = claimed(session, claim)
    if not isinstance(row, JobRow) or row.state != "running":
        return False
    row.progress, row.note = progress, shown_text(note)
    return True


def cancel_job(session: Session, job_id: int, contributor: str | None = None) -> JobRow:
    """Cancel a job: if it waits, it never begins; if it runs, it stops at its next report of progress.

    A job that has ended stays unchanged. With `contributor`, jobs of others are not found. Raises NotFound.
    """
    row = session.get(JobRow, job_id, with_for_update=True)
    if row is None or (contributor is not None and row.contributor_id != contributor_id(session, contributor)):
        raise NoSuchJob(f"there is no job {job_id}")
    if row.state not in _ENDED:
        row.state, row.note, row.finished_at = "cancelled", "", database_now(session)
    return row


def remove_old_jobs(session: Session) -> None:
    """Remove jobs that ended more than RETENTION ago."""
    session.execute(
        delete(JobRow).where(JobRow.state.in_(_ENDED), JobRow.finished_at < database_now(session) - RETENTION)
    )
