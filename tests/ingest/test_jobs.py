"""Tests of the job runner: results, cancellation, no job run twice, and kills."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from organs.ingest.jobs import runner
from organs.ingest.jobs.kinds import UPKEEP, VALIDATION, WORK, JobKind, is_repack_due
from organs.ingest.jobs.runner import (
    KINDS,
    JobEvent,
    Runner,
    add_job,
    progress_reporter,
)
from organs.registry.catalog import tables
from organs.registry.catalog.queries.jobs import job_by_id
from organs.registry.catalog.queries.relatives import models_to_repack
from organs.registry.catalog.register.accounts import add_contributor
from organs.registry.catalog.register.jobs import cancel_job, claim_job, enqueue_job
from organs.registry.catalog.register.organs import begin_ingest
from organs.registry.catalog.tables import now
from organs.registry.catalog.work import WorkCancelled
from organs.registry.entities.job import Job
from organs.registry.errors import DatabaseUnreachable, StoreUnreachable
from organs.registry.local import LocalRegistry
from organs.registry.progress import StepProgress
from tests.clocks import local_clock
from tests.related_models import family_files, ingest_bytes
from tests.small_models import small_model

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 60.0
"""Much longer than any wait here needs, on any machine."""

Values = dict[str, Any]
Run = Callable[[LocalRegistry, Values, StepProgress], Values]


def kind_of(run: Run, lane: str = WORK, name: str = "odd") -> dict[str, JobKind]:
    def run_for(registry: LocalRegistry, arguments: Values, report_progress: StepProgress, _contributor: str) -> Values:
        return run(registry, arguments, report_progress)

    return {name: JobKind(name, lane, Values, run_for)}


def job_of(registry: LocalRegistry, job_id: int) -> Job:
    with registry.catalog.reading() as session:
        return job_by_id(session, job_id)


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


def run_once(registry: LocalRegistry, run: Run, arguments: Values | None = None) -> Values:
    """Run one job of a kind that does `run`, and return its row."""
    kinds = kind_of(run)
    job_id = add_job(registry, "odd", arguments or {}, kinds=kinds)
    assert Runner(registry, threading.Event(), kinds=kinds).run(once=True)
    return job_of(registry, job_id)


@contextmanager
def running(registry: LocalRegistry, kinds: dict[str, JobKind]) -> Iterator[threading.Event]:
    """Run a runner in a thread during the block."""
    stop = threading.Event()
    thread = threading.Thread(target=Runner(registry, stop, kinds=kinds).run)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_a_report_can_be_made_as_a_job(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_bytes(registry, tmp_path, "little", small_model())
    with registry.catalog.writing() as session:
        add_contributor(session, "ada")
    of_model = add_job(registry, "report", {"model": "little"})
    of_ada = add_job(registry, "report", {"model": "little"}, "ada")
    gone = add_job(registry, "report", {"model": "local/nothing"})
    events: list[JobEvent] = []
    Runner(registry, threading.Event(), on_event=events.append).run(once=True)
    for number, sees_stored_size in ((of_model, True), (of_ada, False)):
        result = job_of(registry, number).result
        assert result["model"] == "local/little@1"
        assert ("stored_bytes" in result["report"]["sections"]["model"]["figures"]) == sees_stored_size
    failed = job_of(registry, gone)
    assert (failed.state, failed.result) == ("failed", None)
    assert (failed.problem["code"], failed.problem["detail"]) == ("not-found", failed.note)
    ended = [(event.id, event.state) for event in events if event.state != "running"]
    assert ended == [(of_model, "finished"), (of_ada, "finished"), (gone, "failed")]


@pytest.mark.parametrize("error", [ValueError("odd"), MemoryError("odd"), SystemExit("odd"), RecursionError("odd")])
def test_a_job_that_crashes_is_an_internal_error_and_the_next_job_runs(
    error: BaseException, registry: LocalRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    def run(_registry: LocalRegistry, arguments: Values, _report_progress: StepProgress) -> Values:
        if arguments["bad"]:
            raise error
        return {}

    kinds = kind_of(run)
    bad, good = (add_job(registry, "odd", {"bad": is_bad}, kinds=kinds) for is_bad in (True, False))
    with caplog.at_level(logging.ERROR):
        Runner(registry, threading.Event(), kinds=kinds).run(once=True)
    note = f"an internal error ({type(error).__name__}); the log has the details"
    assert (job_of(registry, bad).state, job_of(registry, bad).note) == ("failed", note)
    assert job_of(registry, good).state == "finished"
    assert f"job {bad} (odd) broke" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("result", [{"a": float("nan")}, {"a": b"x"}, {"a": "x" * 2_000_000}])
def test_a_result_that_cannot_be_stored_is_reported(result: Values, registry: LocalRegistry) -> None:
    job = run_once(registry, lambda *_: result)
    assert job.state == "failed"
    assert "the result of a job" in job.note


def test_a_job_during_an_outage_waits_until_it_can_run(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "RETRY_SECONDS", 0.01)
    failures = iter([StoreUnreachable("no store"), DatabaseUnreachable("no database")] * 3)

    def run(_registry: LocalRegistry, _arguments: Values, _report_progress: StepProgress) -> Values:
        for error in failures:
            raise error
        return {"done": True}

    kinds = kind_of(run)
    job_id, events = add_job(registry, "odd", {}, kinds=kinds), list[JobEvent]()
    with local_clock(10):
        assert Runner(registry, threading.Event(), kinds=kinds, on_event=events.append).run(once=True)
    assert [event.state for event in events] == [*["running", "put back"] * 6, "running", "finished"]
    job = job_of(registry, job_id)
    assert (job.state, job.note, job.result) == ("finished", "", {"done": True})
    monkeypatch.setattr(runner, "OUTAGE_MAX", timedelta(0))
    failures = iter([StoreUnreachable("no store")])
    old = add_job(registry, "odd", {}, kinds=kinds)
    Runner(registry, threading.Event(), kinds=kinds).run(once=True)
    assert (job_of(registry, old).state, job_of(registry, old).note) == ("failed", "no store")


def test_a_job_that_outlasts_its_runner_is_put_back_and_changes_nothing_afterwards(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def run(_registry: LocalRegistry, _arguments: Values, _report_progress: StepProgress) -> Values:
        begun.set()
        go_on.wait(PATIENCE_SECONDS)
        return {"late": True}

    kinds = kind_of(run)
    stop, events = threading.Event(), list[JobEvent]()
    job_id = add_job(registry, "odd", {}, kinds=kinds)
    monkeypatch.setattr(runner, "STOP_SECONDS", 0.1)
    late = Runner(registry, stop, kinds=kinds, on_event=events.append)
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(late.run()))
    thread.start()
    assert begun.wait(PATIENCE_SECONDS)
    stop.set()
    thread.join(PATIENCE_SECONDS)
    assert ended == [False]
    assert job_of(registry, job_id).state == "queued"
    go_on.set()
    until(lambda: len(events) == 2)
    assert job_of(registry, job_id).state == "queued"


def test_lanes_run_in_parallel_and_validations_run_one_after_another(registry: LocalRegistry) -> None:
    meeting, alone = threading.Barrier(2), threading.Lock()

    def slow(_registry: LocalRegistry, _arguments: Values, _report_progress: StepProgress) -> Values:
        meeting.wait(PATIENCE_SECONDS)  # continues only while a job of the other lane runs
        return {}

    def check(_registry: LocalRegistry, arguments: Values, _report_progress: StepProgress) -> Values:
        assert alone.acquire(blocking=False)
        if arguments["meets"]:
            meeting.wait(PATIENCE_SECONDS)
        time.sleep(0.05)
        alone.release()
        return {}

    kinds = kind_of(slow, WORK, "slow") | kind_of(check, VALIDATION, "check")
    ids = [add_job(registry, "check", {"meets": number == 0}, kinds=kinds) for number in range(4)]
    ids.append(add_job(registry, "slow", {}, kinds=kinds))
    with running(registry, kinds), running(registry, kinds):
        until(lambda: all(job_of(registry, job_id).state in ("finished", "failed") for job_id in ids))
    assert {job_of(registry, job_id).state for job_id in ids} == {"finished"}


def test_progress_is_written_at_most_once_a_second_and_cancellation_is_still_noticed(
    registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry.catalog.writing() as session:
        job_id = enqueue_job(session, "odd", {})
        claim = claim_job(session, ["odd"])
    assert claim is not None
    monkeypatch.setattr(runner, "NOTIFY_SECONDS", 3600)
    report = progress_reporter(registry.catalog, claim, threading.Event(), threading.Event())
    report(0.1, "first")
    for _ in range(1000):
        report(0.9, "too soon")
    assert (job_of(registry, job_id).progress, job_of(registry, job_id).note) == (0.1, "first")
    monkeypatch.setattr(runner, "NOTIFY_SECONDS", 0)
    report = progress_reporter(registry.catalog, claim, threading.Event(), threading.Event())
    report(7.0, "beyond the end")
    assert job_of(registry, job_id).progress == 1.0
    version = registry.catalog.version()
    report(7.0, "beyond the end")
    assert registry.catalog.version() == version, "nothing new was written"
    with registry.catalog.writing() as session:
        cancel_job(session, job_id)
    with pytest.raises(WorkCancelled):
        report(7.0, "beyond the end")
    lost = threading.Event()
    lost.set()
    with pytest.raises(WorkCancelled):
        progress_reporter(registry.catalog, claim, threading.Event(), lost)(0.5, "")


def test_an_idle_runner_repacks_new_models_once(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "IDLE_SECONDS", 0.01)
    sources = family_files(["tuned", "base"])
    for name, data in sources.items():
        ingest_bytes(registry, tmp_path, name, data)
    stop = threading.Event()
    ended: list[JobEvent] = []

    def note(event: JobEvent) -> None:
        ended.extend([event] if event.state != "running" else [])

    thread = threading.Thread(target=Runner(registry, stop, [UPKEEP], on_event=note).run)
    thread.start()
    until(lambda: bool(ended))
    with registry.catalog.reading() as session:
        assert not models_to_repack(session)
    time.sleep(0.1)
    stop.set()
    thread.join()
    assert [(event.kind, event.state) for event in ended] == [("repack", "finished")]
    assert job_of(registry, ended[0].id).result["examined_models"] == 2


def test_no_repack_is_due_while_an_ingest_runs_or_a_job_waits(registry: LocalRegistry, tmp_path: Path) -> None:
    ingest_bytes(registry, tmp_path, "base", family_files(["base"])["base"])
    with registry.catalog.writing() as session:
        assert is_repack_due(session, list(KINDS))
        begin_ingest(session, "a test")
        assert not is_repack_due(session, list(KINDS))
        session.execute(update(tables.Ingest).values(lease_expires_at=now() - timedelta(seconds=1)))
        assert is_repack_due(session, list(KINDS)), "it was killed"
        enqueue_job(session, "report", {})
        assert not is_repack_due(session, list(KINDS))
