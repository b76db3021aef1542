"""The kind of job `report`: the report on the registry, or on one model, as it was when the job ran."""

from __future__ import annotations

from organs.ingest.jobs.kind import WORK, JobKind, ReportProgress
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.entities.job import ReportJobResult, ReportRequest
from organs.registry.entities.report import ORGANS_DEFAULT, ROWS_DEFAULT
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.reports.dissection import model_report
from organs.registry.reports.overview import registry_report


def _settle(_registry: LocalRegistry, request: ReportRequest, _contributor: str) -> ReportRequest:
    if request.model is None:
        return ReportRequest(limit=request.limit or ROWS_DEFAULT)
    return ReportRequest(model=str(parse_model_name(request.model)), limit=request.limit or ORGANS_DEFAULT)


def _run(
    registry: LocalRegistry, arguments: ReportRequest, report_progress: ReportProgress, contributor: str
) -> ReportJobResult:
    report_progress(0.0, "reading the measures")
    complete = contributor == LOCAL
    with registry.catalog.reading() as session:
        if arguments.model is None:
            return ReportJobResult(report=registry_report(session, arguments.limit or ROWS_DEFAULT, complete=complete))
        model = model_by_name(session, parse_model_name(arguments.model))
        report = model_report(session, model, arguments.limit or ORGANS_DEFAULT, complete=complete)
        return ReportJobResult(model=model.full_name, report=report)


REPORT = JobKind("report", WORK, ReportRequest, _run, _settle)
"""Takes `model` (by default the registry) and `limit`, rows of a list. The result has `report`, and `model`.

Only a report for the users of this machine is complete, with stored sizes: others may see the jobs of an account later.
"""
