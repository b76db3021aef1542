"""Jobs: list, get, cancel."""

from __future__ import annotations

from organs.registry.catalog.queries.jobs import job_by_id, newest_jobs
from organs.registry.catalog.register.jobs import cancel_job
from organs.registry.endpoints import jobs as endpoints
from organs.registry.entities.job import Job, JobPage
from organs.web.api.operation import serves
from organs.web.permissions import whose_jobs
from organs.web.responses import (
    registry,
    searching,
)


@serves(endpoints.jobs)
def jobs(limit: int, after: str | None) -> JobPage:
    whose = whose_jobs()
    with searching() as session:
        return newest_jobs(session, limit, after, whose)


@serves(endpoints.job)
def job(job: int) -> Job:
    whose = whose_jobs()
    with searching() as session:
        return job_by_id(session, job, whose)


@serves(endpoints.cancel)
def cancel(job: int) -> Job:
    whose = whose_jobs()
    with registry().catalog.writing() as session:
        cancel_job(session, job, whose)
    with searching() as session:
        return job_by_id(session, job)
