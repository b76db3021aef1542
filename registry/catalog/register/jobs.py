"""The life of a job: queued, claimed by a runner, renewed, ended.

A runner holds a `Claim` of its job. The claim is valid until another runner claims the job or the job is cancelled.
Every function that writes under a claim returns whether it was still valid.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.orm import Session, undefer

from organs.registry.catalog.clock import database_now
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.tables import Contributor, Job
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.entities.base import Entity
from organs.registry.errors import BadInput, NoSuchJob, QueueFull, TooMany

QUEUED_MAX = 100
"""The most waiting jobs of all kinds together."""
WAITING_MAX = 10
"""The most waiting jobs of one contributor. `local` does not have this limit."""
RETRY_SECONDS = 30.0
"""The time after which a contributor at the limit should try again."""
JSON_MAX_BYTES = 1024 * 1024
"""The largest arguments of a job, and the largest result."""
LEASE = timedelta(seconds=60)
"""A runner that has not renewed its claim for this time counts as dead."""
ATTEMPTS_MAX = 2
RETENTION = timedelta(days=30)
"""The time for which jobs are kept after their end."""
DIED, DIED_TWICE = "its runner died; it will run once more", "its runner died twice"

_ALONE_KEY = 0x6F7267616E  # "organ", for PostgreSQL's advisory lock
_ENDED = ("finished", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that a runner has claimed."""

    id: int
    kind: str
    attempt: int
    arguments: dict[str, Any]
    contributor: str
    """The contributor who queued it."""
    waited: timedelta
    """How long before this claim it was queued."""


