"""The health of the server: checks first, then the numbers behind them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from flask import current_app, url_for

from organs.registry.amounts import duration_text, plural_text
from organs.registry.catalog.clock import database_now
from organs.registry.catalog.queries.health import FAILED_HOURS, CatalogHealth, catalog_health
from organs.registry.catalog.queries.jobs import newest_failures
from organs.registry.catalog.slow import SLOW_SECONDS
from organs.registry.checkup import check_machine, disk_spaces
from organs.registry.entities.health import HealthCheck, ProcessHealth, QueueHealth, ServerHealth, StorageHealth
from organs.registry.errors import OrganError
from organs.registry.sandbox.protections import kernel, protections
from organs.web.metrics import cached_blob_bytes, recent_errors
from organs.web.responses import reading, registry, settings

FAILURES_SHOWN = 10
NO_RUNNER_SECONDS = 60.0
"""If a job waits longer than this and none runs, there is probably no runner."""
LONG_WAIT_SECONDS = 3600.0
RECENT_HOURS = 24
"""Older errors and slow statements are only listed."""
_ORDER = ("failed", "warning", "ok")


def server_health() -> ServerHealth:
    """Return the health of the server as this process sees it. Raises TooSlow and the errors of the database."""
    with reading(settings().search_seconds) as session:
        moment = database_now(session)
        catalog = catalog_health(session, moment)
        failed_jobs = newest_failures(session, FAILURES_SHOWN)
    process = _process_health()
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
        storage=_storage_health(catalog),
        database=catalog.database,
        process=process,
    )


def _storage_health(catalog: CatalogHealth) -> StorageHealth:
    configured = registry().settings
    return StorageHealth(
        totals=catalog.totals,
        corrupt_blobs=catalog.corrupt_blobs,
        is_bucket=configured.bucket is not None,
        cache_bytes=cached_blob_bytes(configured),
        disks=disk_spaces(configured),
    )


def _process_health() -> ProcessHealth:
    errors, slow = recent_errors(current_app), registry().catalog.slow
    return ProcessHealth(
        process=os.getpid(),
        since=errors.since,
        slow_statements=slow.newest(),
        slow_count=slow.count,
        errors=errors.newest(),
        error_count=errors.total,
    )


def _intake_checks(catalog: CatalogHealth) -> Iterator[HealthCheck]:
    if catalog.corrupt_blobs:
        blobs = plural_text(catalog.corrupt_blobs, "stored part is", "stored parts are")
        sentence = f"{blobs} wrong or missing. Run organ verify --read-data on the registry's machine."
        yield HealthCheck(name="stored bytes", state="failed", sentence=sentence)
    held = catalog.intake.submissions["quarantined"]
    if held:
        sentence = f"{plural_text(held, 'submission is', 'submissions are')} held for review."
        yield _check("reviews", "warning", sentence, url_for("pages.admin_quarantine"))
    else:
        yield HealthCheck(name="reviews", state="ok", sentence="No submission is held for review.")


def _queue_checks(queue: QueueHealth, moment: datetime) -> Iterator[HealthCheck]:
    waited = 0.0 if queue.waiting_since is None else max(0.0, (moment - queue.waiting_since).total_seconds())
    jobs, age = plural_text(queue.waiting, "job waits", "jobs wait"), duration_text(waited)
    if waited > NO_RUNNER_SECONDS and not queue.running:
        sentence = f"{jobs}, the oldest for {age}, and none runs. Run organ work, or the server without --no-jobs."
        yield _check("queue", "failed", sentence, url_for("pages.jobs"))
    elif waited > LONG_WAIT_SECONDS:
        yield _check("queue", "warning", f"{jobs}, the oldest for {age}.", url_for("pages.jobs"))
    else:
        running = plural_text(queue.running, "job runs", "jobs run")
        yield HealthCheck(name="queue", state="ok", sentence=f"{jobs} and {running}.")
    if queue.failed:
        sentence = f"{plural_text(queue.failed, 'job', 'jobs')} failed in the last {FAILED_HOURS} hours."
        yield _check("failed jobs", "warning", sentence, f"{url_for('pages.admin_health')}#failed-jobs")
    else:
        yield HealthCheck(name="failed jobs", state="ok", sentence=f"No job failed in the last {FAILED_HOURS} hours.")


def _process_checks(process: ProcessHealth, moment: datetime) -> Iterator[HealthCheck]:
    page, since = url_for("pages.admin_health"), moment - timedelta(hours=RECENT_HOURS)
    errors = [error for error in process.errors if error.at > since]
    if errors:
        sentence = f"This process logged errors in the last {RECENT_HOURS} hours, the newest at {_time(errors[0].at)}."
        yield _check("errors", "warning", sentence, f"{page}#errors")
    else:
        sentence = f"This process logged no errors in the last {RECENT_HOURS} hours."
        yield HealthCheck(name="errors", state="ok", sentence=sentence)
    slow = [statement for statement in process.slow_statements if statement.at > since]
    if slow:
        sentence = (
            f"This process had statements of the database that took longer than {SLOW_SECONDS} s in the last "
            f"{RECENT_HOURS} hours, the newest at {_time(slow[0].at)}."
        )
        yield _check("slow statements", "warning", sentence, f"{page}#slow-statements")
    else:
        sentence = f"No statement of the database took longer than {SLOW_SECONDS} s in the last {RECENT_HOURS} hours."
        yield HealthCheck(name="slow statements", state="ok", sentence=sentence)


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
    missing = [protection.name for protection in confined if not protection.is_there]
    if missing:
        state = "failed" if configured.requires_sandbox else "warning"
        sentence = (
            f"Processes that read uploads or run models lack: {', '.join(missing)}. organ admin doctor explains it."
        )
        yield HealthCheck(name="protections", state=state, sentence=sentence)
    else:
        sentence = "Processes that read uploads or run models have every protection."
        yield HealthCheck(name="protections", state="ok", sentence=sentence)


def _check(name: str, state: str, sentence: str, address: str) -> HealthCheck:
    return HealthCheck(name=name, state=state, sentence=sentence, address=address)


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"
