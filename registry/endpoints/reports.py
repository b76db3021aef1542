"""Reports: on the registry, whole or one section, and on one model."""

from __future__ import annotations

from typing import Annotated

from organs.registry.endpoints.declaration import ACCEPTED, Group
from organs.registry.endpoints.parameters import Name, Namespace, choice_note, limit_note
from organs.registry.entities.job import Job, ReportRequest
from organs.registry.entities.report import ORGANS_DEFAULT, ROWS_DEFAULT, Report

GROUP = Group("Reports", "Summaries of all measurements, with explanations.")
SECTIONS = (
    *("figures", "actions", "families", "ranking", "types", "type_ranges", "model_types", "components", "scale"),
    *("wells", "ingests", "ingest_totals"),
)
"""The sections of the report. Only the owner's report has the totals of ingests."""
Section = Annotated[str, choice_note("One of the report's sections.", SECTIONS, "ranking")]
Rows = Annotated[int, limit_note("Rows of a table of models")]
OrganRows = Annotated[int, limit_note("Rows of a list of tensors")]


@GROUP.get("/reports", "Report on the registry", example="limit=2")
def report(limit: Rows = ROWS_DEFAULT) -> Report:
    """Return figures, what one can do, families, ranking, types, components, scale law, gravitational wells and
    ingests, with explanations.
    """


@GROUP.get("/reports/{section}", "One section of the report", example="limit=2", refusals=(404,))
def report_section(section: Section, limit: Rows = ROWS_DEFAULT) -> Report:
    """Return the report with a single section."""


@GROUP.get("/reports/models/{namespace}/{name}", "Report on a model", example="limit=2", refusals=(404, 410))
def report_on_model(namespace: Namespace, name: Name, limit: OrganRows = ORGANS_DEFAULT) -> Report:
    """Return the parts of a model, what it shares with other models, and the measurements of its tensors."""


@GROUP.write("post", "/reports", "Make a report as a job", status=ACCEPTED, example='{"limit": 2}')
def keep_report(body: ReportRequest) -> Job:
    """Start a job whose result is the report on the registry, or on `model`."""
