"""Schemas of what becomes of a model after it was published."""

from __future__ import annotations

from organs.registry.catalog.queries.published import OWN_STATES
from organs.registry.catalog.records import (
    BASE_MAX,
    DESCRIPTION_MAX,
    TAG_MAX,
    TAGS_MAX,
    TITLE_MAX,
)
from organs.registry.catalog.register.states import REASON_MAX
from organs.registry.compose.licences import LICENCE_MAX
from organs.registry.entities.plan import ACTS
from organs.web.api.schemas.values import (
    COUNT,
    DIGEST,
    MODEL_NAME,
    TEXT,
    TIME,
    Schema,
    described,
    list_of,
    nullable,
    record,
    ref,
)

_STATE: Schema = {"type": "string", "enum": list(OWN_STATES)}
_REASON = described(nullable(TEXT), "Why it was yanked, in the words of whoever did it.")
_VERSION_ASKED = described(nullable({"type": "integer", "minimum": 1}), "The newest visible one where it is left out.")
_NEXT = described(nullable(TEXT), "What to give as `after` for the next page; null on the last.")


def _line(limit: int, description: str) -> Schema:
    return {"type": ["string", "null"], "maxLength": limit, "description": description}


_EDITS: dict[str, Schema] = {
    "version": _VERSION_ASKED,
    "title": _line(TITLE_MAX, "One line."),
    "description": _line(DESCRIPTION_MAX, "Markdown, shown without HTML and images."),
    "license": _line(LICENCE_MAX, "An SPDX expression, `LicenseRef-` and a name, or `other`."),
    "tags": {
        "type": ["array", "null"],
        "maxItems": TAGS_MAX,
        "items": {"type": "string", "maxLength": TAG_MAX},
        "description": "A few words each.",
    },
    "base": _line(BASE_MAX, "What it was made from: `namespace/name`, or what that is called elsewhere."),
}
_CHANGES = record(
    "What it has otherwise than the version before.",
    {
        "since": MODEL_NAME,
        "size_bytes": described({"type": "integer"}, "How much larger it is, in bytes."),
        "changed": described(COUNT, "Organs that are others under the same names."),
        "added": COUNT,
        "gone": COUNT,
    },
)
_VERSION: dict[str, Schema] = {
    "name": MODEL_NAME,
    "version": {"type": "integer", "minimum": 1},
    "state": _STATE,
    "state_reason": _REASON,
    "title": nullable(TEXT),
    "digest": DIGEST,
    "size_bytes": COUNT,
    "tensors": COUNT,
    "downloads": COUNT,
    "grafts": described(COUNT, "Visible chimeras that have organs of it."),
    "created_at": TIME,
    "changes": described(nullable(_CHANGES), "Null of the first, and where very large ones were not compared."),
}
_DESCENDANT: dict[str, Schema] = {
    "name": MODEL_NAME,
    "title": nullable(TEXT),
    "lock_id": DIGEST,
    "contributor": described(TEXT, "Who made it."),
    "role": described({"type": "string", "enum": ["base", "donor"]}, "What the model was to it."),
    "acts": list_of({"type": "string", "enum": list(ACTS)}, "What was done with its organs."),
    "organs": described(COUNT, "How many of its organs are this model's, or were made from them."),
    "created_at": TIME,
}
PUBLISHED_SCHEMAS: dict[str, Schema] = {
    "ModelEdits": record("What is to be changed; what is left out stays, null takes away.", _EDITS, optional=_EDITS),
    "Published": record(
        "What its owner may say of a model, and its state.",
        {
            "name": MODEL_NAME,
            "state": _STATE,
            "state_reason": _REASON,
            "changed_at": nullable(TIME),
            "title": nullable(TEXT),
            "description": nullable(TEXT),
            "license": nullable(TEXT),
            "tags": list_of(TEXT),
            "base": nullable(TEXT),
        },
    ),
    "YankRequest": record(
        "Which version, and why.",
        {"version": _VERSION_ASKED, "reason": {"type": "string", "minLength": 1, "maxLength": REASON_MAX}},
        optional=("version",),
    ),
    "RestoreRequest": record("Which version.", {"version": _VERSION_ASKED}, optional=("version",)),
    "Version": record("One version of a name.", _VERSION),
    "Versions": record(
        "The newest 100 versions of a name, newest first.",
        {"items": list_of(ref("Version")), "left_out": described(COUNT, "Versions that are older still.")},
    ),
    "Descendant": record("A chimera that was made of the model.", _DESCENDANT),
    "Descendants": record("Chimeras, newest first.", {"items": list_of(ref("Descendant")), "next": _NEXT}),
}
