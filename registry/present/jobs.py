"""Jobs as plain values: a line of a list, and one with all that is known of it."""

from __future__ import annotations

import json

from organs.registry.catalog.queries.jobs import JobPage
from organs.registry.catalog.tables import Job
from organs.registry.present.values import Values

ACTIVE = ("queued", "running")
"""States that change by themselves."""
PACK = "pack"
"""Under which a result has the key of a file on this machine."""


def job_summary(job: Job, contributor: str) -> Values:
    """A line of a list; times in UTC, progress from 0 to 1."""
    return {
        "id": job.id,
        "kind": job.kind,
        "state": job.state,
        "progress": job.progress,
        "note": job.note,
        "contributor": contributor,
        "created_at": job.created_at.isoformat(),
        "started_at": None if job.started_at is None else job.started_at.isoformat(),
        "finished_at": None if job.finished_at is None else job.finished_at.isoformat(),
    }


def job_values(job: Job, contributor: str) -> Values:
    """The same with what was asked and what came of it, but for the key of what it has left to be downloaded."""
    result = job_result(job)
    return {
        **job_summary(job, contributor),
        "arguments": json.loads(job.arguments),
        "result": None if result is None else {key: value for key, value in result.items() if key != PACK},
    }


def job_result(job: Job) -> Values | None:
    """All that came of it, for this machine alone."""
    found: Values | None = None if job.result is None else json.loads(job.result)
    return found


def jobs_values(page: JobPage) -> Values:
    """A page of jobs."""
    return {"items": [job_summary(job, contributor) for job, contributor in page.items], "next": page.next}
