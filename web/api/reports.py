"""Reports: on the registry, whole or one section, and on one model."""

from __future__ import annotations

from organs.registry.endpoints import reports as endpoints
from organs.registry.entities.job import Job, ReportRequest
from organs.registry.entities.report import ROWS_DEFAULT, Report
from organs.registry.errors import NotFound
from organs.registry.reports.dissection import model_report
from organs.registry.reports.overview import current_report, registry_report
from organs.web.api.operation import queued, serves
from organs.web.auth import is_personal
from organs.web.params import addressed_model
from organs.web.permissions import may_see_storage
from organs.web.responses import reading

REPORT_SECONDS = 10.0
"""Time limit. A report reads every placement: about 2.5 s for a million. It is cached until the catalog changes."""


@serves(endpoints.report)
def report(limit: int) -> Report:
    return _registry_report(limit)


@serves(endpoints.report_section)
def report_section(section: str, limit: int) -> Report:
    whole = _registry_report(limit)
    if section not in whole.sections:
        raise NotFound(f"the report has no section {section!r}: it has {', '.join(whole.sections)}")
    return whole.only(section)


@serves(endpoints.report_on_model)
def report_on_model(namespace: str, name: str, limit: int) -> Report:
    with reading(REPORT_SECONDS) as session:
        row = addressed_model(session, namespace, name)
        return model_report(session, row, limit, complete=may_see_storage())


@serves(endpoints.keep_report)
def keep_report(body: ReportRequest) -> Job:
    return queued("report", body)


def _registry_report(limit: int) -> Report:
    """Return the report with at most `limit` rows in a list; raises TooSlow."""
    if limit == ROWS_DEFAULT:
        return full_report()
    with reading(REPORT_SECONDS) as session:  # a client that requests every limit must not fill the memory
        return registry_report(session, limit, complete=is_personal())


def full_report() -> Report:
    """Return the report on the registry, which is made once for each state of the catalog; raises TooSlow."""
    with reading(REPORT_SECONDS) as session:
        return current_report(session, complete=is_personal())
