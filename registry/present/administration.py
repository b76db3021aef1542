"""What administrators are shown, as plain values."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from sqlalchemy.orm import Session

from registry.catalog.queries.administration import AccountsPage, Numbers, WaitingPage
from registry.catalog.queries.removing import Removal
from registry.catalog.tables import Model, Submission
from registry.present.accounts import contributor_account_values
from registry.present.values import Values


def waiting_values(page: WaitingPage) -> Values:
    """What waits for an administrator's word."""
    return {"items": [_waiting(*row) for row in page.items], "next": page.next}


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


def _waiting(submission: Submission, contributor: str, model: Model | None) -> Values:
    return {
        "id": submission.id,
        "contributor": contributor,
        "name": f"{submission.namespace}/{submission.name}",
        "model": None if model is None else model.full_name,
        "title": None if model is None else model.title,
        "license": None if model is None else model.license,
        "architecture": None if model is None else model.architecture,
        "parameters": None if model is None else model.parameters,
        "tensors": None if model is None else model.tensors,
        "size_bytes": submission.size_bytes,
        "findings": [_finding(one) for one in json.loads(submission.findings)],
        "created_at": submission.created_at.isoformat(),
        "changed_at": submission.changed_at.isoformat(),
    }


def _finding(finding: dict[str, Any]) -> Values:
    return {key: str(finding.get(key, "")) for key in ("severity", "code", "sentence")}
