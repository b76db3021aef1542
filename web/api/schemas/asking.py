"""Schemas of what is asked for in the bodies of requests."""

from __future__ import annotations

from organs.registry.validation.texts import BUILT_IN_NAMES
from organs.web.api.schemas.values import TEXT, Schema, described, nullable, record

_WORDS: Schema = {"type": ["string", "array"], "items": TEXT, "description": "One word, or a list of words."}
_BLOCKS: Schema = {
    "type": ["integer", "string", "array"],
    "items": {"type": ["integer", "string"]},
    "description": "A block, a range such as `2-5`, or a list of both.",
}
_SELECTION: dict[str, Schema] = {"type": _WORDS, "slot": _WORDS, "blocks": _BLOCKS}
_NAME = described(TEXT, "What it is registered as: a name in your own namespace; by convention where it is left out.")
_ACCEPT: Schema = {"type": "array", "items": TEXT, "description": "Codes of warnings that are accepted."}
_TEXTS: Schema = {
    "type": ["array", "null"],
    "items": {"type": "string", "enum": list(BUILT_IN_NAMES)},
    "minItems": 1,
    "description": "Built-in texts; all of them where it is left out.",
}


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
    "GraftRequest": _optional(
        "Organs of a donor into a base, selected as in a recipe.",
        {"base": TEXT, "donor": TEXT},
        {**_SELECTION, "name": _NAME, "accept": _ACCEPT},
    ),
    "PurificationRequest": _optional(
        "Organs of a model, selected as in a recipe.",
        {"model": TEXT, "method": {"type": "string", "description": "`spectral` or `fractal`."}},
        {
            "keep": {"type": "number", "description": "The share of the energy that spectral keeps: up to 1."},
            "where": described(TEXT, "A query that narrows the selection by what organs measure."),
            **_SELECTION,
            "name": _NAME,
            "encode": described(TEXT, "As what organs are written whose own dtype cannot be: `Q8_0`, `F16`..."),
            "accept": _ACCEPT,
        },
    ),
    "ValidationRequest": _optional(
        "A chimera to be run.",
        {"chimera": described(TEXT, "Its name, or `sha256:` and the digest of its lock.")},
        {
            "tokens": described(nullable({"type": "integer", "minimum": 32, "maximum": 512}), "Of each text."),
            "texts": _TEXTS,
        },
    ),
    "ModelRequest": record("A registered model.", {"model": described(TEXT, "`namespace/name`, with `@version`.")}),
    "ReportRequest": _optional(
        "Which report.",
        {},
        {
            "model": described(nullable(TEXT), "Of one model; of the registry where it is left out."),
            "limit": described(nullable({"type": "integer", "minimum": 1, "maximum": 1000}), "Rows of a list."),
        },
    ),
    "AssemblyRequest": {
        **_optional("A model or a lock, one of the two.", {}, {"model": TEXT, "lock": TEXT}),
        "minProperties": 1,
        "maxProperties": 1,
    },
}
