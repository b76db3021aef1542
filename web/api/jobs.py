"""Jobs: list, get, cancel."""

from __future__ import annotations

from organs.registry.catalog.queries.jobs import job_by_id, newest_jobs
from organs.registry.catalog.register.jobs import cancel_job
from organs.registry.entities.job import Job, JobPage
from organs.web.api.operation import ROOT, operation, writing_operation
from organs.web.auth import ANY
from organs.web.params import AFTER, JOB, LIMIT, parsed_number, requested_page
from organs.web.permissions import whose_jobs
from organs.web.responses import (
    registry,
    searching,
)

GROUP = "Jobs"


@operation(GROUP, "/jobs", "List jobs", LIMIT, AFTER, example=f"{ROOT}/jobs?limit=1", refusals=(404,))
def jobs() -> JobPage:
    """Return your queued and running jobs, and those that ended within the last 30 days, newest first, without
    arguments and results. Administrators see all jobs. 404 without an account, and on a read-only server.
    """
    whose = whose_jobs()
    with searching() as session:
        return newest_jobs(session, *requested_page(), whose)


@operation(GROUP, "/jobs/{job}", "Get a job", JOB, refusals=(404,))
def job(job: str) -> Job:
    """Return the progress of a job, and its result once it has finished. 404 for jobs of other contributors, and on a
    read-only server."""
    whose = whose_jobs()
    with searching() as session:
        return job_by_id(session, parsed_number(job, "job"), whose)


@writing_operation(
    GROUP, "/jobs/{job}", "Cancel a job", JOB, method="delete", example=f"{ROOT}/jobs/2", refusals=(404,), scope=ANY
)
def cancel(job: str) -> Job:
    """Cancel a job. A queued job never starts; a running one stops within about two seconds; a finished one does not
    change. 404 for a job that the token may not see; without the scope `upload` or `admin` it sees none."""
    job_id, whose = parsed_number(job, "job"), whose_jobs()
    with registry().catalog.writing() as session:
        cancel_job(session, job_id, whose)
    with searching() as session:
        return job_by_id(session, job_id)
