"""What administrators are shown, as plain values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy.orm import Session

from organs.registry.catalog.queries.administration import AccountsPage, Numbers, WaitingPage
from organs.registry.catalog.queries.relatives import parents_of
from organs.registry.catalog.queries.removing import Removal
from organs.registry.catalog.queries.shared_organs import OrganCounts, organ_counts
from organs.registry.catalog.tables import Model, Submission
from organs.registry.present.accounts import contributor_account_values
from organs.registry.present.values import Values

Submitted = tuple[Submission, str, Model | None]
"""A submission, its contributor's name, and its model if there is one."""
_MADE = (
    *("model", "title", "description", "license", "tags", "base", "kind", "complete", "architecture"),
    *("parameters", "tensors", "organs", "organs_new", "mean_theta"),
)
"""What is known of a submission once it has a model."""


def waiting_values(session: Session, page: WaitingPage) -> Values:
    """What waits for an administrator's word, with what there is to be known of it."""
    return {"items": submitted_values(session, [(row[0], row[1], row[2]) for row in page.items]), "next": page.next}


def submitted_values(session: Session, rows: Sequence[Submitted]) -> list[Values]:
    """Submissions with their contributors' names and what was made of them, as administrators see them."""
    model_ids = [model.id for _, _, model in rows if model is not None]
    organs = organ_counts(session, model_ids)
    bases: dict[int | None, str | None] = {}
    for edge in parents_of(session, model_ids, ("declared",)):
        bases.setdefault(edge.child_model_id, edge.parent_text)
    return [
        _submitted(submission, contributor)
        | (_nothing() if model is None else _made(model, bases.get(model.id), organs.get(model.id, OrganCounts())))
        for submission, contributor, model in rows
    ]


def accounts_values(session: Session, page: AccountsPage, default_bytes: int) -> Values:
    """Contributors with what is kept for them."""
    items = [contributor_account_values(session, one, default_bytes) for one in page.items]
    return {"items": items, "next": page.next}


def numbers_values(numbers: Numbers) -> Values:
    """The registry in the numbers of administrators."""
    return asdict(numbers)


def removal_values(model: Model, removal: Removal) -> Values:
    """A model with what its removal takes away."""
    return {
        "model": model.full_name,
        "state": model.state,
        "reason": model.state_reason,
        "size_bytes": model.size_bytes,
        **asdict(removal),
        "chimeras": list(removal.chimeras),
    }


def decision_values(submission: Submission, _contributor: str, model: Model | None) -> Values:
    """What became of a submission."""
    shown = model is not None and model.state == "visible"
    return {
        "id": submission.id,
        "name": f"{submission.namespace}/{submission.name}",
        "state": submission.state,
        "model": None if model is None else model.full_name,
        "address": f"/models/{model.full_name}" if shown and model is not None else None,
        "reason": submission.reason,
    }


def _submitted(submission: Submission, contributor: str) -> Values:
    return {
        "id": submission.id,
        "contributor": contributor,
        "name": f"{submission.namespace}/{submission.name}",
        "size_bytes": submission.size_bytes,
        "findings": [_finding(one) for one in json.loads(submission.findings)],
        "created_at": submission.created_at.isoformat(),
        "changed_at": submission.changed_at.isoformat(),
    }


def _made(model: Model, base: str | None, organs: OrganCounts) -> Values:
    return {
        "model": model.full_name,
        "title": model.title,
        "description": model.description,
        "license": model.license,
        "tags": json.loads(model.tags),
        "base": base,
        "kind": model.kind,
        "complete": model.complete,
        "architecture": model.architecture,
        "parameters": model.parameters,
        "tensors": model.tensors,
        "organs": organs.different,
        "organs_new": organs.new,
        "mean_theta": model.mean_theta,
    }


def _nothing() -> Values:
    return dict.fromkeys(_MADE) | {"tags": []}


def _finding(finding: dict[str, Any]) -> Values:
    return {key: str(finding.get(key, "")) for key in ("severity", "code", "sentence")}
