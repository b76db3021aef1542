"""Reports: on the registry, whole or one section, and on one model."""

from __future__ import annotations

from organs.registry.entities.job import Job, ReportRequest
from organs.registry.entities.report import ORGANS_DEFAULT, ROWS_DEFAULT, Report
from organs.registry.errors import NotFound
from organs.registry.reports.dissection import model_report
from organs.registry.reports.overview import current_report, registry_report
from organs.web.api.models import EXAMPLE
from organs.web.api.operation import ACCEPTED, ROOT, json_body, operation, queued, writing_operation
from organs.web.auth import is_personal
from organs.web.params import NAME, NAMESPACE, ORGAN_ROWS, ROWS, addressed_model, path_parameter, requested_limit
from organs.web.permissions import may_see_storage
from organs.web.responses import reading

GROUP = "Reports"
REPORT_SECONDS = 10.0
"""Time limit. A report reads every placement: about 2.5 s for a million. It is cached until the catalog changes."""
SECTIONS = (
    *("figures", "actions", "families", "ranking", "types", "type_ranges", "model_types", "components", "scale"),
    *("wells", "ingests", "ingest_totals"),
)
"""The sections of the report. Only the owner's report has the totals of ingests."""
SECTION = path_parameter(
    "section", "One of the report's sections.", {"type": "string", "enum": list(SECTIONS)}, "ranking"
)


@operation(GROUP, "/reports", "Report on the registry", ROWS, example=f"{ROOT}/reports?limit=2")
def report() -> Report:
    """Return figures, what one can do, families, ranking, types, components, scale law, gravitational wells and
    ingests, with explanations.
    """
    return _registry_report()


@operation(
    GROUP,
    "/reports/{section}",
    "One section of the report",
    SECTION,
    ROWS,
    example=f"{ROOT}/reports/wells?limit=2",
    refusals=(404,),
)
def report_section(section: str) -> Report:
    """Return the report with a single section."""
    whole = _registry_report() if section in SECTIONS else None
    if whole is None or section not in whole.sections:
        raise NotFound(f"the report has no section {section[:80]!r}: it has {', '.join(SECTIONS)}")
    return whole.only(section)


@operation(
    GROUP,
    "/reports/models/{namespace}/{name}",
    "Report on a model",
    NAMESPACE,
    NAME,
    ORGAN_ROWS,
    example=f"{ROOT}/reports/models/{EXAMPLE}?limit=2",
    refusals=(404, 410),
)
def report_on_model(namespace: str, name: str) -> Report:
    """Return the parts of a model, what it shares with other models, and the measurements of its organs."""
    limit = requested_limit(ORGANS_DEFAULT)
    with reading(REPORT_SECONDS) as session:
        row = addressed_model(session, namespace, name)
        return model_report(session, row, limit, complete=may_see_storage())


@writing_operation(
    GROUP, "/reports", "Make a report as a job", status=ACCEPTED, body=ReportRequest, example='{"limit": 2}'
)
def keep_report() -> Job:
    """Start a job whose result is the report on the registry, or on `model`."""
    return queued("report", json_body(ReportRequest))


def _registry_report() -> Report:
    """Return the report with as many rows as requested; raises TooSlow."""
    limit = requested_limit(ROWS_DEFAULT)
    if limit == ROWS_DEFAULT:
        return full_report()
    with reading(REPORT_SECONDS) as session:  # a client that requests every limit must not fill the memory
        return registry_report(session, limit, complete=is_personal())


def full_report() -> Report:
    """Return the report on the registry, which is made once for each state of the catalog; raises TooSlow."""
    with reading(REPORT_SECONDS) as session:
        return current_report(session, complete=is_personal())
