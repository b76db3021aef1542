"""Schemas of the registry as a whole: its figures and its reports."""

from __future__ import annotations

from organs.web.api.schemas.values import (
    COUNT,
    TEXT,
    Schema,
    described,
    nullable,
    record,
    ref,
    values_by_name,
)

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
    "Document": {"type": "object", "description": "This document.", "required": ["openapi", "info", "paths"]},
}
