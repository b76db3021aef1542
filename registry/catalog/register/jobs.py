"""The life of a job: asked for, taken up by a runner, kept alive, ended.

A runner that has taken a job up holds a `Claim`. It is good as long as nobody else has taken the job up since, and the
job was not cancelled: every write under it says whether it still was.
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

from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.tables import Contributor, Job, now
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.entities.base import Entity
from organs.registry.errors import BadInput, NoSuchJob, QueueFull, TooMany

QUEUED_MAX = 100
"""Jobs that wait, of all kinds together."""
WAITING_MAX = 10
"""Of them, those of one contributor; `local` may have all."""
AGAIN_SECONDS = 30.0
"""After which a contributor who has so many may ask again."""
JSON_MAX_BYTES = 1024 * 1024
"""Of the arguments of a job, and of its result."""
LEASE = timedelta(seconds=60)
"""A runner that has not said for so long that it is there counts as dead."""
ATTEMPTS_MAX = 2
KEPT = timedelta(days=30)
"""How long jobs that have ended are kept."""
DIED, DIED_TWICE = "its runner died; it is tried once more", "its runner died twice"

_ALONE_KEY = 0x6F7267616E  # "organ", for PostgreSQL's advisory lock
_ENDED = ("finished", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that a runner has taken up."""

    id: int
    kind: str
    attempt: int
    arguments: dict[str, Any]
    contributor: str
    """Who asked for it."""


def enqueue_job(session: Session, kind: str, arguments: Entity | Mapping[str, object], contributor: str = LOCAL) -> int:
    """A new job at the end of the queue; its id.

    Raises QueueFull when QUEUED_MAX jobs wait, TooMany when WAITING_MAX of the contributor do, BadInput for arguments
    that are no JSON or too large.
    """
    text = job_json(arguments, "arguments")
    waiting = session.scalar(select(func.count()).select_from(Job).where(Job.state == "queued")) or 0
    if waiting >= QUEUED_MAX:
        raise QueueFull(waiting)
    asker_id = contributor_id(session, contributor)
    if contributor != LOCAL:
        _check_own_waiting(session, asker_id)
    row = Job(
        kind=kind,
        state="queued",
        contributor_id=asker_id,
        attempts=0,
        arguments=text,
        progress=0.0,
        note="",
        created_at=now(),
    )
    session.add(row)
    session.flush()
    return row.id


def job_json(values: Entity | Mapping[str, object], what: str) -> str:
    """Return `values` as the JSON that a job keeps.

    Raises BadInput for values that are not JSON, and for more than JSON_MAX_BYTES.
    """
    try:
        plain = msgspec.to_builtins(values) if isinstance(values, Entity) else values
        text = json.dumps(plain, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"the {what} of a job are to be JSON: {error}") from error
    if len(text) > JSON_MAX_BYTES:  # all of it is ASCII
        raise BadInput(f"the {what} of a job take {len(text):,} bytes; {JSON_MAX_BYTES:,} are allowed")
    return text


def claim_job(session: Session, kinds: Sequence[str], *, alone: bool = False) -> Claim | None:
    """Take up the job of these kinds that has waited longest; None where none waits.

    With `alone`, only while nobody works at another of these kinds. Jobs whose runner has died are put back first. It
    must be called in a session that writes: two who call it at once get two jobs.
    """
    if alone and session.get_bind().dialect.name == "postgresql":  # SQLite has one writer at a time
        session.execute(select(func.pg_advisory_xact_lock(_ALONE_KEY)))
    recover_jobs(session)
    if alone and _is_worked_at(session, kinds):
        return None
    waiting = select(Job).where(Job.state == "queued", Job.kind.in_(kinds)).order_by(Job.id).limit(1)
    row = session.scalars(waiting.options(undefer(Job.arguments)).with_for_update(skip_locked=True)).one_or_none()
    if row is None:
        return None
    begun = now()
    row.state, row.attempts, row.progress = "running", row.attempts + 1, 0.0
    row.started_at, row.lease_expires_at = begun, begun + LEASE
    asker = session.get_one(Contributor, row.contributor_id).name
    return Claim(row.id, row.kind, row.attempts, json.loads(row.arguments), asker)


