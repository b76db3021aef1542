"""All kinds of jobs, and adding one to the queue. A new kind is a module of its own and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from organs.ingest.jobs.compose import COMPOSE, GRAFT, PURIFY
from organs.ingest.jobs.extract import EXTRACT
from organs.ingest.jobs.kind import JobKind, Values
from organs.ingest.jobs.measure import MEASURE
from organs.ingest.jobs.report import REPORT
from organs.ingest.jobs.submissions import (
    INSPECT,
    PUBLISH,
)
from organs.ingest.jobs.validate import VALIDATE
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.jobs import enqueue_job
from organs.registry.errors import BadInput
from organs.registry.registry import Registry

KINDS: Mapping[str, JobKind] = {
    kind.name: kind for kind in (COMPOSE, GRAFT, PURIFY, VALIDATE, MEASURE, EXTRACT, REPORT, INSPECT, PUBLISH)
}


def ask_for(
    registry: Registry,
    kind: str,
    arguments: Values,
    contributor: str = LOCAL,
    kinds: Mapping[str, JobKind] = KINDS,
) -> int:
    """Put a job of that kind at the end of the queue, with arguments from outside; its id.

    Raises BadInput for a kind that there is not and for arguments that it does not take, QueueFull when too many wait,
    TooMany when too many of the contributor's do, and what the kind finds that speaks against it.
    """
    if kind not in kinds:
        raise BadInput(f"there is no job of the kind {kind[:80]!r}: there is {', '.join(kinds)}")
    checked = kinds[kind].settle(registry, kinds[kind].check(arguments), contributor)
    with registry.catalog.writing() as session:
        return enqueue_job(session, kind, checked, contributor)
