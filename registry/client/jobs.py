"""Jobs of a remote registry: started, awaited, and their results."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from organs.registry.client.connection import API, Connection
from organs.registry.entities.base import E
from organs.registry.entities.job import Details, Job
from organs.registry.errors import BadReply, Unreachable

FIRST_SECONDS, LAST_SECONDS, GROWTH = 0.05, 2.0, 1.4
"""Between two requests, at first and in the end, and the factor by which it grows."""

Tell = Callable[[float, str], None]
"""Called with the progress of a job, from 0 to 1, and its note."""


def done(
    connection: Connection,
    path: str,
    body: object,
    tell: Tell | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Details:
    """Start a job by POST to `path` below the API, wait until it has finished, and return its result.

    The job continues when the wait is interrupted. Raises what the registry refuses, and Unreachable for a job that
    fails or is cancelled.
    """
    job = connection.post(Job, API + path, body)
    seconds = FIRST_SECONDS
    while job.is_active:
        sleep(seconds)
        seconds = min(seconds * GROWTH, LAST_SECONDS)
        job = connection.read(Job, f"{API}/jobs/{job.id}")
        if tell is not None:
            tell(job.progress, job.note)
    if job.state != "finished" or job.result is None:
        because = f": {job.note[:1000]}" if job.note else ""
        raise Unreachable(f"job {job.id} of {connection.url} is {job.state}{because}")
    return job.result


def converted(connection: Connection, kind: type[E], result: Details) -> E:
    """Return the result of a job as an entity; raises BadReply for something else."""
    try:
        return msgspec.convert(result, kind)
    except msgspec.ValidationError as error:
        raise BadReply(f"{connection.url} does not answer as a registry does: {str(error)[:300]}") from error
