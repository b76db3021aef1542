"""The ledger of a fleet: units of work that many processes claim, renew and end.

A worker holds a `UnitClaim` of its unit. The claim is valid until the unit ends, or until its lease has expired and
another process queued the unit again. Every function that writes under a claim returns whether it was still valid. The
session must be a writing session, so that two workers get different units.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, delete, func, insert, or_, select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.clock import database_now
from organs.registry.catalog.engine import batches
from organs.registry.catalog.queries.fleet import has_live_workers
from organs.registry.catalog.tables import FleetRun, FleetUnit
from organs.registry.catalog.vocabulary import checked_text, shown_text
from organs.registry.errors import BadInput, Conflict

LEASE = timedelta(seconds=60)
"""A worker that has not renewed its claim for this time counts as dead."""
DEATHS_MAX = 3
"""A unit is set aside after this number of dead workers."""
ATTEMPTS_MAX = 10
"""A unit fails after this number of attempts if the last one ended with a temporary error."""
DELAY, DELAY_MAX = timedelta(seconds=5), timedelta(minutes=5)
"""The time before the second attempt after a temporary error; it doubles for each further one, up to the latter."""
RETENTION = timedelta(days=90)
"""Runs that began longer ago, and have no open units, are removed when another run begins."""
UNITS_MAX = 100_000
"""The most units of a run."""
RESULT_MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class NewUnit:
    """A unit of a plan."""

    work: str
    source: str
    size_bytes: int | None = None
    """The bytes of its files; None if they are unknown."""
    stamp: str = ""
    """A text that changes when its files do. It distinguishes plans, and is not stored."""


@dataclass(frozen=True, slots=True)
class UnitClaim:
    """A unit that a worker has claimed."""

    run_id: int
    number: int
    holder: str
    attempt: int
    work: str
    source: str


def start_run(session: Session, name: str, digest: str, units: Sequence[NewUnit]) -> tuple[int, bool]:
    """Return the id of the run with this digest, and whether it is new. A new one gets all `units`, queued.

    Raises BadInput for too many units, BadValue for texts that are too long or not valid.
    """
    known = session.scalar(select(FleetRun.id).where(FleetRun.digest == digest))
    if known is not None:
        return known, False
    if not 0 < len(units) <= UNITS_MAX:
        raise BadInput(f"a plan has 1 to {UNITS_MAX:,} units of work, not {len(units):,}")
    moment = database_now(session)
    _remove_old_runs(session, moment)
    run = FleetRun(name=checked_text(name, "the name of the plan", 96), digest=digest, created_at=moment)
    session.add(run)
    session.flush()
    rows = [
        {
            "run_id": run.id,
            "number": number,
            "work": unit.work,
            "source": checked_text(unit.source, "the source of a unit"),
            "state": "queued",
            "attempts": 0,
            "deaths": 0,
            "size_bytes": unit.size_bytes,
            "note": "",
            "created_at": moment,
        }
        for number, unit in enumerate(units, 1)
    ]
    for batch in batches(rows):
        session.execute(insert(FleetUnit), batch)
    return run.id, True


def remove_run(session: Session, run_id: int) -> None:
    """Remove a run with its units. Raises Conflict while workers do some of them."""
    if has_live_workers(session, run_id):
        raise Conflict(f"units of run {run_id} are running: stop its command first")
    session.execute(delete(FleetRun).where(FleetRun.id == run_id))


def set_dashboard(session: Session, run_id: int, dashboard: str) -> None:
    """Record the address of Dask's page about the run; other addresses than those of http and https are not."""
    if dashboard.startswith(("http://", "https://")) and len(dashboard) <= 256:
        session.execute(update(FleetRun).where(FleetRun.id == run_id).values(dashboard=shown_text(dashboard, 256)))


def claim_unit(session: Session, run_id: int, worker: str, version: str, number: int | None = None) -> UnitClaim | None:
    """Claim the unit `number`, by default the first one that waits; None if it is not to be done now.

    Units of dead workers are queued again first.
    """
    recover_units(session, run_id)
    moment = database_now(session)
    due = (FleetUnit.run_id == run_id, FleetUnit.state == "queued", _is_due(moment))
    statement = select(FleetUnit).where(*due).order_by(FleetUnit.number).limit(1)
    if number is not None:
        statement = statement.where(FleetUnit.number == number)
    row = session.scalars(statement.with_for_update()).one_or_none()
    if row is None:
        return None
    row.state, row.holder, row.attempts = "running", secrets.token_hex(16), row.attempts + 1
    row.worker, row.version = shown_text(worker, 96), shown_text(version, 96)
    row.started_at, row.finished_at, row.lease_expires_at = moment, None, moment + LEASE
    return UnitClaim(run_id, row.number, row.holder, row.attempts, row.work, row.source)


def renew_unit(session: Session, claim: UnitClaim) -> bool:
    """Renew the lease for LEASE from now."""
    return _write(session, claim, lease_expires_at=database_now(session) + LEASE)


