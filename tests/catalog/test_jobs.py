"""Tests of the job queue in the database: claims, leases, and jobs of dead runners."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select, update
from sqlalchemy.orm import Session, undefer

from organs.registry.catalog.queries.jobs import is_anything_due, is_to_be_done, newest_jobs
from organs.registry.catalog.register.jobs import (
    JSON_MAX_BYTES,
    QUEUED_MAX,
    RETENTION,
    JobClaim,
    cancel_job,
    claim_job,
    enqueue_job,
    job_json,
    remove_old_jobs,
    report_progress,
)
from organs.registry.catalog.tables import JobRow, now
from organs.registry.catalog.vocabulary import TEXT_MAX
from organs.registry.catalog.work import JOBS, LEASE, fail, finish, put_back, renew
from organs.registry.errors import BadInput, BadQuery, Busy, NotFound, QueueFull
from organs.registry.local import LocalRegistry
from tests import postgres
from tests.clocks import local_clock

ROOT = Path(__file__).resolve().parents[2]


def enqueue(session: Session, kind: str = "report", **arguments: Any) -> int:
    return enqueue_job(session, kind, arguments)


def claim(session: Session, *kinds: str, alone: bool = False) -> JobClaim | None:
    return claim_job(session, kinds or ("report",), alone=alone)


def claimed(session: Session, *kinds: str, alone: bool = False) -> JobClaim:
    claimed_job = claim(session, *kinds, alone=alone)
    assert claimed_job is not None
    return claimed_job


def row(session: Session, job_id: int) -> JobRow:
    session.flush()
    session.expire_all()
    return session.get_one(JobRow, job_id, options=[undefer(JobRow.arguments), undefer(JobRow.result)])


def let_lease_end(session: Session) -> None:
    session.execute(
        update(JobRow).where(JobRow.state == "running").values(lease_expires_at=now() - timedelta(seconds=1))
    )


def test_jobs_are_claimed_in_the_order_of_their_requests(session: Session) -> None:
    ids = [enqueue(session, number=number) for number in range(3)]
    claims = [claimed(session) for _ in ids]
    assert [job.id for job in claims] == ids
    assert [job.arguments for job in claims] == [{"number": number} for number in range(3)]
    assert claim(session) is None


def test_a_runner_gets_only_jobs_of_its_own_kinds(session: Session) -> None:
    enqueue(session, "validate")
    assert claim(session, "report", "compose") is None
    assert claimed(session, "compose", "validate").kind == "validate"


def test_a_job_in_an_exclusive_lane_waits_until_the_runner_before_it_ends(session: Session) -> None:
    enqueue(session, "validate")
    enqueue(session, "validate")
    enqueue(session, "validate")
    ended = claimed(session, "validate", alone=True)
    assert claim(session, "validate", alone=True) is None
    assert finish(session, ended, "{}")
    first = claimed(session, "validate", alone=True)
    cancel_job(session, first.id)
    assert not renew(session, first)
    assert claim(session, "validate", alone=True) is None
    assert not put_back(session, first)
    assert claim(session, "validate", alone=True) is not None
    assert row(session, first.id).state == "cancelled"


def test_a_job_is_refused_while_the_queue_is_full(session: Session) -> None:
    for _ in range(QUEUED_MAX):
        enqueue(session)
    with pytest.raises(QueueFull, match=f"{QUEUED_MAX} jobs wait already") as caught:
        enqueue(session)
    assert isinstance(caught.value, Busy)
    claimed(session)
    enqueue(session)


def test_the_size_of_arguments_is_limited(session: Session) -> None:
    most = "x" * (JSON_MAX_BYTES - len('{"text":""}'))
    assert len(claimed_text(session, most)) == len(most)
    with pytest.raises(BadInput, match="1,048,577 bytes; 1,048,576 are allowed"):
        enqueue(session, text=most + "x")


def claimed_text(session: Session, text: str) -> str:
    enqueue(session, text=text)
    found = claimed(session).arguments["text"]
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", {1, 2}])
def test_arguments_that_are_not_json_are_refused(value: object) -> None:
    with pytest.raises(BadInput, match="must be JSON"):
        job_json({"value": value}, "arguments")


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "ü" * 100, "'; DROP TABLE jobs; --"])
def test_any_text_in_arguments_reads_back_unchanged(text: str, session: Session) -> None:
    assert claimed_text(session, text) == text


def test_the_job_of_a_dead_runner_is_tried_once_more_and_then_fails(session: Session) -> None:
    job_id = enqueue(session)
    first = claimed(session)
    assert claim(session) is None
    let_lease_end(session)
    second = claimed(session)
    assert (second.id, first.attempt, second.attempt) == (job_id, 1, 2)
    assert row(session, job_id).note == JOBS.died
    let_lease_end(session)
    assert claim(session, "another") is None, "each runner notices it"
    job = row(session, job_id)
    assert (job.state, job.note, job.lease_expires_at) == ("failed", JOBS.abandoned_note, None)
    assert job.finished_at is not None


@pytest.mark.parametrize("how", ["its lease ended", "it put the job back", "it finished the job", "it failed"])
def test_a_runner_that_lost_its_job_can_no_longer_change_it(how: str, session: Session) -> None:
    enqueue(session)
    slow = claimed(session)
    lose: dict[str, Callable[[Session], bool]] = {
        "it put the job back": lambda session: put_back(session, slow),
        "it finished the job": lambda session: finish(session, slow, '{"by":"slow"}'),
        "it failed": lambda session: fail(session, slow, "early"),
    }
    if how in lose:
        assert lose[how](session)
    else:
        let_lease_end(session)
    other = claim(session)
    assert (other is None) == (how in ("it finished the job", "it failed"))
    state = row(session, slow.id).state
    assert not renew(session, slow)
    assert not report_progress(session, slow, 0.9, "late")
    assert not finish(session, slow, '{"by":"late"}')
    assert not fail(session, slow, "late")
    assert not put_back(session, slow)
    job = row(session, slow.id)
    assert (job.state, job.progress) == (state, 0)
    assert "late" not in f"{job.note}{job.result}"
    if other is not None:
        assert other.attempt == slow.attempt + (how == "its lease ended")
        assert finish(session, other, '{"by":"other"}')
        assert (row(session, slow.id).state, row(session, slow.id).result) == ("finished", '{"by":"other"}')


def test_a_lease_that_is_renewed_does_not_end(session: Session) -> None:
    enqueue(session)
    held = claimed(session)
    let_lease_end(session)
    assert renew(session, held)
    expires = row(session, held.id).lease_expires_at
    assert expires is not None
    assert timedelta(seconds=0) < expires - now() <= LEASE
    assert claim(session) is None


def test_a_job_that_is_put_back_waits_like_a_new_job(session: Session) -> None:
    enqueue(session)
    for _ in range(5):
        held = claimed(session)
        assert held.attempt == 1
        assert report_progress(session, held, 0.5, "half")
        assert put_back(session, held, progress=0.0)
    job = row(session, held.id)
    assert (job.state, job.progress, job.note, job.lease_expires_at) == ("queued", 0.0, "", None)


def test_a_waiting_job_is_cancelled_immediately_and_a_running_job_is_notified(session: Session) -> None:
    running, waiting = enqueue(session), enqueue(session)
    held = claimed(session)
    cancel_job(session, running)
    cancel_job(session, waiting)
    assert claim(session) is None
    assert not is_to_be_done(session, held)
    assert not report_progress(session, held, 0.5, "")
    assert not finish(session, held, "{}")
    assert [row(session, job_id).state for job_id in (running, waiting)] == ["cancelled", "cancelled"]


def test_a_finished_or_unknown_job_cannot_be_cancelled(session: Session) -> None:
    job_id = enqueue(session)
    held = claimed(session)
    finish(session, held, '{"a":1}')
    assert cancel_job(session, job_id).state == "finished"
    with pytest.raises(NotFound, match="no job 77"):
        cancel_job(session, 77)


def test_notes_are_cut_and_made_harmless(session: Session) -> None:
    enqueue(session)
    held = claimed(session)
    assert fail(session, held, "\0" + "x" * 2 * TEXT_MAX)
    note = row(session, held.id).note
    assert len(note) == TEXT_MAX
    assert "\0" not in note


def test_only_jobs_that_ended_long_ago_are_removed(session: Session) -> None:
    old, fresh, waiting = (enqueue(session) for _ in range(3))
    for _ in (old, fresh):
        held = claimed(session)
        finish(session, held, "{}")
    long_ago = now() - RETENTION - timedelta(minutes=1)
    session.execute(update(JobRow).where(JobRow.id == old).values(finished_at=long_ago))
    session.execute(update(JobRow).where(JobRow.id == waiting).values(created_at=long_ago))
    remove_old_jobs(session)
    assert list(session.scalars(select(JobRow.id).order_by(JobRow.id))) == [fresh, waiting]


def test_pages_of_jobs_are_newest_first_and_without_gaps(session: Session) -> None:
    ids = [enqueue(session) for _ in range(7)]
    found: list[int] = []
    after = None
    while True:
        page = newest_jobs(session, 3, after)
        found += [job.id for job in page]
        if page.next is None:
            break
        after = page.next
    assert found == ids[::-1]
    with pytest.raises(BadQuery):
        newest_jobs(session, 3, "'; DROP TABLE jobs; --")


def test_a_list_of_jobs_does_not_read_arguments_and_results(session: Session) -> None:
    enqueue(session)
    heard: list[str] = []
    event.listen(session.get_bind(), "before_cursor_execute", lambda *told: heard.append(told[2]))
    newest_jobs(session, 10)
    (statement,) = [statement for statement in heard if "jobs" in statement]
    assert "jobs.note" in statement
    assert "jobs.arguments" not in statement
    assert "jobs.result" not in statement


@pytest.mark.parametrize("first_hours", [-1, 0, 1])
def test_servers_whose_clocks_differ_never_claim_one_job_twice(first_hours: int, session: Session) -> None:
    job_id = enqueue(session)
    with local_clock(first_hours):
        held = claimed(session)
    for hours in (-1, 0, 1):
        with local_clock(hours):
            assert not is_anything_due(session)
            assert claim(session) is None
    assert finish(session, held, "{}")
    assert (held.id, row(session, job_id).state) == (job_id, "finished")


def test_only_waiting_and_abandoned_jobs_are_due(session: Session) -> None:
    def due() -> bool:
        return is_anything_due(session, ["report"])

    enqueue(session, "validate")
    assert not due()
    enqueue(session)
    assert due()
    held = claimed(session)
    assert not due()
    let_lease_end(session)
    assert due()
    held = claimed(session)
    finish(session, held, "{}")
    assert not due()


TAKE_ALL = """
import sys
from organs.registry.catalog.register.jobs import claim_job
from organs.registry.local import LocalRegistry
with LocalRegistry.open() as registry:
    while True:
        with registry.catalog.writing() as session:
            found = claim_job(session, [sys.argv[1]], alone=sys.argv[1] == "validate")
        if found is None:
            break
        print(found.id)
"""


@pytest.mark.long
@pytest.mark.parametrize(("kind", "taken"), [("report", 60), ("validate", 1)])
def test_concurrent_processes_never_claim_the_same_job(kind: str, taken: int, registry: LocalRegistry) -> None:
    with registry.catalog.writing() as session:
        ids = [enqueue(session, kind) for _ in range(60)]
    command = [sys.executable, "-c", TAKE_ALL, kind]
    environment = {**os.environ, **postgres.environment(registry.settings.home)}
    running = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    claimed_ids = [int(line) for process in running for line in process.communicate(timeout=120)[0].split()]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(claimed_ids) == len(set(claimed_ids)) == taken
    assert set(claimed_ids) <= set(ids)