def recover_jobs(session: Session) -> None:
    """Put jobs whose lease has run out back to the queue; those for which it happens again have failed."""
    lapsed = (Job.state == "running", Job.lease_expires_at < now())
    died = {"state": "failed", "note": DIED_TWICE, "finished_at": now(), "lease_expires_at": None}
    session.execute(update(Job).where(*lapsed, Job.attempts >= ATTEMPTS_MAX).values(died))
    session.execute(update(Job).where(*lapsed).values(state="queued", note=DIED, lease_expires_at=None))


def renew_job(session: Session, claim: Claim) -> bool:
    """Another LEASE from now; whether the job is still to be done. What is not is kept until it is let go."""
    row = _claimed(session, claim)
    if row is None:
        return False
    row.lease_expires_at = now() + LEASE
    return row.state == "running"


def tell_progress(session: Session, claim: Claim, progress: float, note: str) -> bool:
    """How far it is, from 0 to 1, and what it is doing; whether it is still to be done."""
    row = _claimed(session, claim)
    if row is None or row.state != "running":
        return False
    row.progress, row.note = progress, shown_text(note)
    return True


def finish_job(session: Session, claim: Claim, result: str) -> bool:
    """It is done, with a result as `job_json` gives it; False when it was not to be done any more."""
    return _end(session, claim, state="finished", progress=1.0, note="", result=result, finished_at=now())


def fail_job(session: Session, claim: Claim, sentence: str) -> bool:
    """It cannot be done, for the reason in `sentence`; False when it was not to be done any more."""
    return _end(session, claim, state="failed", note=shown_text(sentence), finished_at=now())


def put_back_job(session: Session, claim: Claim) -> bool:
    """The runner ends before the job does: it waits again, as if it had not been taken up."""
    return _end(session, claim, state="queued", attempts=claim.attempt - 1, progress=0.0, note="", started_at=None)


def cancel_job(session: Session, job_id: int, contributor: str | None = None) -> Job:
    """Nobody wants it any more: one that waits never begins, one that runs is left at its next word of progress.

    A job that has ended stays as it is. With `contributor`, the jobs of all others count as absent. Raises NotFound.
    """
    row = session.get(Job, job_id, with_for_update=True)
    if row is None or (contributor is not None and row.contributor_id != contributor_id(session, contributor)):
        raise NoSuchJob(f"there is no job {job_id}")
    if row.state not in _ENDED:
        row.state, row.note, row.finished_at = "cancelled", "", now()
    return row


def forget_jobs(session: Session) -> None:
    """Remove jobs that ended more than KEPT ago."""
    session.execute(delete(Job).where(Job.state.in_(_ENDED), Job.finished_at < now() - KEPT))


def _check_own_waiting(session: Session, asker_id: int) -> None:
    own = select(func.count()).select_from(Job).where(Job.state == "queued", Job.contributor_id == asker_id)
    waiting = session.scalar(own) or 0
    if waiting >= WAITING_MAX:
        raise TooMany(f"{waiting} of your jobs wait already: wait until one is done, or cancel one", AGAIN_SECONDS)


def _is_worked_at(session: Session, kinds: Sequence[str]) -> bool:
    """Whether somebody holds a job of these kinds, also one that was cancelled and is not let go yet."""
    held = (Job.kind.in_(kinds), Job.state.in_(("running", "cancelled")), Job.lease_expires_at > now())
    return session.scalar(select(Job.id).where(*held).limit(1)) is not None


def _claimed(session: Session, claim: Claim) -> Job | None:
    """The row while the claim is good, or while the job is cancelled and not let go."""
    held = or_(Job.state == "running", (Job.state == "cancelled") & Job.lease_expires_at.is_not(None))
    mine = select(Job).where(Job.id == claim.id, Job.attempts == claim.attempt, held)
    return session.scalars(mine.with_for_update()).one_or_none()


def _end(session: Session, claim: Claim, **values: Any) -> bool:
    """Set `values` and give the lease back, of a cancelled job the lease alone."""
    row = _claimed(session, claim)
    if row is None:
        return False
    row.lease_expires_at = None
    if row.state != "running":
        return False
    for name, value in values.items():
        setattr(row, name, value)
    return True