def enqueue_job(session: Session, kind: str, arguments: Entity | Mapping[str, object], contributor: str = LOCAL) -> int:
    """Add a job at the end of the queue; return its id.

    Raises QueueFull if QUEUED_MAX jobs wait, TooMany if WAITING_MAX of the contributor wait, and BadInput for arguments
    that are not JSON or too large.
    """
    text = job_json(arguments, "arguments")
    waiting = session.scalar(select(func.count()).select_from(Job).where(Job.state == "queued")) or 0
    if waiting >= QUEUED_MAX:
        raise QueueFull(waiting)
    owner_id = contributor_id(session, contributor)
    if contributor != LOCAL:
        _check_waiting(session, owner_id)
    row = Job(
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


def claim_job(session: Session, kinds: Sequence[str], *, alone: bool = False) -> Claim | None:
    """Claim the job of these kinds that has waited longest; None if none waits.

    With `alone`, None is also returned while a runner has another job of these kinds. Jobs of dead runners are queued
    again first. The session must be a writing session, so that two runners get different jobs.
    """
    if alone and session.get_bind().dialect.name == "postgresql":  # SQLite has one writer at a time
        session.execute(select(func.pg_advisory_xact_lock(_ALONE_KEY)))
    recover_jobs(session)
    if alone and _is_running(session, kinds):
        return None
    waiting = select(Job).where(Job.state == "queued", Job.kind.in_(kinds)).order_by(Job.id).limit(1)
    row = session.scalars(waiting.options(undefer(Job.arguments)).with_for_update(skip_locked=True)).one_or_none()
    if row is None:
        return None
    started_at = database_now(session)
    row.state, row.attempts, row.progress = "running", row.attempts + 1, 0.0
    row.started_at, row.lease_expires_at = started_at, started_at + LEASE
    owner = session.get_one(Contributor, row.contributor_id).name
    return Claim(row.id, row.kind, row.attempts, json.loads(row.arguments), owner, started_at - row.created_at)


def recover_jobs(session: Session) -> None:
    """Queue jobs with an expired lease again. A job whose lease expires twice fails."""
    lapsed = (Job.state == "running", Job.lease_expires_at < database_now(session))
    died = {"state": "failed", "note": DIED_TWICE, "finished_at": database_now(session), "lease_expires_at": None}
    session.execute(update(Job).where(*lapsed, Job.attempts >= ATTEMPTS_MAX).values(died))
    session.execute(update(Job).where(*lapsed).values(state="queued", note=DIED, lease_expires_at=None))


def renew_job(session: Session, claim: Claim) -> bool:
    """Renew the lease of a job for LEASE from now; return whether the job is still to be done.

    The runner of a cancelled job keeps its lease until it stops.
    """
    row = _claimed(session, claim)
    if row is None:
        return False
    row.lease_expires_at = database_now(session) + LEASE
    return row.state == "running"


def report_progress(session: Session, claim: Claim, progress: float, note: str) -> bool:
    """Record the progress, from 0 to 1, and the present step; return whether the job is still to be done."""
    row = _claimed(session, claim)
    if row is None or row.state != "running":
        return False
    row.progress, row.note = progress, shown_text(note)
    return True


def finish_job(session: Session, claim: Claim, result: str) -> bool:
    """Finish a job; `result` is from `job_json`. Return False if the claim was no longer valid."""
    return _end(session, claim, state="finished", progress=1.0, note="", result=result)


def fail_job(session: Session, claim: Claim, sentence: str, problem: str | None = None) -> bool:
    """End a job as failed, with the reason in `sentence`; return False if the claim was no longer valid.

    `problem` is the error as a problem document (`registry.entities.problem.encoded`).
    """
    return _end(session, claim, state="failed", note=shown_text(sentence), problem=problem)


def put_back_job(session: Session, claim: Claim, note: str = "") -> bool:
    """Queue a job again because its runner ends, or for the reason in `note`. The attempt does not count."""
    values = {"attempts": claim.attempt - 1, "progress": 0.0, "note": shown_text(note), "started_at": None}
    return _end(session, claim, state="queued", **values)


def cancel_job(session: Session, job_id: int, contributor: str | None = None) -> Job:
    """Cancel a job: if it waits, it never begins; if it runs, it stops at its next report of progress.

    A job that has ended stays unchanged. With `contributor`, jobs of others are not found. Raises NotFound.
    """
    row = session.get(Job, job_id, with_for_update=True)
    if row is None or (contributor is not None and row.contributor_id != contributor_id(session, contributor)):
        raise NoSuchJob(f"there is no job {job_id}")
    if row.state not in _ENDED:
        row.state, row.note, row.finished_at = "cancelled", "", database_now(session)
    return row


def remove_old_jobs(session: Session) -> None:
    """Remove jobs that ended more than RETENTION ago."""
    session.execute(delete(Job).where(Job.state.in_(_ENDED), Job.finished_at < database_now(session) - RETENTION))


def _check_waiting(session: Session, owner_id: int) -> None:
    queued = select(func.count()).select_from(Job).where(Job.state == "queued", Job.contributor_id == owner_id)
    waiting = session.scalar(queued) or 0
    if waiting >= WAITING_MAX:
        raise TooMany(f"{waiting} of your jobs wait already: wait until one is done, or cancel one", RETRY_SECONDS)


def _is_running(session: Session, kinds: Sequence[str]) -> bool:
    """Return whether a runner has a job of these kinds, including a cancelled job that it has not stopped yet."""
    claimed = (Job.state.in_(("running", "cancelled")), Job.lease_expires_at > database_now(session))
    return session.scalar(select(Job.id).where(Job.kind.in_(kinds), *claimed).limit(1)) is not None


def _claimed(session: Session, claim: Claim) -> Job | None:
    """Return the row while the claim is valid, or while the job is cancelled and its runner has not stopped."""
    leased = or_(Job.state == "running", (Job.state == "cancelled") & Job.lease_expires_at.is_not(None))
    row = select(Job).where(Job.id == claim.id, Job.attempts == claim.attempt, leased)
    return session.scalars(row.with_for_update()).one_or_none()


def _end(session: Session, claim: Claim, **values: Any) -> bool:
    """Set `values` and end the lease; return whether the claim was valid. For a cancelled job, only end the lease."""
    row = _claimed(session, claim)
    if row is None:
        return False
    row.lease_expires_at = None
    if row.state != "running":
        return False
    for name, value in values.items():
        setattr(row, name, value)
    if row.state in _ENDED:
        row.finished_at = database_now(session)
    return True
