"""All kinds of jobs there are. A new one is a module of its own, and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from ingest.jobs.compose import COMPOSE
from ingest.jobs.extract import EXTRACT
from ingest.jobs.graft import GRAFT
from ingest.jobs.intake import INSPECT, PUBLISH
from ingest.jobs.kind import JobKind
from ingest.jobs.measure import MEASURE
from ingest.jobs.purify import PURIFY
from ingest.jobs.report import REPORT
from ingest.jobs.validate import VALIDATE

KINDS: Mapping[str, JobKind] = {
    kind.name: kind for kind in (COMPOSE, GRAFT, PURIFY, VALIDATE, MEASURE, EXTRACT, REPORT, INSPECT, PUBLISH)
}
