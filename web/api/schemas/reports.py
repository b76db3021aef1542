"""Schemas of the registry as a whole: its figures and its reports."""

from __future__ import annotations

from organs.registry.reports.document import Kind
from organs.web.api.schemas.values import (
    COUNT,
    FLAG,
    TEXT,
    Schema,
    described,
    list_of,
    nullable,
    record,
    ref,
    values_by_name,
)

_CELL: Schema = {"type": ["string", "number", "null"]}
_KIND: Schema = {
    "type": "string",
    "enum": [one.value for one in Kind],
    "description": "How a value reads for people: a size in bytes, degrees, a share of 1, a count that is rounded ...",
}
_COLUMN: dict[str, Schema] = {
    "key": described(TEXT, "Of its values in `items`."),
    "heading": TEXT,
    "kind": _KIND,
    "data_only": described(FLAG, "Whether people are not shown it."),
}
REPORT_SCHEMAS: dict[str, Schema] = {
    "Root": record(
        "What answers here.",
        {
            "name": TEXT,
            "version": described(TEXT, "Of the program."),
            "figures": ref("Figures"),
            "links": values_by_name("Where to go on, by name.", TEXT),
        },
    ),
    "Figures": {
        "type": "object",
        "description": "The registry in numbers. More may be added.",
        "properties": {"models": COUNT, "placements": COUNT, "organs": COUNT, "size_bytes": COUNT},
        "required": ["models", "size_bytes"],
        "additionalProperties": nullable(COUNT),
    },
    "Report": record(
        "A report with every number unrounded and every sentence. Which sections there are depends on what was asked.",
        {
            "title": TEXT,
            "main": described(TEXT, "The key of the section that a spreadsheet gets unless told otherwise."),
            "order": list_of(TEXT, "The keys of the sections, in the order in which people get them."),
            "opening": list_of(TEXT),
            "sections": values_by_name(
                "By key: tables have `items`, single figures have `figures`.",
                {"oneOf": [ref("ReportTable"), ref("ReportFigures")]},
            ),
            "closing": list_of(TEXT),
        },
    ),
    "ReportTable": record(
        "Rows of one shape. Keys have their unit last, such as `mean_theta_degrees`.",
        {
            "title": TEXT,
            "before": list_of(TEXT, "What the columns are, or why there is no row."),
            "columns": list_of(record("A column of the table.", _COLUMN)),
            "items": list_of(values_by_name("A row.", _CELL)),
            "after": list_of(TEXT, "What they mean and do not mean."),
        },
    ),
    "ReportFigures": record(
        "Single figures, each with its meaning.",
        {
            "title": TEXT,
            "before": list_of(TEXT),
            "figures": values_by_name("By key, with the unit last.", _CELL),
            "meanings": values_by_name("The same keys in words.", TEXT),
            "labels": values_by_name("What each is called.", TEXT),
            "kinds": values_by_name("How each reads.", _KIND),
            "after": list_of(TEXT),
        },
    ),
    "Document": {"type": "object", "description": "This document.", "required": ["openapi", "info", "paths"]},
}
