"""The kind of job `report`: the report on the registry, or on one model, as it was when the job ran."""

from __future__ import annotations

import msgspec

from organs.ingest.jobs.kind import (
    WORK,
    JobKind,
    Tell,
    Values,
    check_members,
    text_or_none,
    whole_number,
)
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.entities.report import ORGANS_DEFAULT, ROWS_DEFAULT
from organs.registry.local import LocalRegistry
from organs.registry.names import MODEL_TEXT_MAX_LENGTH, parse_model_name
from organs.registry.reports.dissection import model_report
from organs.registry.reports.overview import registry_report

ROWS_MAX = 1000


def _checked(arguments: Values) -> Values:
    check_members(arguments, ("model", "limit"))
    model = text_or_none(arguments, "model", MODEL_TEXT_MAX_LENGTH)
    limit = whole_number(arguments, "limit", ROWS_DEFAULT if model is None else ORGANS_DEFAULT, 1, ROWS_MAX)
    return {"limit": limit} if model is None else {"model": str(parse_model_name(model)), "limit": limit}


def _run(registry: LocalRegistry, arguments: Values, tell: Tell, _contributor: str) -> Values:
    tell(0.0, "reading what was measured")
    with registry.catalog.reading() as session:
        if "model" not in arguments:
            return {"report": msgspec.to_builtins(registry_report(session, arguments["limit"]))}
        model = model_by_name(session, parse_model_name(arguments["model"]))
        report = model_report(session, model, arguments["limit"])
        return {"model": model.full_name, "report": msgspec.to_builtins(report)}


REPORT = JobKind("report", WORK, _checked, _run)
"""Takes `model` (by default the registry) and `limit`, rows of a list. The result has `report`, and `model`."""
