"""Schemas of jobs."""

from __future__ import annotations

from organs.registry.catalog.vocabulary import JOB_STATES
from organs.web.api.schemas.values import SHARE, TEXT, TIME, Schema, described, list_of, nullable, record, ref

_SUMMARY: dict[str, Schema] = {
    "id": {"type": "integer", "minimum": 1},
    "kind": described(TEXT, "What it does: `report`. More may be added."),
    "state": {"type": "string", "enum": list(JOB_STATES)},
    "progress": described(SHARE, "From 0 to 1."),
    "note": described(TEXT, "What it is doing, or why it failed."),
    "contributor": described(TEXT, "Who asked for it."),
    "created_at": described(TIME, "When it was asked for, in UTC."),
    "started_at": described(nullable(TIME), "When it was taken up last."),
    "finished_at": described(nullable(TIME), "When it ended, in whatever state."),
}
_ARGUMENTS: Schema = {"type": "object", "description": "What was asked.", "additionalProperties": {}}
_RESULT: Schema = {
    "type": ["object", "null"],
    "description": "What came of it; null unless it has finished. What is in it depends on its kind.",
    "additionalProperties": {},
}

JOB_SCHEMAS: dict[str, Schema] = {
    "JobSummary": record("A job as a line of a list.", _SUMMARY),
    "Jobs": record(
        "A page of jobs.",
        {
            "items": list_of(ref("JobSummary")),
            "next": described(nullable(TEXT), "What to give as `after` for the next page; null on the last."),
        },
    ),
    "Job": record(
        "Something that takes longer than a request.", {**_SUMMARY, "arguments": _ARGUMENTS, "result": _RESULT}
    ),
}
