"""Schemas of contributors, accounts and tokens."""

from __future__ import annotations

from organs.registry.catalog.vocabulary import SCOPES, TOKEN_DAYS_MAX
from organs.web.api.schemas.values import BYTES, COUNT, TEXT, TIME, Schema, described, list_of, nullable, record, ref

_SCOPES: Schema = {"type": "array", "items": {"type": "string", "enum": list(SCOPES)}}
_TOKEN_ID = described(TEXT, "What it is called by: no secret.")
_FOR_EVER = "When it ends, in UTC; null for one that never does."
_TOKEN: dict[str, Schema] = {
    "id": _TOKEN_ID,
    "label": described(TEXT, "What its owner calls it."),
    "scopes": _SCOPES,
    "state": {"type": "string", "enum": ["good", "expired", "revoked"]},
    "created_by": described(nullable(TEXT), "The id of the token that created it; null if an administrator did."),
    "created_at": TIME,
    "expires_at": described(nullable(TIME), _FOR_EVER),
    "revoked_at": nullable(TIME),
    "last_used_at": described(nullable(TIME), "To about ten minutes."),
}
_CONTRIBUTOR: dict[str, Schema] = {
    "name": described(TEXT, "Of the contributor, and of the namespace."),
    "since": described(TIME, "When the contributor was added, in UTC."),
    "models": described(COUNT, "Visible ones, each version by itself, chimeras among them."),
    "chimeras": described(COUNT, "Those that were composed here."),
    "downloads": COUNT,
    "grafts": described(COUNT, "Visible chimeras that have organs of a model, summed over the models."),
}

ACCOUNT_SCHEMAS: dict[str, Schema] = {
    "Account": record(
        "Who asks.",
        {
            "contributor": TEXT,
            "namespace": described(TEXT, "In which the contributor's models are."),
            "scopes": described(_SCOPES, "What may be done."),
            "token": nullable(ref("OwnToken")),
            "quota": ref("OwnQuota"),
        },
    ),
    "OwnQuota": record(
        "What may be kept for who asks, and what is.",
        {
            "limit_bytes": BYTES,
            "used_bytes": described(BYTES, "The sizes of models' files and of uploads."),
            "uploads_bytes": described(BYTES, "Of what is used, that of uploads."),
            "submitted_bytes": described(BYTES, "Beside what is used: models that are submitted and not made yet."),
            "model_max_bytes": described(BYTES, "The largest model that is taken from anybody."),
        },
    ),
    "OwnToken": record(
        "The token that asks; null on a server of one's own that was asked without one.",
        {"id": _TOKEN_ID, "label": TEXT, "expires_at": described(nullable(TIME), _FOR_EVER)},
    ),
    "Quota": record(
        "What may be kept for a contributor, and what is: the sizes of models' files and of uploads.",
        {"limit_bytes": BYTES, "used_bytes": BYTES},
    ),
    "Token": record("A token, without what is secret of it.", _TOKEN),
    "NewToken": record(
        "A token that was made just now.", {**_TOKEN, "token": described(TEXT, "Its text: keep it, it is shown once.")}
    ),
    "Tokens": record(
        "All tokens of a contributor.", {"items": list_of(ref("Token")), "next": described(nullable(TEXT), "Null.")}
    ),
    "TokenRequest": record(
        "What the new token is to be.",
        {
            "scopes": described(_SCOPES | {"minItems": 1}, "Some of the scopes of the token that is sent."),
            "label": {"type": "string", "maxLength": 96, "description": "For its owner, to know it by."},
            "days": {
                "type": ["integer", "null"],
                "minimum": 1,
                "maximum": TOKEN_DAYS_MAX,
                "description": "Days until it expires, a year if left out; null for as long as the token that is sent, "
                "with which it expires at the latest.",
            },
        },
        optional=("label", "days"),
    ),
    "Contributor": record("A contributor, as everybody may see them.", _CONTRIBUTOR),
    "Contributors": record(
        "A page of contributors.",
        {
            "items": list_of(ref("Contributor")),
            "next": described(nullable(TEXT), "What to give as `after` for the next page; null on the last."),
        },
    ),
}
