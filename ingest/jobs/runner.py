"""Add jobs to the queue, and run them: a thread for each lane, one job at a time, with a lease that is renewed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy.orm import Session

from organs.ingest.contributions.uploads import tidy_uploads
from organs.ingest.jobs.compose import COMPOSE, GRAFT, PURIFY
from organs.ingest.jobs.extract import EXTRACT, remove_old_packs
from organs.ingest.jobs.kind import ALONE, LANES, A, Cancelled, Inputs, JobKind
from organs.ingest.jobs.measure import MEASURE
from organs.ingest.jobs.report import REPORT
from organs.ingest.jobs.submissions import (
    INSPECT,
    PUBLISH,
)
from organs.ingest.jobs.validate import VALIDATE
from organs.registry.catalog.queries.jobs import is_anything_due, is_to_be_done
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.jobs import (
    Claim,
    claim_job,
    enqueue_job,
    fail_job,
    finish_job,
    job_json,
    put_back_job,
    remove_old_jobs,
    renew_job,
    report_progress,
)
from organs.registry.errors import BadInput, OrganError
from organs.registry.local import LocalRegistry

KINDS: Mapping[str, JobKind[Any]] = {
    kind.name: kind for kind in (COMPOSE, GRAFT, PURIFY, VALIDATE, MEASURE, EXTRACT, REPORT, INSPECT, PUBLISH)
}


def ask_for(
    registry: LocalRegistry,
    kind: str,
    arguments: Inputs,
    contributor: str = LOCAL,
    kinds: Mapping[str, JobKind[Any]] = KINDS,
) -> int:
    """Put a job of that kind at the end of the queue, with arguments from outside; its id.

    Raises BadInput for a kind that there is not and for arguments that it does not take, QueueFull when too many wait,
    TooMany when too many of the contributor's do, and what the kind finds that speaks against it.
    """
    if kind not in kinds:
        raise BadInput(f"there is no job of the kind {kind[:80]!r}: there is {', '.join(kinds)}")
    checked = kinds[kind].settle(registry, kinds[kind].check(arguments), contributor)
    with registry.catalog.writing() as session:
        return enqueue_job(session, kind, checked, contributor)


RENEWED_SECONDS = 15.0
"""A quarter of the lease: three may fail before the job counts as left."""
TOLD_SECONDS = 1.0
"""Every write makes all that is kept in readers' memories old, so they are few."""


class Held:
    """A claimed job; a context manager, within which it is kept. `tell` is for any thread."""

    def __init__(
        self,
        registry: LocalRegistry,
        claim: Claim,
        stop: threading.Event,
        renewed_seconds: float = RENEWED_SECONDS,
        told_seconds: float = TOLD_SECONDS,
    ) -> None:
        self.claim = claim
        self._registry = registry
        self._stop = stop
        self._renewed_seconds = renewed_seconds
        self._told_seconds = told_seconds
        self._over = threading.Event()
        self._lost = threading.Event()
        self._lock = threading.Lock()
        self._told_at = -told_seconds
        self._told: tuple[float, str] | None = None
        self._keeper = threading.Thread(target=self._keep, name=f"job {claim.id} keeper", daemon=True)

    def __enter__(self) -> Held:
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._keeper.join()

    @property
    def is_lost(self) -> bool:
        """Whether it was cancelled, or somebody else has it."""
        return self._lost.is_set()

    def tell(self, progress: float, note: str = "") -> None:
        """How far it is, from 0 to 1, and what is being done.

        Raises Cancelled when it is cancelled, when somebody else has it, or when the runner ends. It may be called as
        often as one likes: what comes within a second of the last word is not written.
        """
        if self._stop.is_set() or self.is_lost:
            raise Cancelled
        with self._lock:
            if time.monotonic() - self._told_at < self._told_seconds:
                return
            # A database that is held by others just now is no reason to give the job up.
            with suppress(OrganError):
                self._write(min(max(progress, 0.0), 1.0), note)
            self._told_at = time.monotonic()
        if self.is_lost:
            raise Cancelled

    def _write(self, progress: float, note: str) -> None:
        said = (round(progress, 3), note)
        if said == self._told:  # nothing new to write, but somebody may have cancelled it
            with self._registry.catalog.reading() as session:
                mine = is_to_be_done(session, self.claim.id, self.claim.attempt)
        else:
            with self._registry.catalog.writing() as session:
                mine = report_progress(session, self.claim, progress, note)
        self._told = said
        if not mine:
            self._lost.set()

    def _keep(self) -> None:
        while not self._over.wait(self._renewed_seconds):
            with suppress(OrganError), self._registry.catalog.writing() as session:
                if not renew_job(session, self.claim):
                    self._lost.set()


