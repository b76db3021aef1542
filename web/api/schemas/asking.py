"""Schemas of what is asked for in the bodies of requests."""

from __future__ import annotations

from organs.web.api.schemas.values import TEXT, Schema, record


def _optional(description: str, needed: dict[str, Schema], more: dict[str, Schema]) -> Schema:
    return record(description, {**needed, **more}, optional=more)


ASKING_SCHEMAS: dict[str, Schema] = {
    "RecipeGiven": {
        "type": "object",
        "additionalProperties": {},
        "description": (
            'A recipe: `base`, `name`, `grafts`, `adapters`, `purify`, `encode`, `accept`, `metadata`; or `{"yaml": '
            "TEXT}` with all of it. What is wrong is told by field."
        ),
    },
    "AssemblyRequest": {
        **_optional("A model or a lock, one of the two.", {}, {"model": TEXT, "lock": TEXT}),
        "minProperties": 1,
        "maxProperties": 1,
    },
}
