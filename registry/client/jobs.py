"""What a registry elsewhere does as a job: asked for, waited for, told."""

from __future__ import annotations

import time
from collections.abc import Callable

from organs.registry.client.connection import API, Connection
from organs.registry.client.shape import Maybe, Members, Named, Values, anything, check, number, text, whole
from organs.registry.errors import Unreachable

JOB: Members = {
    "id": whole,
    "kind": text,
    "state": text,
    "progress": number,
    "note": text,
    "contributor": text,
    "created_at": text,
    "started_at": Maybe(text),
    "finished_at": Maybe(text),
}
ONE_JOB: Members = {**JOB, "arguments": Named(anything), "result": Maybe(Named(anything))}
ACTIVE = ("queued", "running")
FIRST_SECONDS, LAST_SECONDS, GROWTH = 0.05, 2.0, 1.4
"""Between two looks, at first and in the end, and by how much it grows."""

Tell = Callable[[float, str], None]
"""Told how far a job is, from 0 to 1, and what it does."""


def done(
    connection: Connection,
    path: str,
    body: Values,
    tell: Tell | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Values:
    """Ask for a job by POST to `path` below the API, and wait until it has finished: its result.

    Raises what the registry refuses, and Unreachable for a job that fails or is cancelled. A job goes on when whoever
    waits for it is interrupted.
    """
    job = _checked(connection.send("POST", API + path, body))
    seconds = FIRST_SECONDS
    while job["state"] in ACTIVE:
        sleep(seconds)
        seconds = min(seconds * GROWTH, LAST_SECONDS)
        job = _checked(connection.get(f"{API}/jobs/{job['id']}"))
        if tell is not None:
            tell(min(max(float(job["progress"]), 0.0), 1.0), job["note"])
    result: Values | None = job["result"]
    if job["state"] != "finished" or result is None:
        because = f": {job['note'][:1000]}" if job["note"] else ""
        raise Unreachable(f"job {job['id']} of {connection.url} is {job['state'][:40]}{because}")
    return result


def _checked(values: Values) -> Values:
    check(values, ONE_JOB, "job")
    return values
