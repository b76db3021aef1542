"""All kinds of jobs there are. A new one is a module of its own, and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from organs.ingest.jobs.compose import COMPOSE
from organs.ingest.jobs.extract import EXTRACT
from organs.ingest.jobs.graft import GRAFT
from organs.ingest.jobs.intake import INSPECT, PUBLISH
from organs.ingest.jobs.kind import JobKind
from organs.ingest.jobs.measure import MEASURE
from organs.ingest.jobs.purify import PURIFY
from organs.ingest.jobs.report import REPORT
from organs.ingest.jobs.validate import VALIDATE

KINDS: Mapping[str, JobKind] = {
    kind.name: kind for kind in (COMPOSE, GRAFT, PURIFY, VALIDATE, MEASURE, EXTRACT, REPORT, INSPECT, PUBLISH)
}
