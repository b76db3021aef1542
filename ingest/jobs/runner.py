"""Add jobs to the queue, and run them: a thread for each lane, one job at a time, with a lease that is renewed."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
from sqlalchemy.orm import Session

from organs.ingest.answering import PromptRunner, prompts_at_once
from organs.ingest.contributions.uploads import tidy_uploads
from organs.ingest.jobs.kinds import ALONE, KINDS, LANES, PROMPTS, REPACK, UPKEEP, JobKind, is_repack_due
from organs.ingest.jobs.packs import remove_old_objects, remove_old_packs
from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.queries.jobs import is_anything_due, is_to_be_done
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.answers import remove_old_answers
from organs.registry.catalog.register.counts import remove_expired_counts
from organs.registry.catalog.register.jobs import (
    JobClaim,
    claim_job,
    enqueue_job,
    job_json,
    remove_old_jobs,
    report_progress,
)
from organs.registry.catalog.work import (
    RETRY_SECONDS,
    WRITE_TRIES,
    WorkCancelled,
    fail,
    finish,
    keeping,
    put_back,
    renew,
    write_end,
)
from organs.registry.entities.base import Entity, prepared
from organs.registry.entities.problem import INTERNAL, data_of, encoded, plain_problem, problem_of
from organs.registry.errors import OUTAGES, BadInput, OrganError
from organs.registry.local import LocalRegistry
from organs.registry.progress import StepProgress
from organs.registry.validation.llama import LlamaCpp

UPKEEP_NICENESS = 10
"""The niceness of the thread for upkeep, so that pages and jobs of contributors have priority."""
NOTIFY_SECONDS = 1.0
"""The shortest time between two writes of progress: each write empties the caches of all readers."""
POLL_SECONDS = 0.5
OUTAGE_MAX = timedelta(hours=1)
"""A job that cannot reach the database or the store is queued again until it is so old; then it fails."""
OUTAGE_TRIES = 60
"""Attempts to queue a job again after an outage."""
WATCH_SECONDS = 0.1
IDLE_SECONDS = 10.0
"""The time between two looks whether models wait for a repack."""
TIDY_SECONDS = 3600.0
"""The time between two removals of old jobs, packs and uploads."""
STOP_SECONDS = 20.0
"""The time that jobs have to stop when the runner ends."""

_log = logging.getLogger(__name__)


def add_job(
    registry: LocalRegistry,
    kind: str,
    inputs: Entity | Mapping[str, object],
    contributor: str = LOCAL,
    kinds: Mapping[str, JobKind[Any]] = KINDS,
) -> int:
    """Append a job to the queue, with `inputs` from outside, and return its id.

    Raises BadInput for an unknown kind or wrong inputs, QueueFull when too many jobs wait, TooMany when too many of
    this contributor wait, and the errors of the kind's own checks.
    """
    if kind not in kinds:
        raise BadInput(f"unknown kind of job {kind[:80]!r}; use one of {', '.join(kinds)}")
    settled = kinds[kind].settled(registry, inputs, contributor)
    with registry.catalog.writing() as session:
        arguments = settled(session) if callable(settled) else settled
        return enqueue_job(session, kind, arguments, contributor)


def progress_reporter(catalog: Catalog, claim: JobClaim, stop: threading.Event, lost: threading.Event) -> StepProgress:
    """Return a function, for any thread, that writes the progress of a job, from 0 to 1, and its current step.

    At most one report in NOTIFY_SECONDS is written. It raises WorkCancelled when `stop` is set, because the runner
    ends, or `lost`, because the job was cancelled or another runner claimed it.
    """
    lock = threading.Lock()
    written_at, written = -NOTIFY_SECONDS, (0.0, "")

    def report(progress: float, note: str) -> None:
        nonlocal written_at, written
        if stop.is_set() or lost.is_set():
            raise WorkCancelled
        with lock:
            if time.monotonic() - written_at < NOTIFY_SECONDS:
                return
            new = (round(min(max(progress, 0.0), 1.0), 3), note)
            with suppress(OrganError):  # a busy database is no reason to stop the job
                if new == written:  # nothing to write, but the job may have been cancelled
                    with catalog.reading() as session:
                        is_ours = is_to_be_done(session, claim)
                else:
                    with catalog.writing() as session:
                        is_ours = report_progress(session, claim, *new)
                written = new
                if not is_ours:
                    lost.set()
            written_at = time.monotonic()
        if lost.is_set():
            raise WorkCancelled

    return report


@dataclass(frozen=True, slots=True)
class JobEvent:
    """A change of the state of a job."""

    id: int
    kind: str
    state: str
    """`running`, `finished`, `failed`, `cancelled`, or `put back` when the runner ends before the job."""
    sentence: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class Runner:
    """Runs the jobs of `lanes` until `stop` is set."""

    registry: LocalRegistry
    stop: threading.Event
    lanes: Sequence[str] = LANES
    kinds: Mapping[str, JobKind[Any]] = field(default_factory=lambda: KINDS)
    on_event: Callable[[JobEvent], None] = lambda _event: None
    claims: dict[str, JobClaim] = field(default_factory=dict)
    """The running job of each lane."""
    fault: BaseException | None = None

    def run(self, *, once: bool = False) -> bool:
        """Run jobs until `stop` is set; with `once`, until the queue is empty. Return whether all threads have ended.

        When the runner ends, each job stops at its next report of progress and returns to the queue. A job that reports
        nothing for STOP_SECONDS returns to the queue too, while its thread still runs: then the process must exit
        immediately. Raises an error of the runner itself; errors of jobs are recorded, not raised.
        """
        lanes = [lane for lane in self.lanes if lane != PROMPTS]
        threads = [threading.Thread(target=self._run_lane, args=(lane, once), daemon=True) for lane in lanes]
        if PROMPTS in self.lanes and LlamaCpp.is_installed():
            threads += [
                threading.Thread(target=self._run_prompts, args=(once,), daemon=True) for _ in range(prompts_at_once())
            ]
        for thread in threads:
            thread.start()
        self._clean_up()
        cleaned = time.monotonic()
        while any(thread.is_alive() for thread in threads) and not self.stop.wait(WATCH_SECONDS):
            if time.monotonic() - cleaned > TIDY_SECONDS:
                self._clean_up()
                cleaned = time.monotonic()
        until = time.monotonic() + STOP_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        if self.fault is not None:
            raise self.fault
        left_running = list(self.claims.values())
        for claim in left_running:
            with self.registry.catalog.writing() as session:
                _put_back(session, claim)
        return not left_running

    def _clean_up(self) -> None:
        """Remove old jobs, packs, uploads and answers."""
        try:
            remove_old_packs(self.registry.settings.home)
            remove_old_objects(self.registry)
            tidy_uploads(self.registry)
            with self.registry.catalog.writing() as session:
                remove_old_jobs(session)
                remove_expired_counts(session)
            with self.registry.catalog.counting() as session:
                remove_old_answers(session)
        except OrganError as error:
            _log.error("old jobs, packs, uploads or answers cannot be removed: %s", error)

    def _run_prompts(self, once: bool) -> None:
        try:
            PromptRunner(self.registry, self.stop).run(once=once)
        except BaseException as error:  # noqa: BLE001  # `run` raises it
            self.fault = error
            self.stop.set()

    def _run_lane(self, lane: str, once: bool) -> None:
        names = tuple(kind.name for kind in self.kinds.values() if kind.lane == lane)
        if lane == UPKEEP and sys.platform == "linux":  # on other systems a niceness is that of the whole process
            thread = threading.get_native_id()
            with suppress(OSError):  # some containers forbid it
                niceness = max(UPKEEP_NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
                os.setpriority(os.PRIO_PROCESS, thread, niceness)
        try:
            while names and not self.stop.is_set():
                try:
                    claim = None
                    with self.registry.catalog.reading() as session:
                        is_due = is_anything_due(session, names)
                    if is_due:
                        with self.registry.catalog.writing() as session:
                            claim = claim_job(session, names, alone=lane in ALONE)
                except OrganError as error:
                    if once:
                        raise
                    _log.error("no job can be claimed: %s", error)
                    self.stop.wait(RETRY_SECONDS)
                    continue
                if claim is not None:
                    self._run_job(lane, claim)
                elif once:
                    return
                elif lane == UPKEEP and REPACK.name in names:
                    self.stop.wait(IDLE_SECONDS)
                    self._add_repack()
                else:
                    self.stop.wait(POLL_SECONDS)
        except BaseException as error:  # noqa: BLE001  # `run` raises it
            self.fault = error
            self.stop.set()

    def _add_repack(self) -> None:
        """Add a repack if models wait for one and all other work is done."""
        if self.stop.is_set() or not self.registry.settings.references:
            return
        others = [name for name in self.kinds if name != REPACK.name]
        with suppress(OrganError):  # the next look is soon
            with self.registry.catalog.reading() as session:
                if not is_repack_due(session, others):
                    return
            add_job(self.registry, REPACK.name, {}, kinds=self.kinds)

    def _run_job(self, lane: str, claim: JobClaim) -> None:
        begun = time.monotonic()
        self.on_event(JobEvent(claim.id, claim.kind, "running"))
        self.claims[lane] = claim
        with keeping(self.registry.catalog, partial(renew, claim=claim), f"job {claim.id} keeper") as lost:
            report = progress_reporter(self.registry.catalog, claim, self.stop, lost)
            state, sentence = self._finish(claim, report, begun)
        self.claims.pop(lane)
        self.on_event(JobEvent(claim.id, claim.kind, state, sentence, time.monotonic() - begun))

    def _finish(self, claim: JobClaim, report: StepProgress, begun: float) -> tuple[str, str]:
        """Run the job and record how it ended; return its state and, for a failed job, the reason."""
        write: Callable[[Session], bool]
        tries = WRITE_TRIES
        try:
            kind = self.kinds[claim.kind]
            try:
                arguments = msgspec.convert(claim.arguments, prepared(kind.arguments))
            except msgspec.ValidationError as error:
                raise BadInput(f"another version added this job with other arguments: {error}") from error
            result = kind.run(self.registry, arguments, report, claim.contributor)
            write = partial(finish, claim=claim, result=job_json(result, "result"), progress=1.0)
            state, sentence = "finished", ""
        except WorkCancelled:
            write = partial(_put_back, claim=claim)
            state, sentence = "put back", "the runner ends"
        except OrganError as error:
            sentence = str(error)
            # No clock is read for the age, because clocks of machines differ.
            age = claim.waited + timedelta(seconds=time.monotonic() - begun)
            if isinstance(error, OUTAGES) and age < OUTAGE_MAX:
                self.stop.wait(RETRY_SECONDS)
                write = partial(_put_back, claim=claim, note=sentence)
                state, tries = "put back", OUTAGE_TRIES
            else:
                problem = encoded(problem_of(error), data_of(error)).decode()
                write = partial(fail, claim=claim, sentence=sentence, problem=problem)
                state = "failed"
        except BaseException as error:  # noqa: BLE001  # the next job must run after any error of this one
            _log.error("job %d (%s) broke", claim.id, claim.kind, exc_info=error)
            sentence = f"an internal error ({type(error).__name__}); the log has the details"
            problem = encoded(plain_problem(INTERNAL, sentence)).decode()
            write = partial(fail, claim=claim, sentence=sentence, problem=problem)
            state = "failed"
        is_recorded = write_end(self.registry.catalog, write, self.stop, tries)
        return (state, sentence) if is_recorded else ("cancelled", "")


def _put_back(session: Session, claim: JobClaim, note: str = "") -> bool:
    return put_back(session, claim, note, progress=0.0, started_at=None)