def finish_unit(session: Session, claim: UnitClaim, result: str, size_bytes: int | None = None) -> bool:
    """Record that the unit is done, with its result as JSON, and the bytes of its files if they were unknown.

    Raises BadInput for a result that is too large.
    """
    if len(result.encode()) > RESULT_MAX_BYTES:
        raise BadInput(f"the result of a unit has more than {RESULT_MAX_BYTES:,} bytes")
    known_bytes = func.coalesce(FleetUnit.size_bytes, size_bytes)
    return _end(session, claim, state="done", note="", result=result, size_bytes=known_bytes)


def fail_unit(session: Session, claim: UnitClaim, sentence: str) -> bool:
    """Record why the unit failed."""
    return _end(session, claim, state="failed", note=shown_text(sentence))


def postpone_unit(session: Session, claim: UnitClaim, sentence: str) -> bool:
    """Queue the unit again after a temporary error, for a later time; after ATTEMPTS_MAX attempts, it fails."""
    if claim.attempt >= ATTEMPTS_MAX:
        return fail_unit(session, claim, f"after {claim.attempt} attempts: {sentence}")
    delay = min(DELAY * 2 ** (claim.attempt - 1), DELAY_MAX)
    lease_expires_at = database_now(session) + delay
    values = {"state": "queued", "holder": None, "note": shown_text(sentence), "lease_expires_at": lease_expires_at}
    return _write(session, claim, **values)


def put_back_unit(session: Session, claim: UnitClaim) -> bool:
    """Queue the unit again because its worker ends. The attempt does not count."""
    values = {"state": "queued", "holder": None, "attempts": claim.attempt - 1, "lease_expires_at": None}
    return _write(session, claim, **values)


def put_back_units(session: Session, run_id: int, numbers: Sequence[int]) -> None:
    """Queue these units again if they run, because their driver ends. Their workers notice it and stop."""
    again = {"state": "queued", "holder": None, "attempts": FleetUnit.attempts - 1, "lease_expires_at": None}
    for batch in batches(numbers):
        running = (FleetUnit.run_id == run_id, FleetUnit.state == "running", FleetUnit.number.in_(batch))
        session.execute(update(FleetUnit).where(*running).values(again))


def end_worker(session: Session, run_id: int, worker: str, *, died: bool) -> bool:
    """Queue the unit of a worker that has ended again; count a death if it `died`. Return whether it had one."""
    held = (FleetUnit.run_id == run_id, FleetUnit.state == "running", FleetUnit.worker == worker)
    numbers = list(session.scalars(select(FleetUnit.number).where(*held)))
    if died:
        _count_deaths(session, *held)
    else:
        put_back_units(session, run_id, numbers)
    return bool(numbers)


def recover_units(session: Session, run_id: int) -> None:
    """Queue units with an expired lease again, and count the deaths of their workers."""
    lapsed = (FleetUnit.run_id == run_id, FleetUnit.state == "running")
    _count_deaths(session, *lapsed, FleetUnit.lease_expires_at < database_now(session))


def retry_units(session: Session, run_id: int) -> int:
    """Queue the units that failed or were set aside again, as if they were new; return their number."""
    ended = (FleetUnit.run_id == run_id, FleetUnit.state.in_(("failed", "set_aside")))
    fresh = {"state": "queued", "attempts": 0, "deaths": 0, "note": "", "lease_expires_at": None, "finished_at": None}
    numbers = session.scalars(update(FleetUnit).where(*ended).values(fresh).returning(FleetUnit.number))
    return len(numbers.all())


def _remove_old_runs(session: Session, moment: datetime) -> None:
    open_units = select(FleetUnit.run_id).where(FleetUnit.state.in_(("queued", "running")))
    old = (FleetRun.created_at < moment - RETENTION, FleetRun.id.not_in(open_units))
    session.execute(delete(FleetRun).where(*old))


def _is_due(moment: datetime) -> ColumnElement[bool]:
    return or_(FleetUnit.lease_expires_at.is_(None), FleetUnit.lease_expires_at <= moment)


def _count_deaths(session: Session, *held: ColumnElement[bool]) -> None:
    ended = {"holder": None, "deaths": FleetUnit.deaths + 1, "lease_expires_at": None}
    note = f"its worker died {DEATHS_MAX} times"
    aside = {"state": "set_aside", "note": note, "finished_at": database_now(session), **ended}
    session.execute(update(FleetUnit).where(*held, FleetUnit.deaths + 1 >= DEATHS_MAX).values(aside))
    again = {"state": "queued", "note": "its worker died; another one will do it", **ended}
    session.execute(update(FleetUnit).where(*held).values(again))


def _end(session: Session, claim: UnitClaim, **values: Any) -> bool:
    ended = {"holder": None, "lease_expires_at": None, "finished_at": database_now(session)}
    return _write(session, claim, **ended, **values)


def _write(session: Session, claim: UnitClaim, **values: Any) -> bool:
    valid = (
        FleetUnit.run_id == claim.run_id,
        FleetUnit.number == claim.number,
        FleetUnit.holder == claim.holder,
        FleetUnit.state == "running",
    )
    statement = update(FleetUnit).where(*valid).values(values).returning(FleetUnit.number)
    return session.scalar(statement) is not None
