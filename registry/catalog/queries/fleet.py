"""Runs of fleets with their progress, units that a driver can submit, and the models that a plan can name."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta

from msgspec.structs import asdict
from sqlalchemy import ColumnElement, case, func, select
from sqlalchemy.orm import Session

from organs.registry.catalog.engine import database_now
from organs.registry.catalog.rows import count, entity_of, page_of_rows
from organs.registry.catalog.tables import FleetRunRow, FleetUnit, ModelRow
from organs.registry.catalog.vocabulary import FLEET_UNIT_STATES
from organs.registry.catalog.work import is_alive, is_lost, is_waiting
from organs.registry.entities.fleet import FleetFailure, FleetRun, FleetRunPage, FleetRunSummary, FleetWorker
from organs.registry.errors import NoSuchRun

RATE_WINDOW = timedelta(minutes=10)
"""The time over which the speed of a run is measured."""
FAILURES_SHOWN, WORKERS_SHOWN = 200, 200
NOTE_SHOWN = 1000
"""The most characters of a source and of a reason in a list."""


def fleet_runs(session: Session, limit: int, after: str | None = None) -> FleetRunPage:
    """Return the next `limit` runs after the cursor `after`, newest first. Raises BadQuery."""
    rows, following = page_of_rows(session, select(FleetRunRow), "fleet runs", limit, after)
    return FleetRunPage(items=tuple(_summary(session, row) for (row,) in rows), next=following)


def fleet_run(session: Session, run_id: int) -> FleetRun:
    """Return the run with its failures and its workers, those that were seen last first. Raises NoSuchRun."""
    row = session.get(FleetRunRow, run_id)
    if row is None:
        raise NoSuchRun(f"there is no run {run_id} of a fleet")
    summary = _summary(session, row)
    failed = (FleetUnit.run_id == run_id, FleetUnit.state.in_(("failed", "set_aside")))
    failures = tuple(
        entity_of(FleetFailure, unit, source=unit.source[:NOTE_SHOWN], note=unit.note[:NOTE_SHOWN])
        for unit in session.scalars(select(FleetUnit).where(*failed).order_by(FleetUnit.number).limit(FAILURES_SHOWN))
    )
    seen_at = func.max(func.coalesce(FleetUnit.finished_at, FleetUnit.started_at))
    running = func.sum(case((FleetUnit.state == "running", 1), else_=0))
    columns = (FleetUnit.worker, func.max(FleetUnit.version), func.count(), running, seen_at)
    grouped = select(*columns).where(FleetUnit.run_id == run_id, FleetUnit.worker.is_not(None))
    rows = session.execute(grouped.group_by(FleetUnit.worker).order_by(seen_at.desc(), FleetUnit.worker)).all()
    workers = tuple(
        FleetWorker(name=name or "", version=version, units=units, running=int(busy or 0), seen_at=seen)
        for name, version, units, busy, seen in rows[:WORKERS_SHOWN]
    )
    return FleetRun(
        **asdict(summary),
        dashboard=row.dashboard,
        failures=failures,
        failures_left_out=summary.failed + summary.set_aside - len(failures),
        workers=workers,
        workers_left_out=len(rows) - len(workers),
    )


def run_id_of(session: Session, text: str | None) -> int:
    """Return the id of the run with this number or this name, the newest one of several; None means the newest run.

    Raises NoSuchRun.
    """
    newest = select(FleetRunRow.id).order_by(FleetRunRow.id.desc()).limit(1)
    if text is None:
        found = session.scalar(newest)
    elif text.isascii() and text.isdigit() and len(text) < 19:
        found = session.scalar(newest.where(FleetRunRow.id == int(text)))
    else:
        found = session.scalar(newest.where(FleetRunRow.name == text))
    if found is None:
        raise NoSuchRun("there are no runs of fleets" if text is None else f"there is no run {text[:100]!r} of a fleet")
    return found


def run_digest(session: Session, run_id: int) -> str | None:
    """Return the digest of the plan of a run; None if there is no such run."""
    return session.scalar(select(FleetRunRow.digest).where(FleetRunRow.id == run_id))


def unfinished_runs(session: Session, name: str) -> list[int]:
    """Return the runs of plans with this name that have units to do, oldest first."""
    open_units = select(FleetUnit.run_id).where(FleetUnit.state.in_(("queued", "running")))
    statement = select(FleetRunRow.id).where(FleetRunRow.name == name, FleetRunRow.id.in_(open_units))
    return list(session.scalars(statement.order_by(FleetRunRow.id)))


def has_live_workers(session: Session, run_id: int) -> bool:
    """Return whether a unit runs, with a lease that has not expired."""
    return _is_any(session, run_id, is_alive(session, FleetUnit))


def has_dead_workers(session: Session, run_id: int) -> bool:
    """Return whether the lease of a running unit has expired."""
    return _is_any(session, run_id, is_lost(session, FleetUnit))


def _is_any(session: Session, run_id: int, condition: ColumnElement[bool]) -> bool:
    statement = select(FleetUnit.number).where(FleetUnit.run_id == run_id, condition).limit(1)
    return session.scalar(statement) is not None


def due_units(
    session: Session, run_id: int, limit: int, *, but: Collection[int] = (), among: Collection[int] | None = None
) -> list[int]:
    """Return the first `limit` units that a worker can claim now, without those in `but`, or only of those `among`."""
    due: list[int] = []
    # Two statements, because each reads only an end of the index: most units of a run may have ended.
    for condition in (is_waiting(session, FleetUnit), is_lost(session, FleetUnit)):
        statement = select(FleetUnit.number).where(FleetUnit.run_id == run_id, condition)
        if but:
            statement = statement.where(FleetUnit.number.not_in(but))
        if among is not None:
            statement = statement.where(FleetUnit.number.in_(among))
        due += session.scalars(statement.order_by(FleetUnit.number).limit(limit - len(due))).all()
    return due


def count_unfinished(session: Session, run_id: int) -> int:
    """Return the number of units that wait or run."""
    return count(session, FleetUnit, FleetUnit.run_id == run_id, FleetUnit.state.in_(("queued", "running")))


def model_names(session: Session, limit: int) -> dict[str, int]:
    """Return the ids of the visible models by full name, oldest first, at most `limit`."""
    columns = (ModelRow.namespace, ModelRow.name, ModelRow.version, ModelRow.id)
    rows = session.execute(select(*columns).where(ModelRow.state == "visible").order_by(ModelRow.id).limit(limit))
    return {f"{namespace}/{name}@{version}": model_id for namespace, name, version, model_id in rows}


def _summary(session: Session, run: FleetRunRow) -> FleetRunSummary:
    columns = (FleetUnit.state, func.count(), func.sum(FleetUnit.size_bytes))
    rows = session.execute(select(*columns).where(FleetUnit.run_id == run.id).group_by(FleetUnit.state)).all()
    counts = dict.fromkeys(FLEET_UNIT_STATES, 0) | {state: units for state, units, _ in rows}
    sizes = {state: int(size or 0) for state, _, size in rows}
    remaining = counts["queued"] + counts["running"]
    units_a_second, bytes_a_second, ends_at = _speed(session, run.id, is_over=not remaining)
    if remaining:
        is_known = counts["running"] and units_a_second
        ends_at = database_now(session) + timedelta(seconds=remaining / units_a_second) if is_known else None
    return entity_of(
        FleetRunSummary,
        run,
        units=sum(counts.values()),
        **counts,
        size_bytes=sum(sizes.values()),
        done_bytes=sizes.get("done", 0),
        units_a_minute=round(60.0 * units_a_second, 2),
        bytes_a_second=round(bytes_a_second, 1),
        ends_at=ends_at,
    )


def _speed(session: Session, run_id: int, *, is_over: bool) -> tuple[float, float, datetime | None]:
    """Return the units and the bytes that are done in a second, and when the last unit ended.

    For a run that is over, all units count; else those of the last RATE_WINDOW.
    """
    bounds = select(func.min(FleetUnit.started_at), func.max(FleetUnit.finished_at)).where(FleetUnit.run_id == run_id)
    first, last = session.execute(bounds).one()
    if first is None:
        return 0.0, 0.0, last
    moment = database_now(session)
    begin, end = (first, last or moment) if is_over else (max(first, moment - RATE_WINDOW), moment)
    done = (FleetUnit.run_id == run_id, FleetUnit.state == "done", FleetUnit.finished_at >= begin)
    units, size = session.execute(select(func.count(), func.sum(FleetUnit.size_bytes)).where(*done)).one()
    seconds = max((end - begin).total_seconds(), 0.001)
    return units / seconds, int(size or 0) / seconds, last
