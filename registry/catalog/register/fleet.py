"""The ledger of a fleet: its runs, and their units, which `registry.catalog.work` claims and ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.engine import database_now
from organs.registry.catalog.queries.fleet import has_live_workers
from organs.registry.catalog.rows import batches, first, insert_all
from organs.registry.catalog.tables import FleetRunRow, FleetUnit
from organs.registry.catalog.vocabulary import checked_text, shown_text
from organs.registry.catalog.work import (
    UNITS,
    Claim,
    claim_next,
    count_deaths,
    fail,
    finish,
    put_back,
    recover,
    release,
)
from organs.registry.errors import BadInput, Conflict

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
class UnitClaim(Claim):
    """A unit that a worker has claimed."""

    work: str
    source: str


def start_run(session: Session, name: str, digest: str, units: Sequence[NewUnit]) -> tuple[int, bool]:
    """Return the id of the run with this digest, and whether it is new. A new one gets all `units`, queued.

    Raises BadInput for too many units, BadValue for texts that are too long or not valid.
    """
    known = session.scalar(select(FleetRunRow.id).where(FleetRunRow.digest == digest))
    if known is not None:
        return known, False
    if not 0 < len(units) <= UNITS_MAX:
        raise BadInput(f"a plan has 1 to {UNITS_MAX:,} units of work, not {len(units):,}")
    moment = database_now(session)
    has_open_units = FleetRunRow.id.in_(select(FleetUnit.run_id).where(FleetUnit.state.in_(("queued", "running"))))
    session.execute(delete(FleetRunRow).where(FleetRunRow.created_at < moment - RETENTION, ~has_open_units))
    run = FleetRunRow(name=checked_text(name, "the name of the plan", 96), digest=digest, created_at=moment)
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
        insert_all(session, FleetUnit, batch)
    return run.id, True


def remove_run(session: Session, run_id: int) -> None:
    """Remove a run with its units. Raises Conflict while workers do some of them."""
    if has_live_workers(session, run_id):
        raise Conflict(f"units of run {run_id} are running: stop its command first")
    session.execute(delete(FleetRunRow).where(FleetRunRow.id == run_id))


def set_dashboard(session: Session, run_id: int, dashboard: str) -> None:
    """Record the address of Dask's page about the run; other addresses than those of http and https are not."""
    if dashboard.startswith(("http://", "https://")) and len(dashboard) <= 256:
        session.execute(
            update(FleetRunRow).where(FleetRunRow.id == run_id).values(dashboard=shown_text(dashboard, 256))
        )


def claim_unit(session: Session, run_id: int, worker: str, version: str, number: int | None = None) -> UnitClaim | None:
    """Claim the unit `number`, by default the first one that waits; None if it is not to be done now."""
    among = [FleetUnit.run_id == run_id]
    if number is not None:
        among.append(FleetUnit.number == number)
    row = claim_next(session, UNITS, *among)
    if row is None:
        return None
    assert row.holder is not None
    row.worker, row.version = shown_text(worker, 96), shown_text(version, 96)
    return UnitClaim(UNITS, (run_id, row.number), row.holder, row.attempts, row.work, row.source)


def finish_unit(session: Session, claim: UnitClaim, result: str, size_bytes: int | None = None) -> bool:
    """Record that the unit is done, with its result as JSON, and the bytes of its files if they were unknown.

    Raises BadInput for a result that is too large.
    """
    if len(result.encode()) > RESULT_MAX_BYTES:
        raise BadInput(f"the result of a unit has more than {RESULT_MAX_BYTES:,} bytes")
    return finish(session, claim, result, size_bytes=func.coalesce(FleetUnit.size_bytes, size_bytes))


def postpone_unit(session: Session, claim: UnitClaim, sentence: str) -> bool:
    """Queue the unit again after a temporary error, for a later time; after ATTEMPTS_MAX attempts, it fails."""
    if claim.attempt >= ATTEMPTS_MAX:
        return fail(session, claim, f"after {claim.attempt} attempts: {sentence}")
    return put_back(session, claim, sentence, min(DELAY * 2 ** (claim.attempt - 1), DELAY_MAX))


def recover_units(session: Session, run_id: int) -> None:
    """Queue the units of dead workers again, or set them aside."""
    recover(session, UNITS, FleetUnit.run_id == run_id)


def put_back_units(session: Session, run_id: int, numbers: Sequence[int]) -> None:
    """Queue these units again if they run, because their driver ends."""
    for batch in batches(numbers):
        release(session, UNITS, FleetUnit.run_id == run_id, FleetUnit.number.in_(batch))


def end_worker(session: Session, run_id: int, worker: str, *, died: bool) -> bool:
    """Queue the unit of a worker that has ended again; count a death if it `died`. Return whether it had one."""
    held = (FleetUnit.run_id == run_id, FleetUnit.state == "running", FleetUnit.worker == worker)
    had_unit = first(session, select(FleetUnit.number).where(*held)) is not None
    if died:
        count_deaths(session, UNITS, *held)
    else:
        release(session, UNITS, *held)
    return had_unit


def retry_units(session: Session, run_id: int) -> int:
    """Queue the units that failed or were set aside again, as if they were new; return their number."""
    ended = (FleetUnit.run_id == run_id, FleetUnit.state.in_(("failed", "set_aside")))
    fresh = {"state": "queued", "attempts": 0, "deaths": 0, "note": "", "lease_expires_at": None, "finished_at": None}
    numbers = session.scalars(update(FleetUnit).where(*ended).values(fresh).returning(FleetUnit.number))
    return len(numbers.all())