POLL_SECONDS = 0.5
RETRY_SECONDS = 5.0
"""After the database has failed."""
NOTE_TRIES = 4
"""To write how a job ended; else it is done again when its lease has run out."""
WATCH_SECONDS = 0.1
TIDY_SECONDS = 3600.0
"""Between two removals of what ended long ago."""
STOP_SECONDS = 20.0
"""What jobs have to hear that the runner ends."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Told:
    """What became of a job."""

    id: int
    kind: str
    became: str
    """`running`, `finished`, `failed`, `cancelled`, or `put back` when the runner ends before the job."""
    sentence: str = ""
    seconds: float = 0.0


def _tell_nobody(_told: Told) -> None:
    return


def _arguments(kind: JobKind[A], claim: Claim) -> A:
    try:
        return msgspec.convert(claim.arguments, kind.arguments)
    except msgspec.ValidationError as error:
        raise BadInput(f"a former version added this job with other arguments: {error}") from error


class Runner:
    """Takes jobs of `lanes` up until `stop` is set."""

    def __init__(
        self,
        registry: LocalRegistry,
        stop: threading.Event,
        lanes: Sequence[str] = LANES,
        kinds: Mapping[str, JobKind[Any]] = KINDS,
        tell: Callable[[Told], None] = _tell_nobody,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self._registry = registry
        self._stop = stop
        self._lanes = tuple(lanes)
        self._kinds = kinds
        self._tell = tell
        self._stop_seconds = stop_seconds
        self._held: dict[str, Held] = {}
        self._fault: BaseException | None = None

    def run(self, *, once: bool = False) -> bool:
        """Work until `stop` is set; with `once`, until nothing waits. Whether all jobs that were begun have been left.

        When the runner ends, jobs are told by their next word of progress, and wait in the queue again. One that says
        none for `stop_seconds` is put back too, though its thread still runs: then the process must end at once.
        Raises what broke the runner itself, which no job can.
        """
        threads = [threading.Thread(target=self._guarded, args=(lane, once), daemon=True) for lane in self._lanes]
        for thread in threads:
            thread.start()
        self._watch(threads)
        until = time.monotonic() + self._stop_seconds
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        if self._fault is not None:
            raise self._fault
        left_running = list(self._held.values())
        for held in left_running:
            with self._registry.catalog.writing() as session:
                put_back_job(session, held.claim)
        return not left_running

    def _watch(self, threads: Sequence[threading.Thread]) -> None:
        """Tidy up, and again now and then, until the runner is to end or all lanes have."""
        self._tidy()
        tidied = time.monotonic()
        while any(thread.is_alive() for thread in threads):
            if time.monotonic() - tidied > TIDY_SECONDS:
                self._tidy()
                tidied = time.monotonic()
            if self._stop.wait(WATCH_SECONDS):
                return

    def _guarded(self, lane: str, once: bool) -> None:
        try:
            self._work_off(lane, once)
        except BaseException as error:  # noqa: BLE001  # carried over to `run`, which raises it
            self._fault = error
            self._stop.set()

    def _work_off(self, lane: str, once: bool) -> None:
        names = tuple(kind.name for kind in self._kinds.values() if kind.lane == lane)
        while names and not self._stop.is_set():
            try:
                claim = self._claim(names, alone=lane in ALONE)
            except OrganError as error:
                if once:
                    raise
                _log.error("no job can be taken up: %s", error)
                self._stop.wait(RETRY_SECONDS)
                continue
            if claim is not None:
                self._do(lane, claim)
            elif once:
                return
            else:
                self._stop.wait(POLL_SECONDS)

    def _claim(self, names: Sequence[str], *, alone: bool) -> Claim | None:
        with self._registry.catalog.reading() as session:
            if not is_anything_due(session, names):
                return None
        with self._registry.catalog.writing() as session:
            return claim_job(session, names, alone=alone)

    def _do(self, lane: str, claim: Claim) -> None:
        begun = time.monotonic()
        self._tell(Told(claim.id, claim.kind, "running"))
        with Held(self._registry, claim, self._stop) as held:
            self._held[lane] = held
            became, sentence = self._become(held)
        self._held.pop(lane)
        self._tell(Told(claim.id, claim.kind, became, sentence, time.monotonic() - begun))

    def _become(self, held: Held) -> tuple[str, str]:
        """Do the job and note how it ended: what it became, and why."""
        claim = held.claim
        try:
            kind = self._kinds[claim.kind]
            arguments = _arguments(kind, claim)
            result = kind.run(self._registry, arguments, held.tell, claim.contributor)
            text = job_json(result, "result")
        except Cancelled:
            return self._left(held)
        except OrganError as error:
            return self._noted(held, "failed", str(error))
        except BaseException as error:  # noqa: BLE001  # whatever a job does, the next one is to have its turn
            _log.error("job %d (%s) broke", claim.id, claim.kind, exc_info=error)
            return self._noted(held, "failed", f"an error of ours ({type(error).__name__})")
        return self._noted(held, "finished", text)

    def _left(self, held: Held) -> tuple[str, str]:
        is_waiting_again = self._written(lambda session: put_back_job(session, held.claim))
        return ("put back", "the runner ends") if is_waiting_again else ("cancelled", "")

    def _noted(self, held: Held, state: str, text: str) -> tuple[str, str]:
        note = finish_job if state == "finished" else fail_job
        if not self._written(lambda session: note(session, held.claim, text)):
            return "cancelled", ""
        return state, text if state == "failed" else ""

    def _written(self, write: Callable[[Session], bool]) -> bool:
        """What `write` says, tried again where the database fails; False when it goes on failing."""
        for _ in range(NOTE_TRIES):
            try:
                with self._registry.catalog.writing() as session:
                    return write(session)
            except OrganError as error:
                _log.error("the end of a job cannot be noted: %s", error)
                self._stop.wait(RETRY_SECONDS)
        return False

    def _tidy(self) -> None:
        try:
            remove_old_packs(self._registry.settings.home)
            tidy_uploads(self._registry)
            with self._registry.catalog.writing() as session:
                remove_old_jobs(session)
        except OrganError as error:
            _log.error("what ended long ago cannot be removed: %s", error)
