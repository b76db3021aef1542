"""Jobs: list, get, cancel."""

from __future__ import annotations

from typing import Annotated

from organs.registry.endpoints.declaration import ANY, Group
from organs.registry.endpoints.parameters import LIMIT_DEFAULT, After, Limit, number_note
from organs.registry.entities.job import Job, JobPage

GROUP = Group("Jobs", "Long tasks run as jobs from a queue: progress and results.")
JobNumber = Annotated[int, number_note("job")]


@GROUP.get("/jobs", "List jobs", example="limit=1", refusals=(404,))
def jobs(limit: Limit = LIMIT_DEFAULT, after: After | None = None) -> JobPage:
    """Return your queued and running jobs, and those that ended within the last 30 days, newest first, without
    arguments and results. Administrators see all jobs. 404 without an account, and on a read-only server.
    """


@GROUP.get("/jobs/{job}", "Get a job", refusals=(404,))
def job(job: JobNumber) -> Job:
    """Return the progress of a job, and its result once it has finished. 404 for jobs of other contributors, and on a
    read-only server."""


@GROUP.write("delete", "/jobs/{job}", "Cancel a job", refusals=(404,), scope=ANY)
def cancel(job: Annotated[int, number_note("job", "2")]) -> Job:
    """Cancel a job. A queued job never starts; a running one stops within about two seconds; a finished one does not
    change. 404 for a job that the token may not see; without the scope `upload` or `admin` it sees none."""
