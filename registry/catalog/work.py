"""The queue under jobs, answers to prompts, units of fleets and trials of evolutions.

Claims are kept alive by leases that a thread renews.

A process holds a row of work under a random text, its `holder`, until it ends the work:

    queued  -> claim_next -> running
    running -> finish     -> done (the word of a job is `finished`)
    running -> fail       -> failed
    running -> put_back   -> queued, at once or after a delay
    running -> release    -> queued, because the process that manages its worker ends
    running -> recover    -> queued, because its process died; after `deaths_max` deaths: abandoned

All times are those of the database. The functions take a writing session, of which there is one at a time, so that two
processes get different work. This is beside `queries` and `register`, because both need the same conditions.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, and_, delete, inspect, or_, select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.engine import Catalog, database_now
from organs.registry.catalog.rows import insert_missing
from organs.registry.catalog.tables import AnswerRow, FleetUnit, Ingest, JobRow, NamedLease, TrialRow, WorkColumns
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.errors import Busy, OrganError

LEASE = timedelta(seconds=60)
"""A process that has not renewed its lease for this time counts as dead."""
RENEW_SECONDS = 15.0
"""A quarter of the lease: three renewals may fail."""
WRITE_TRIES = 4
"""Attempts to write how work ended; if all fail, it is done again when its lease has expired."""
RETRY_SECONDS = 5.0
"""The pause before the next attempt after an error of the database."""

_log = logging.getLogger(__name__)

W = TypeVar("W", bound=WorkColumns)


@dataclass(frozen=True, slots=True)
class Queue(Generic[W]):
    """A table of work, its words, and what becomes of work whose process died."""

    table: type[W]
    done: str
    """The state of work that is done."""
    died: str
    """The note of work that is queued again because its process died."""
    deaths_max: int
    """Work that has killed this number of processes is not done again."""
    abandoned: str
    """The state of such work."""
    abandoned_note: str


JOBS = Queue(
    table=JobRow,
    done="finished",
    died="its runner died; it will run once more",
    deaths_max=2,
    abandoned="failed",
    abandoned_note="its runner died twice",
)
UNITS = Queue(
    table=FleetUnit,
    done="done",
    died="its worker died; another one will do it",
    deaths_max=3,
    abandoned="set_aside",
    abandoned_note="its worker died 3 times",
)


ANSWERS = Queue(
    table=AnswerRow,
    done="finished",
    died="its runner died; it will run once more",
    deaths_max=2,
    abandoned="failed",
    abandoned_note="its runner died twice",
)
TRIALS = Queue(
    table=TrialRow,
    done="done",
    died="its process died; another one will do it",
    deaths_max=3,
    abandoned="set_aside",
    abandoned_note="its process died 3 times",
)


@dataclass(frozen=True, slots=True)
class Claim:
    """Work that this process has claimed. It is valid until the work ends, or another process gets it."""

    queue: Queue[Any]
    key: tuple[int, ...]
    holder: str
    attempt: int


class WorkCancelled(Exception):
    """The work was cancelled, another process has it, or this process ends. Do not catch it."""


def is_alive(session: Session, table: type[WorkColumns | Ingest]) -> ColumnElement[bool]:
    """Return the condition for rows whose process still renews its lease."""
    return and_(table.state == "running", table.lease_expires_at > database_now(session))


def is_lost(session: Session, table: type[WorkColumns]) -> ColumnElement[bool]:
    """Return the condition for rows whose process died."""
    return and_(table.state == "running", table.lease_expires_at <= database_now(session))


def is_waiting(session: Session, table: type[WorkColumns]) -> ColumnElement[bool]:
    """Return the condition for rows that may be claimed now."""
    is_due = or_(table.lease_expires_at.is_(None), table.lease_expires_at <= database_now(session))
    return and_(table.state == "queued", is_due)


def claim_next(session: Session, queue: Queue[W], *among: ColumnElement[bool]) -> W | None:
    """Claim the first row that waits, of those that fulfil the conditions; None if none waits.

    Rows of dead processes are queued again first.
    """
    recover(session, queue, *among)
    work, moment = queue.table, database_now(session)
    waiting = select(work).where(*among, is_waiting(session, work)).order_by(*inspect(work).primary_key)
    row = session.scalars(waiting.limit(1).with_for_update(skip_locked=True)).one_or_none()
    if row is not None:
        row.state, row.holder, row.attempts = "running", secrets.token_hex(16), row.attempts + 1
        row.started_at, row.finished_at, row.lease_expires_at = moment, None, moment + LEASE
    return row


def claimed(session: Session, claim: Claim) -> WorkColumns | None:
    """Return the row while the claim is valid. The state of cancelled work that has not stopped is `cancelled`."""
    row: WorkColumns | None = session.get(claim.queue.table, claim.key, with_for_update=True)
    return row if row is not None and row.holder == claim.holder else None


def renew(session: Session, claim: Claim) -> bool:
    """Renew the lease; return whether the work is still to be done. Cancelled work is leased until it has stopped."""
    row = claimed(session, claim)
    if row is None:
        return False
    row.lease_expires_at = database_now(session) + LEASE
    return row.state == "running"


def finish(session: Session, claim: Claim, result: str, **columns: object) -> bool:
    """Record that the work is done, with its result as JSON; return False if the claim was no longer valid.

    `columns` are values of further columns, such as `size_bytes`. The same holds for `fail` and `put_back`.
    """
    return _end(session, claim, state=claim.queue.done, note="", result=result, **columns)


def fail(session: Session, claim: Claim, sentence: str, **columns: object) -> bool:
    """Record why the work failed."""
    return _end(session, claim, state="failed", note=shown_text(sentence), **columns)


def put_back(session: Session, claim: Claim, note: str = "", delay: timedelta | None = None, **columns: object) -> bool:
    """Queue the work again because its process ends, or for the reason in `note`; then the attempt does not count.

    With `delay`, it counts, and the work waits for that time.
    """
    if delay is None:
        columns["attempts"] = claim.attempt - 1
    else:
        columns["lease_expires_at"] = database_now(session) + delay
    return _end(session, claim, state="queued", note=shown_text(note), **columns)


def _end(session: Session, claim: Claim, **columns: object) -> bool:
    """End the claim; return whether it was valid. Cancelled work does not change."""
    row = claimed(session, claim)
    if row is None:
        return False
    row.holder = row.lease_expires_at = None
    if row.state != "running":
        return False
    for name, value in columns.items():
        setattr(row, name, value)
    if row.state != "queued":
        row.finished_at = database_now(session)
    return True


def recover(session: Session, queue: Queue[W], *among: ColumnElement[bool]) -> None:
    """Queue work whose process died again; abandon it after the last death that the queue allows."""
    count_deaths(session, queue, *among, is_lost(session, queue.table))


def count_deaths(session: Session, queue: Queue[W], *held: ColumnElement[bool]) -> None:
    """Do what `recover` does for work whose process is known to be dead, whatever its lease."""
    work = queue.table
    ended = {"holder": None, "deaths": work.deaths + 1, "lease_expires_at": None}
    abandoned = {"state": queue.abandoned, "note": queue.abandoned_note, "finished_at": database_now(session), **ended}
    session.execute(update(work).where(*held, work.deaths + 1 >= queue.deaths_max).values(abandoned))
    session.execute(update(work).where(*held).values(state="queued", note=queue.died, **ended))


def release(session: Session, queue: Queue[W], *held: ColumnElement[bool]) -> None:
    """Do what `put_back` does for running work of other processes, which notice it and stop."""
    work = queue.table
    again = {"state": "queued", "holder": None, "attempts": work.attempts - 1, "lease_expires_at": None}
    session.execute(update(work).where(*held, work.state == "running").values(again))


@contextmanager
def keeping(
    catalog: Catalog,
    renewal: Callable[[Session], bool],
    name: str,
    seconds: float | None = None,
    *,
    counts: bool = False,
) -> Iterator[threading.Event]:
    """Renew a lease in a thread during the block; the event is set when `renewal` returns that it is lost.

    `seconds` is the time between two renewals, by default RENEW_SECONDS. `counts` says that no cached answer depends on
    the row.
    """
    transaction = catalog.counting if counts else catalog.writing
    ended, lost = threading.Event(), threading.Event()

    def keep() -> None:
        while not ended.wait(RENEW_SECONDS if seconds is None else seconds):
            with suppress(OrganError), transaction() as session:  # the next attempt may succeed in time
                if not renewal(session):
                    lost.set()

    keeper = threading.Thread(target=keep, name=name, daemon=True)
    keeper.start()
    try:
        yield lost
    finally:
        ended.set()
        keeper.join()


def write_end(
    catalog: Catalog, write: Callable[[Session], bool], stop: threading.Event, tries: int = WRITE_TRIES
) -> bool:
    """Write how work ended, and again after errors of the database; return False if `write` does or all attempts fail.

    When `stop` is set, there are no pauses.
    """
    for _ in range(tries):
        try:
            with catalog.writing() as session:
                return write(session)
        except OrganError as error:
            _log.error("the end of work cannot be recorded: %s", error)
            stop.wait(RETRY_SECONDS)
    return False


def is_held(session: Session, name: str) -> bool:
    """Return whether a process holds `name`, as in `exclusive`."""
    among = (NamedLease.name == name, NamedLease.expires_at >= database_now(session))
    return session.scalar(select(NamedLease.name).where(*among)) is not None


@contextmanager
def exclusive(catalog: Catalog, name: str) -> Iterator[None]:
    """Hold `name` during the block; other processes, of any machine, get Busy."""
    holder = secrets.token_hex(16)
    own = (NamedLease.name == name, NamedLease.holder == holder)

    def renewal(session: Session) -> bool:
        session.execute(update(NamedLease).where(*own).values(expires_at=database_now(session) + LEASE))
        return True

    with catalog.writing() as session:
        moment = database_now(session)
        insert_missing(session, NamedLease, [{"name": name, "holder": holder, "expires_at": moment + LEASE}])
        expired = update(NamedLease).where(NamedLease.name == name, NamedLease.expires_at < moment)
        session.execute(expired.values(holder=holder, expires_at=moment + LEASE))
        if session.scalar(select(NamedLease.name).where(*own)) is None:
            raise Busy(f"another process holds the lease {name!r}: wait until it ends")
    try:
        with keeping(catalog, renewal, f"lease {name}"):
            yield
    finally:
        with suppress(OrganError), catalog.writing() as session:  # otherwise it expires
            session.execute(delete(NamedLease).where(*own))
