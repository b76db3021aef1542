"""Submissions as plain values, for their contributors."""

from __future__ import annotations

import json

from organs.registry.catalog.queries.submissions import FoundSubmission, SubmissionPage
from organs.registry.catalog.vocabulary import REACHABLE_STATES
from organs.registry.present.values import Values

UNDER_WAY = ("checking", "publishing")
PROPOSED, GIVEN = "proposed", "given"
"""Members of what is kept of a submission beside its files."""


def submission_values(found: FoundSubmission) -> Values:
    """A submission with what was found and what it would be shown as; `model` and `address` once it has a model."""
    row, model = found.row, found.model
    is_under_way = row.state in UNDER_WAY
    return {
        "id": row.id,
        "namespace": row.namespace,
        "name": row.name,
        "state": row.state,
        "findings": json.loads(row.findings),
        "proposed": json.loads(row.metadata_given)[PROPOSED],
        "model": None if model is None else model.full_name,
        "address": None if model is None or model.state not in REACHABLE_STATES else f"/models/{model.full_name}",
        "reason": row.reason,
        "job": row.job_id,
        "progress": found.progress if is_under_way else 1.0,
        "note": found.note if is_under_way else "",
        "created_at": row.created_at.isoformat(),
        "changed_at": row.changed_at.isoformat(),
    }


def submissions_values(page: SubmissionPage) -> Values:
    """A page of submissions."""
    return {"items": [submission_values(found) for found in page.items], "next": page.next}
