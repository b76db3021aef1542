"""The health of the server: checks first, then the numbers behind them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from flask import current_app, url_for

from organs.registry.amounts import duration_text, plural_text
from organs.registry.catalog.engine import database_now
from organs.registry.catalog.queries.administration import FAILED_HOURS, CatalogHealth, catalog_health
from organs.registry.catalog.queries.jobs import newest_failures
from organs.registry.catalog.slow import SLOW_SECONDS
from organs.registry.checkup import check_machine, disk_spaces
from organs.registry.entities.server import HealthCheck, ProcessHealth, QueueHealth, ServerHealth, StorageHealth
from organs.registry.errors import OrganError
from organs.registry.sandbox.protections import kernel, protections
from organs.web.metrics import cached_blob_bytes, recent_errors
from organs.web.responses import registry, searching

FAILURES_SHOWN = 10
NO_RUNNER_SECONDS = 60.0
"""If a job waits longer than this and none runs, there is probably no runner."""
LONG_WAIT_SECONDS = 3600.0
RECENT_HOURS = 24
"""Older errors and slow statements are only listed."""
MINUTES = "%Y-%m-%d %H:%M UTC"
_ORDER = ("failed", "warning", "ok")


def server_health() -> ServerHealth:
    """Return the health of the server as this process sees it. Raises TooSlow and the errors of the database."""
    with searching() as session:
        moment = database_now(session)
        catalog = catalog_health(session, moment)
        failed_jobs = newest_failures(session, FAILURES_SHOWN)
    errors, slow, configured = recent_errors(current_app), registry().catalog.slow, registry().settings
    process = ProcessHealth(
        process=os.getpid(),
        since=errors.since,
        slow_statements=slow.newest(),
        slow_count=slow.count,
        errors=errors.newest(),
        error_count=errors.total,
    )
    checks = [
        *_intake_checks(catalog),
        *_queue_checks(catalog.queue, moment),
        *_process_checks(process, datetime.now(UTC)),
        *_machine_checks(),
    ]
    return ServerHealth(
        checks=tuple(sorted(checks, key=lambda check: _ORDER.index(check.state))),
        queue=catalog.queue,
        failed_jobs=failed_jobs,
        intake=catalog.intake,
        storage=StorageHealth(
            totals=catalog.totals,
            corrupt_blobs=catalog.corrupt_blobs,
            is_bucket=configured.bucket is not None,
            cache_bytes=cached_blob_bytes(configured),
            disks=disk_spaces(configured),
        ),
        database=catalog.database,
        process=process,
    )


def _intake_checks(catalog: CatalogHealth) -> Iterator[HealthCheck]:
    if catalog.corrupt_blobs:
        blobs = plural_text(catalog.corrupt_blobs, "stored part is", "stored parts are")
        sentence = f"{blobs} wrong or missing. Run organ verify --read-data on the registry's machine."
        yield HealthCheck(name="stored bytes", state="failed", sentence=sentence)
    held = catalog.intake.submissions["quarantined"]
    problem = held and f"{plural_text(held, 'submission is', 'submissions are')} held for review."
    yield _check("reviews", problem, "No submission is held for review.", url_for("pages.admin_quarantine"))


def _queue_checks(queue: QueueHealth, moment: datetime) -> Iterator[HealthCheck]:
    waited = 0.0 if queue.waiting_since is None else max(0.0, (moment - queue.waiting_since).total_seconds())
    jobs, age = plural_text(queue.waiting, "job waits", "jobs wait"), duration_text(waited)
    has_no_runner = waited > NO_RUNNER_SECONDS and not queue.running
    problem = None
    if has_no_runner:
        problem = f"{jobs}, the oldest for {age}, and none runs. Run organ work, or the server without --no-jobs."
    elif waited > LONG_WAIT_SECONDS:
        problem = f"{jobs}, the oldest for {age}."
    well = f"{jobs} and {plural_text(queue.running, 'job runs', 'jobs run')}."
    yield _check("queue", problem, well, url_for("pages.jobs"), "failed" if has_no_runner else "warning")
    hours = f"in the last {FAILED_HOURS} hours."
    problem = f"{plural_text(queue.failed, 'job', 'jobs')} failed {hours}" if queue.failed else None
    yield _check("failed jobs", problem, f"No job failed {hours}", f"{url_for('pages.admin_health')}#failed-jobs")


def _process_checks(process: ProcessHealth, moment: datetime) -> Iterator[HealthCheck]:
    page, since, hours = url_for("pages.admin_health"), moment - timedelta(hours=RECENT_HOURS), f"{RECENT_HOURS} hours"
    errors = [f"{error.at:{MINUTES}}" for error in process.errors if error.at > since]
    problem = errors and f"This process logged errors in the last {hours}, the newest at {errors[0]}."
    yield _check("errors", problem, f"This process logged no errors in the last {hours}.", f"{page}#errors")
    slow = [f"{statement.at:{MINUTES}}" for statement in process.slow_statements if statement.at > since]
    longer = f"took longer than {SLOW_SECONDS} s in the last {hours}"
    problem = slow and f"This process had statements of the database that {longer}, the newest at {slow[0]}."
    yield _check("slow statements", problem, f"No statement of the database {longer}.", f"{page}#slow-statements")


def _machine_checks() -> Iterator[HealthCheck]:
    """Yield the checks of `organ admin doctor` that write nothing and need no further connection."""
    configured = registry().settings
    for check in check_machine(configured, os.environ):
        yield HealthCheck(name=check.name, state=check.state, sentence=check.sentence)
    try:
        found = kernel()
    except OrganError as error:
        yield HealthCheck(name="protections", state="warning", sentence=f"They are not known: {error}")
        return
    confined = protections(found, writing=False, processes=False)
    missing = ", ".join(protection.name for protection in confined if not protection.is_there)
    problem = missing and f"Processes that read uploads or run models lack: {missing}. organ admin doctor explains it."
    well = "Processes that read uploads or run models have every protection."
    yield _check("protections", problem, well, None, "failed" if configured.requires_sandbox else "warning")


def _check(name: str, problem: object, well: str, address: str | None, state: str = "warning") -> HealthCheck:
    """Return a check: in `state` with the sentence `problem`, or `ok` with the sentence `well` if there is none."""
    if not problem:
        return HealthCheck(name=name, state="ok", sentence=well)
    return HealthCheck(name=name, state=state, sentence=str(problem), address=address)
