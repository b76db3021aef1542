"""Schemas of submissions."""

from __future__ import annotations

from organs.ingest.contributions.findings import MUST_ACKNOWLEDGE
from organs.ingest.contributions.manifest import (
    FILES_MAX,
    PIECES_MAX,
)
from organs.registry.catalog.records import (
    BASE_MAX,
    DESCRIPTION_MAX,
    LICENSE_MAX,
    TAG_MAX,
    TAGS_MAX,
    TITLE_MAX,
)
from organs.registry.catalog.vocabulary import MODEL_KINDS, SUBMISSION_STATES
from organs.web.api.schemas.values import (
    BYTES,
    COUNT,
    DIGEST,
    FLAG,
    MODEL_NAME,
    SHARE,
    TEXT,
    TIME,
    Schema,
    described,
    list_of,
    nullable,
    record,
    ref,
)


def _words(most: int, description: str) -> Schema:
    return {"type": ["string", "null"], "maxLength": most, "description": description}


_TAGS: Schema = {"type": ["array", "null"], "items": {"type": "string", "maxLength": TAG_MAX}, "maxItems": TAGS_MAX}
_SAID: dict[str, Schema] = {
    "title": _words(TITLE_MAX, "What it is called in lists."),
    "description": _words(DESCRIPTION_MAX, "Markdown."),
    "license": _words(
        LICENSE_MAX, "An SPDX expression of licences that are known, `LicenseRef-` and a name, or `other`."
    ),
    "base": _words(BASE_MAX, "The model that it was made from, `namespace/name`."),
    "tags": _TAGS,
}
_PIECE: Schema = {
    "type": "array",
    "prefixItems": [COUNT, {"type": "integer", "minimum": 1}, DIGEST],
    "minItems": 3,
    "maxItems": 3,
    "description": "Offset in the file, size, and digest of the bytes, in rising order.",
}
_NAME: Schema = {"type": "string", "maxLength": 255, "description": "Without a path; it ends in `.gguf`."}
_FILE: Schema = {
    "oneOf": [
        record(
            "A file of pieces, zeros between them.",
            {
                "name": _NAME,
                "size_bytes": {"type": "integer", "minimum": 1},
                "sha256": DIGEST,
                "pieces": {"type": "array", "items": _PIECE, "maxItems": PIECES_MAX},
            },
        ),
        record("A whole upload.", {"name": _NAME, "upload": described(TEXT, "Its id; it is finished.")}),
    ]
}
_PROPOSED = record(
    "What it would be shown as: what the headers say, and over it what its contributor does.",
    {
        "title": nullable(TEXT),
        "description": nullable(TEXT),
        "license": nullable(TEXT),
        "base": nullable(TEXT),
        "tags": list_of(TEXT),
        "architecture": nullable(TEXT),
        "parameters": COUNT,
        "tensors": COUNT,
        "size_bytes": BYTES,
        "kind": {"type": "string", "enum": list(MODEL_KINDS)},
        "complete": described(FLAG, "Whether all organs are there that the header announces."),
    },
)

_ACKNOWLEDGE = described(
    nullable({"type": "array", "items": {"type": "string", "enum": sorted(MUST_ACKNOWLEDGE)}}),
    "Codes of the findings that you accept. Without them the submission stays `ready`.",
)

SUBMISSION_SCHEMAS: dict[str, Schema] = {
    "SubmissionMetadata": record("What is said of a model beside its header.", _SAID, optional=_SAID),
    "SubmissionRequest": record(
        "A model of what was sent and what is here.",
        {
            "files": {"type": "array", "items": _FILE, "minItems": 1, "maxItems": FILES_MAX},
            "metadata": nullable(ref("SubmissionMetadata")),
            "publish": described(FLAG, "False only looks; true, the default, publishes too."),
            "acknowledge": _ACKNOWLEDGE,
        },
        optional=("metadata", "publish", "acknowledge"),
    ),
    "PublicationRequest": record(
        "What is said of the model, and its name if it is another.",
        {"metadata": nullable(ref("SubmissionMetadata")), "name": nullable(TEXT), "acknowledge": _ACKNOWLEDGE},
        optional=("metadata", "name", "acknowledge"),
    ),
    "Submission": record(
        "A model on its way into the catalog.",
        {
            "id": {"type": "integer", "minimum": 1},
            "namespace": TEXT,
            "name": TEXT,
            "state": {"type": "string", "enum": list(SUBMISSION_STATES)},
            "findings": list_of(ref("SubmissionFinding"), "What refuses first, then warnings, then notes."),
            "proposed": {"oneOf": [_PROPOSED, {"type": "null"}], "description": "Null until it is looked at."},
            "model": nullable(MODEL_NAME),
            "address": described(nullable(TEXT), "Of its page, once everybody sees it."),
            "reason": described(nullable(TEXT), "Why it was refused."),
            "job": nullable({"type": "integer", "minimum": 1}),
            "progress": described(SHARE, "From 0 to 1, of looking at it and taking it apart."),
            "note": described(TEXT, "What is being done."),
            "created_at": TIME,
            "changed_at": TIME,
        },
    ),
    "Submissions": record(
        "A page of submissions.",
        {
            "items": list_of(ref("Submission")),
            "next": described(nullable(TEXT), "What to give as `after` for the next page; null on the last."),
        },
    ),
}
