"""Jobs: what waits, runs and has ended; and not any more."""

from __future__ import annotations

from organs.registry.catalog.queries.jobs import job_by_id, newest_jobs
from organs.registry.catalog.register.jobs import cancel_job
from organs.registry.present.jobs import job_values, jobs_values
from organs.registry.present.values import Values
from organs.web.api.blueprint import ROOT
from organs.web.api.operation import operation
from organs.web.api.params import (
    AFTER,
    JOB,
    LIMIT,
)
from organs.web.api.writing import writing_operation
from organs.web.auth import ANY
from organs.web.params import (
    asked_after,
    asked_limit,
    parsed_job,
)
from organs.web.permissions import whose_jobs
from organs.web.responses import (
    reading,
    registry,
    settings,
)

GROUP = "Jobs"


@operation(
    "/jobs",
    group=GROUP,
    summary="Jobs, newest first",
    parameters=(LIMIT, AFTER),
    answer="Jobs",
    refusals=(404,),
    example=f"{ROOT}/jobs?limit=1",
)
def jobs() -> Values:
    """Your own that wait, run, and have ended within the last 30 days, without what was asked and what came of it; an
    administrator sees everybody's. 404 without an account, and where the server only reads."""
    whose, limit, after = whose_jobs(), asked_limit(), asked_after()
    with reading(settings().search_seconds) as session:
        return jobs_values(newest_jobs(session, limit, after, whose))


@operation(
    "/jobs/{job}",
    group=GROUP,
    summary="One job",
    parameters=(JOB,),
    answer="Job",
    refusals=(404,),
    example=f"{ROOT}/jobs/1",
)
def job(job: str) -> Values:
    """How far it is, and when it has finished, its result. 404 for a job of somebody else's, and where the server only
    reads."""
    whose = whose_jobs()
    with reading(settings().search_seconds) as session:
        return job_values(*job_by_id(session, parsed_job(job), whose))


@writing_operation(
    "/jobs/{job}",
    method="delete",
    group=GROUP,
    summary="Cancel a job",
    parameters=(JOB,),
    answer="Job",
    refusals=(404,),
    example=f"{ROOT}/jobs/2",
    scope=ANY,
)
def cancel(job: str) -> Values:
    """One that waits never begins; one that runs is left within a second or two. One that has ended stays as it is.
    404 for a job that the asker may not see, as nobody sees any whose token is good for neither `upload` nor `admin`.
    """
    job_id, whose = parsed_job(job), whose_jobs()
    with registry().catalog.writing() as session:
        cancel_job(session, job_id, whose)
    with reading(settings().search_seconds) as session:
        return job_values(*job_by_id(session, job_id))
