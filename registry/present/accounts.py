"""Contributors, their accounts and their tokens as plain values. No secret is in any of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import datetime

from sqlalchemy.orm import Session

from organs.registry.catalog.clock import now
from organs.registry.catalog.queries.accounts import (
    Quota,
    UploadsUnderWay,
    Works,
    WorksPage,
    models_of,
    quota_of,
    submissions_of,
    token_by_public_id,
    uploads_under_way,
    visible_models_of,
)
from organs.registry.catalog.queries.models import composed_among
from organs.registry.catalog.tables import Contributor, Model, Submission, Token
from organs.registry.catalog.vocabulary import SCOPES
from organs.registry.present.models import model_summary
from organs.registry.present.values import Values
from organs.registry.tokens import NewToken


def account_values(
    session: Session,
    name: str,
    scopes: Collection[str],
    token: Token | None,
    contributor: Contributor | None,
    default_bytes: int,
    model_max_bytes: int,
) -> Values:
    """Who asks, as the API tells: `contributor` is None for `local` in a registry that has nothing yet.

    `model_max_bytes` is the largest model that is taken from anybody.
    """
    quota = Quota(default_bytes, 0) if contributor is None else quota_of(session, contributor, default_bytes)
    return {
        "contributor": name,
        "namespace": name,
        "scopes": [scope for scope in SCOPES if scope in scopes],
        "token": None
        if token is None
        else {"id": token.public_id, "label": token.label, "expires_at": _time(token.expires_at)},
        "quota": asdict(quota) | {"model_max_bytes": model_max_bytes},
    }


def belongings_values(session: Session, contributor: Contributor | None) -> Values:
    """Return the models, uploads and submissions of a contributor, in every state: for nobody else."""
    if contributor is None:
        return {"models": [], "uploads": [], "submissions": []}
    models = models_of(session, contributor.id)
    return {
        "models": _own_models(session, models),
        "uploads": [_under_way(one) for one in uploads_under_way(session, contributor.id)],
        "submissions": [_submitted(one, model) for one, model in submissions_of(session, contributor.id)],
    }


def tokens_values(session: Session, tokens: Sequence[Token]) -> Values:
    """Return a list of tokens, without their secrets."""
    return {"items": [token_values(session, one) for one in tokens], "next": None}


def token_values(session: Session, token: Token) -> Values:
    """Return the fields of a token, without its secret."""
    parent = None if token.parent_id is None else session.get_one(Token, token.parent_id)
    return {
        "id": token.public_id,
        "label": token.label,
        "scopes": token.scopes.split(),
        "state": _token_state(token, now()),
        "created_by": None if parent is None else parent.public_id,
        "created_at": token.created_at.isoformat(),
        "expires_at": _time(token.expires_at),
        "revoked_at": _time(token.revoked_at),
        "last_used_at": _time(token.last_used_at),
    }


def new_token_values(session: Session, made: NewToken) -> Values:
    """Return the fields of a token that was just created, with its text: no other values have a secret."""
    return token_values(session, token_by_public_id(session, made.public_id)) | {"token": made.text}


def contributor_account_values(session: Session, contributor: Contributor, default_bytes: int) -> Values:
    """A contributor for who looks after the registry."""
    quota = quota_of(session, contributor, default_bytes)
    return {
        "name": contributor.name,
        "state": contributor.state,
        "since": contributor.created_at.isoformat(),
        "quota": {"limit_bytes": quota.limit_bytes, "used_bytes": quota.used_bytes},
        "has_own_quota": contributor.quota_bytes is not None,
    }


def contributor_values(works: Works) -> Values:
    """A contributor as everybody sees them."""
    return {
        "name": works.contributor.name,
        "since": works.contributor.created_at.isoformat(),
        "models": works.models,
        "chimeras": works.chimeras,
        "downloads": works.downloads,
        "grafts": works.grafts,
    }


def contributors_values(page: WorksPage) -> Values:
    """A page of contributors."""
    return {"items": [contributor_values(works) for works in page.items], "next": page.next}


def contributor_page(session: Session, works: Works) -> Values:
    """A contributor with the newest of their visible models."""
    models = visible_models_of(session, works.contributor.id)
    composed = composed_among(session, [model.id for model in models])
    newest = [model_summary(model, composed=model.id in composed) for model in models]
    return contributor_values(works) | {"newest": newest}


def _own_models(session: Session, models: Sequence[Model]) -> list[Values]:
    composed = composed_among(session, [model.id for model in models])
    return [
        model_summary(model, composed=model.id in composed) | {"state": model.state, "state_reason": model.state_reason}
        for model in models
    ]


def _under_way(uploads: UploadsUnderWay) -> Values:
    return {
        "kind": uploads.kind,
        "state": uploads.state,
        "count": uploads.count,
        "received_bytes": uploads.received_bytes,
        "size_bytes": uploads.size_bytes,
    }


def _submitted(submission: Submission, model: Model | None) -> Values:
    return {
        "id": submission.id,
        "name": f"{submission.namespace}/{submission.name}",
        "state": submission.state,
        "model": None if model is None else model.full_name,
        "model_state": None if model is None else model.state,
        "reason": submission.reason,
        "size_bytes": submission.size_bytes,
        "created_at": submission.created_at.isoformat(),
        "changed_at": submission.changed_at.isoformat(),
    }


def _token_state(token: Token, moment: datetime) -> str:
    """`revoked`, `expired`, else `good`."""
    if token.revoked_at is not None:
        return "revoked"
    return "expired" if token.expires_at is not None and token.expires_at <= moment else "good"


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
