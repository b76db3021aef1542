"""Tests of the job queue in the database: claims, leases, and jobs of dead runners."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, select, update
from sqlalchemy.orm import Session, undefer

from organs.registry.catalog.queries.jobs import has_jobs, is_anything_due, is_to_be_done, newest_jobs
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


def enqueue(registry: LocalRegistry, kind: str = "report", **arguments: Any) -> int:
    with registry.catalog.writing() as session:
        return enqueue_job(session, kind, arguments)


def claim(registry: LocalRegistry, *kinds: str, alone: bool = False) -> JobClaim | None:
    with registry.catalog.writing() as session:
        return claim_job(session, kinds or ("report",), alone=alone)


def claimed(registry: LocalRegistry, *kinds: str, alone: bool = False) -> JobClaim:
    claimed_job = claim(registry, *kinds, alone=alone)
    assert claimed_job is not None
    return claimed_job


def row(registry: LocalRegistry, job_id: int) -> JobRow:
    with registry.catalog.reading() as session:
        return session.get_one(JobRow, job_id, options=[undefer(JobRow.arguments), undefer(JobRow.result)])


def let_lease_end(registry: LocalRegistry) -> None:
    with registry.catalog.writing() as session:
        session.execute(
            update(JobRow).where(JobRow.state == "running").values(lease_expires_at=now() - timedelta(seconds=1))
        )


def test_jobs_are_claimed_in_the_order_of_their_requests(registry: LocalRegistry) -> None:
    ids = [enqueue(registry, number=number) for number in range(3)]
    claims = [claimed(registry) for _ in ids]
    assert [job.id for job in claims] == ids
    assert [job.arguments for job in claims] == [{"number": number} for number in range(3)]
    assert claim(registry) is None


def test_a_runner_gets_only_jobs_of_its_own_kinds(registry: LocalRegistry) -> None:
    enqueue(registry, "validate")
    assert claim(registry, "report", "compose") is None
    assert claimed(registry, "compose", "validate").kind == "validate"


def test_a_job_in_an_exclusive_lane_waits_until_the_runner_before_it_ends(registry: LocalRegistry) -> None:
    enqueue(registry, "validate")
    enqueue(registry, "validate")
    enqueue(registry, "validate")
    ended = claimed(registry, "validate", alone=True)
    assert claim(registry, "validate", alone=True) is None
    with registry.catalog.writing() as session:
        assert finish(session, ended, "{}")
    first = claimed(registry, "validate", alone=True)
    with registry.catalog.writing() as session:
        cancel_job(session, first.id)
        assert not renew(session, first)
    assert claim(registry, "validate", alone=True) is None
    with registry.catalog.writing() as session:
        assert not put_back(session, first)
    assert claim(registry, "validate", alone=True) is not None
    assert row(registry, first.id).state == "cancelled"


def test_a_job_is_refused_while_the_queue_is_full(registry: LocalRegistry) -> None:
    for _ in range(QUEUED_MAX):
        enqueue(registry)
    with pytest.raises(QueueFull, match=f"{QUEUED_MAX} jobs wait already") as caught:
        enqueue(registry)
    assert isinstance(caught.value, Busy)
    claimed(registry)
    enqueue(registry)


def test_the_size_of_arguments_is_limited(registry: LocalRegistry) -> None:
    most = "x" * (JSON_MAX_BYTES - len('{"text":""}'))
    assert len(claimed_text(registry, most)) == len(most)
    with pytest.raises(BadInput, match="1,048,577 bytes; 1,048,576 are allowed"):
        enqueue(registry, text=most + "x")


def claimed_text(registry: LocalRegistry, text: str) -> str:
    enqueue(registry, text=text)
    found = claimed(registry).arguments["text"]
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", {1, 2}])
def test_arguments_that_are_not_json_are_refused(value: object) -> None:
    with pytest.raises(BadInput, match="must be JSON"):
        job_json({"value": value}, "arguments")


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "ü" * 100, "'; DROP TABLE jobs; --"])
def test_any_text_in_arguments_reads_back_unchanged(text: str, registry: LocalRegistry) -> None:
    assert claimed_text(registry, text) == text


def test_the_job_of_a_dead_runner_is_tried_once_more_and_then_fails(registry: LocalRegistry) -> None:
    job_id = enqueue(registry)
    first = claimed(registry)
    assert claim(registry) is None
    let_lease_end(registry)
    second = claimed(registry)
    assert (second.id, first.attempt, second.attempt) == (job_id, 1, 2)
    assert row(registry, job_id).note == JOBS.died
    let_lease_end(registry)
    assert claim(registry, "another") is None, "each runner notices it"
    job = row(registry, job_id)
    assert (job.state, job.note, job.lease_expires_at) == ("failed", JOBS.abandoned_note, None)
    assert job.finished_at is not None


@pytest.mark.parametrize("how", ["its lease ended", "it put the job back", "it finished the job", "it failed"])
def test_a_runner_that_lost_its_job_can_no_longer_change_it(how: str, registry: LocalRegistry) -> None:
    enqueue(registry)
    slow = claimed(registry)
    lose: dict[str, Callable[[Session], bool]] = {
        "it put the job back": lambda session: put_back(session, slow),
        "it finished the job": lambda session: finish(session, slow, '{"by":"slow"}'),
        "it failed": lambda session: fail(session, slow, "early"),
    }
    if how in lose:
        with registry.catalog.writing() as session:
            assert lose[how](session)
    else:
        let_lease_end(registry)
    other = claim(registry)
    assert (other is None) == (how in ("it finished the job", "it failed"))
    before = row(registry, slow.id)
    with registry.catalog.writing() as session:
        assert not renew(session, slow)
        assert not report_progress(session, slow, 0.9, "late")
        assert not finish(session, slow, '{"by":"late"}')
        assert not fail(session, slow, "late")
        assert not put_back(session, slow)
    after = row(registry, slow.id)
    assert (after.state, after.progress, after.note) == (before.state, before.progress, before.note)
    if other is not None:
        assert other.attempt == slow.attempt + (how == "its lease ended")
        with registry.catalog.writing() as session:
            assert finish(session, other, '{"by":"other"}')
        assert (row(registry, slow.id).state, row(registry, slow.id).result) == ("finished", '{"by":"other"}')


def test_a_lease_that_is_renewed_does_not_end(registry: LocalRegistry) -> None:
    enqueue(registry)
    held = claimed(registry)
    let_lease_end(registry)
    with registry.catalog.writing() as session:
        assert renew(session, held)
    expires = row(registry, held.id).lease_expires_at
    assert expires is not None
    assert timedelta(seconds=0) < expires - now() <= LEASE
    assert claim(registry) is None


def test_a_job_that_is_put_back_waits_like_a_new_job(registry: LocalRegistry) -> None:
    enqueue(registry)
    for _ in range(5):
        held = claimed(registry)
        assert held.attempt == 1
        with registry.catalog.writing() as session:
            assert report_progress(session, held, 0.5, "half")
            assert put_back(session, held, progress=0.0)
    job = row(registry, held.id)
    assert (job.state, job.progress, job.note, job.lease_expires_at) == ("queued", 0.0, "", None)


def test_a_waiting_job_is_cancelled_immediately_and_a_running_job_is_notified(registry: LocalRegistry) -> None:
    running, waiting = enqueue(registry), enqueue(registry)
    held = claimed(registry)
    with registry.catalog.writing() as session:
        cancel_job(session, running)
        cancel_job(session, waiting)
    assert claim(registry) is None
    with registry.catalog.reading() as session:
        assert not is_to_be_done(session, held)
    with registry.catalog.writing() as session:
        assert not report_progress(session, held, 0.5, "")
        assert not finish(session, held, "{}")
    assert [row(registry, job_id).state for job_id in (running, waiting)] == ["cancelled", "cancelled"]


def test_a_finished_or_unknown_job_cannot_be_cancelled(registry: LocalRegistry) -> None:
    job_id = enqueue(registry)
    held = claimed(registry)
    with registry.catalog.writing() as session:
        finish(session, held, '{"a":1}')
    with registry.catalog.writing() as session:
        assert cancel_job(session, job_id).state == "finished"
    with registry.catalog.writing() as session, pytest.raises(NotFound, match="no job 77"):
        cancel_job(session, 77)


def test_notes_are_cut_and_made_harmless(registry: LocalRegistry) -> None:
    enqueue(registry)
    held = claimed(registry)
    with registry.catalog.writing() as session:
        assert fail(session, held, "\0" + "x" * 2 * TEXT_MAX)
    note = row(registry, held.id).note
    assert len(note) == TEXT_MAX
    assert "\0" not in note


def test_only_jobs_that_ended_long_ago_are_removed(registry: LocalRegistry) -> None:
    old, fresh, waiting = (enqueue(registry) for _ in range(3))
    for _ in (old, fresh):
        held = claimed(registry)
        with registry.catalog.writing() as session:
            finish(session, held, "{}")
    long_ago = now() - RETENTION - timedelta(minutes=1)
    with registry.catalog.writing() as session:
        session.execute(update(JobRow).where(JobRow.id == old).values(finished_at=long_ago))
        session.execute(update(JobRow).where(JobRow.id == waiting).values(created_at=long_ago))
        remove_old_jobs(session)
        assert list(session.scalars(select(JobRow.id).order_by(JobRow.id))) == [fresh, waiting]


def test_pages_of_jobs_are_newest_first_and_without_gaps(registry: LocalRegistry) -> None:
    with registry.catalog.reading() as session:
        assert not has_jobs(session)
    ids = [enqueue(registry) for _ in range(7)]
    found: list[int] = []
    after = None
    while True:
        with registry.catalog.reading() as session:
            assert has_jobs(session)
            page = newest_jobs(session, 3, after)
        found += [job.id for job in page]
        if page.next is None:
            break
        after = page.next
    assert found == ids[::-1]
    with registry.catalog.reading() as session, pytest.raises(BadQuery):
        newest_jobs(session, 3, "'; DROP TABLE jobs; --")


def test_a_list_of_jobs_does_not_read_arguments_and_results(registry: LocalRegistry) -> None:
    enqueue(registry)
    heard: list[str] = []
    event.listen(registry.catalog.reader, "before_cursor_execute", lambda *told: heard.append(told[2]))
    with registry.catalog.reading() as session:
        newest_jobs(session, 10)
    (statement,) = [statement for statement in heard if "jobs" in statement]
    assert "jobs.note" in statement
    assert "jobs.arguments" not in statement
    assert "jobs.result" not in statement


@pytest.mark.parametrize("first_hours", [-1, 0, 1])
def test_servers_whose_clocks_differ_never_claim_one_job_twice(first_hours: int, registry: LocalRegistry) -> None:
    job_id = enqueue(registry)
    with local_clock(first_hours):
        held = claimed(registry)
    for hours in (-1, 0, 1):
        with local_clock(hours), registry.catalog.reading() as session:
            assert not is_anything_due(session)
        with local_clock(hours):
            assert claim(registry) is None
    with registry.catalog.writing() as session:
        assert finish(session, held, "{}")
    assert (held.id, row(registry, job_id).state) == (job_id, "finished")


def test_only_waiting_and_abandoned_jobs_are_due(registry: LocalRegistry) -> None:
    def due() -> bool:
        with registry.catalog.reading() as session:
            return is_anything_due(session, ["report"])

    enqueue(registry, "validate")
    assert not due()
    enqueue(registry)
    assert due()
    held = claimed(registry)
    assert not due()
    let_lease_end(registry)
    assert due()
    held = claimed(registry)
    with registry.catalog.writing() as session:
        finish(session, held, "{}")
    assert not due()


def test_concurrent_threads_never_claim_the_same_job(registry: LocalRegistry) -> None:
    ids = [enqueue(registry) for _ in range(QUEUED_MAX)]

    def take_all(_number: int) -> list[int]:
        claims = []
        while (found := claim(registry)) is not None:
            claims.append(found.id)
        return claims

    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(take_all, range(8)))
    assert sorted(job_id for some in claims for job_id in some) == ids


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
    ids = [enqueue(registry, kind) for _ in range(60)]
    command = [sys.executable, "-c", TAKE_ALL, kind]
    environment = {**os.environ, **postgres.environment(registry.settings.home)}
    running = [
        subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    claimed_ids = [int(line) for process in running for line in process.communicate(timeout=120)[0].split()]
    assert [process.returncode for process in running] == [0, 0, 0]
    assert len(claimed_ids) == len(set(claimed_ids)) == taken
    assert set(claimed_ids) <= set(ids)
