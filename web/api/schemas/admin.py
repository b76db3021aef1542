"""Schemas of what administrators are told."""

from __future__ import annotations

from organs.registry.catalog.register.states import REASON_MAX
from organs.registry.catalog.vocabulary import CONTRIBUTOR_STATES, MODEL_KINDS, MODEL_STATES, SUBMISSION_STATES
from organs.web.api.schemas.values import (
    BYTES,
    COUNT,
    FLAG,
    MODEL_NAME,
    TEXT,
    THETA,
    TIME,
    Schema,
    described,
    list_of,
    nullable,
    record,
    ref,
)

_ID: Schema = {"type": "integer", "minimum": 1}
_NEXT = described(nullable(TEXT), "What to give as `after` for the next page; null on the last.")
_STATE: Schema = {"type": "string", "enum": list(CONTRIBUTOR_STATES)}
_QUOTA: Schema = {
    "type": ["integer", "null"],
    "minimum": 0,
    "maximum": 2**63 - 1,
    "description": "Bytes that may be kept for the contributor; null is what the server gives to everybody.",
}
_REASON: Schema = {"type": "string", "minLength": 1, "maxLength": REASON_MAX, "description": "Why, for people."}

ADMIN_SCHEMAS: dict[str, Schema] = {
    "Quarantine": record(
        "A page of what waits for an administrator.", {"items": list_of(ref("WaitingSubmission")), "next": _NEXT}
    ),
    "WaitingSubmission": record(
        "A model that is checked and taken apart, and that nobody sees yet.",
        {
            "id": _ID,
            "contributor": described(TEXT, "Who sent it."),
            "name": described(TEXT, "`namespace/name`."),
            "size_bytes": described(BYTES, "Of its files."),
            "model": nullable(MODEL_NAME),
            "title": nullable(TEXT),
            "description": described(nullable(TEXT), "Markdown."),
            "license": nullable(TEXT),
            "tags": list_of(TEXT),
            "base": described(nullable(TEXT), "The parent that it names, in its words."),
            "kind": nullable({"type": "string", "enum": list(MODEL_KINDS)}),
            "complete": described(nullable(FLAG), "False of a partial model, which has only some of its organs."),
            "architecture": nullable(TEXT),
            "parameters": nullable(COUNT),
            "tensors": nullable(COUNT),
            "organs": described(nullable(COUNT), "Different ones."),
            "organs_new": described(nullable(COUNT), "Of these, that no visible or yanked model has."),
            "mean_theta": nullable(THETA),
            "findings": list_of(ref("SubmissionFinding")),
            "created_at": TIME,
            "changed_at": TIME,
        },
    ),
    "SubmissionFinding": record(
        "Something that was found in what was sent.",
        {"severity": described(TEXT, "`refuse`, `warn` or `note`."), "code": TEXT, "sentence": TEXT},
    ),
    "Decision": record(
        "What became of a submission.",
        {
            "id": _ID,
            "name": described(TEXT, "`namespace/name`."),
            "state": {"type": "string", "enum": list(SUBMISSION_STATES)},
            "model": nullable(MODEL_NAME),
            "address": described(nullable(TEXT), "Of its page."),
            "reason": nullable(TEXT),
        },
    ),
    "RefusalRequest": record("Why it is refused.", {"reason": _REASON}),
    "RemovalRequest": record("What goes, and why.", {"version": _ID, "reason": _REASON}),
    "Removal": record(
        "What a removal has taken away.",
        {
            "model": MODEL_NAME,
            "state": {"type": "string", "enum": list(MODEL_STATES)},
            "reason": nullable(TEXT),
            "size_bytes": described(BYTES, "Of its files."),
            "places": described(COUNT, "Of organs in it."),
            "organs": described(COUNT, "That no other model had."),
            "blobs": described(COUNT, "That nothing needs any more: sweeps take them."),
            "stored_bytes": described(BYTES, "Of these blobs."),
            "chimeras": list_of(MODEL_NAME, "That have organs of it, or it as their base; they keep these."),
        },
    ),
    "ContributorAccount": record(
        "A contributor, as administrators see them.",
        {
            "name": TEXT,
            "state": _STATE,
            "since": described(TIME, "When the contributor was added, in UTC."),
            "quota": ref("Quota"),
            "has_own_quota": described(FLAG, "Whether the quota is the contributor's own, not everybody's."),
        },
    ),
    "ContributorAccounts": record(
        "A page of contributors, newest first.", {"items": list_of(ref("ContributorAccount")), "next": _NEXT}
    ),
    "NewContributorRequest": record(
        "Who is to be added.",
        {
            "name": {"type": "string", "maxLength": 96, "description": "Also of the namespace."},
            "quota": _QUOTA,
        },
        optional=("quota",),
    ),
    "ContributorChangeRequest": record(
        "What is to be another; at least one of the two.", {"state": _STATE, "quota": _QUOTA}, ("state", "quota")
    ),
}
