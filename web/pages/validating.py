"""Validations of a chimera on its pages: those under way, and whether this server can run one."""

from __future__ import annotations

import json
from importlib import util

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.jobs import active_jobs
from organs.registry.present.values import Values
from organs.registry.validation.llama import NOT_INSTALLED, PACKAGE
from organs.web.writing import may_see_jobs, whose_jobs

KIND = "validate"


def under_way(session: Session, name: str) -> list[Values]:
    """The jobs that wait or run to validate the chimera of that name, as far as they are shown to who asks."""
    jobs = active_jobs(session, KIND, whose_jobs()) if may_see_jobs() else []
    return [
        {"id": job.id, "state": job.state, "progress": job.progress, "note": job.note}
        for job in jobs
        if json.loads(job.arguments).get("chimera") == name
    ]


def missing_runtime() -> str | None:
    """What to install before anything can be validated here; None where nothing is missing."""
    return None if util.find_spec(PACKAGE) else NOT_INSTALLED
