"""What administrators look at: submissions that wait for review, contributors, the registry in numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row, Select, func, select
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.accounts import contributor_account
from organs.registry.catalog.queries.events import newest_events
from organs.registry.catalog.queries.relatives import parents_of
from organs.registry.catalog.queries.shared_organs import OrganCounts, organ_counts
from organs.registry.catalog.queries.submissions import stored_findings
from organs.registry.catalog.search.cursor import Cursor, check_limit, cursor_text, parse_cursor
from organs.registry.catalog.tables import Contributor, Model, Submission, Upload
from organs.registry.catalog.vocabulary import CONTRIBUTOR_STATES, MODEL_STATES
from organs.registry.entities.account import ContributorAccountPage
from organs.registry.entities.administration import AdminOverview
from organs.registry.entities.submission import SubmissionReview, SubmissionReviewPage, SubmittedModel
from organs.registry.errors import NotFound

_WAITING, _CONTRIBUTORS = "quarantine", "admin contributors"
"""What places in the lists are bound to."""


def waiting_submissions(session: Session, limit: int, after: str | None = None) -> SubmissionReviewPage:
    """Return the next `limit` submissions that wait for review, the longest waiting first. Raises BadQuery."""
    check_limit(limit)
    statement = _submissions().where(Submission.state == "quarantined")
    if after is not None:
        statement = statement.where(Submission.id > parse_cursor(_WAITING, after).id)
    rows = session.execute(statement.order_by(Submission.id).limit(limit + 1)).all()
    items = _reviews(session, rows[:limit])
    more = len(rows) > limit
    return SubmissionReviewPage(items=items, next=cursor_text(_WAITING, Cursor(None, items[-1].id)) if more else None)


def submission_review(session: Session, submission_id: int) -> SubmissionReview:
    """Return the submission of that number, in any state. Raises NotFound."""
    found = session.execute(_submissions().where(Submission.id == submission_id)).one_or_none()
    if found is None:
        raise NotFound(f"there is no submission {submission_id}")
    return _reviews(session, [found])[0]


def all_contributors(
    session: Session, limit: int, after: str | None = None, *, default_bytes: int
) -> ContributorAccountPage:
    """Return the next `limit` contributors, newest first, also those without a visible model. Raises BadQuery.

    `default_bytes` is the quota of contributors without one of their own.
    """
    check_limit(limit)
    statement = select(Contributor)
    if after is not None:
        statement = statement.where(Contributor.id < parse_cursor(_CONTRIBUTORS, after).id)
    rows = session.scalars(statement.order_by(Contributor.id.desc()).limit(limit + 1)).all()
    shown = rows[:limit]
    more = len(rows) > limit
    return ContributorAccountPage(
        items=tuple(contributor_account(session, one, default_bytes) for one in shown),
        next=cursor_text(_CONTRIBUTORS, Cursor(None, shown[-1].id)) if more else None,
    )


def admin_overview(session: Session, events: int) -> AdminOverview:
    """Return the registry in numbers, counted now, and the newest `events` of the log."""
    waiting = select(func.count()).select_from(Submission).where(Submission.state == "quarantined")
    uploads = session.execute(select(func.count(), func.sum(Upload.size_bytes)).select_from(Upload)).one()
    models = dict(session.execute(select(Model.state, func.count()).group_by(Model.state)).all())
    people = dict(session.execute(select(Contributor.state, func.count()).group_by(Contributor.state)).all())
    return AdminOverview(
        waiting=session.scalar(waiting) or 0,
        models={state: models.get(state, 0) for state in MODEL_STATES},
        contributors={state: people.get(state, 0) for state in CONTRIBUTOR_STATES},
        uploads=uploads[0],
        upload_bytes=int(uploads[1] or 0),
        events=newest_events(session, events).items,
    )


def _reviews(session: Session, rows: Sequence[Row[Submission, str, Model | None]]) -> tuple[SubmissionReview, ...]:
    model_ids = [model.id for _, _, model in rows if model is not None]
    organs = organ_counts(session, model_ids)
    bases: dict[int | None, str | None] = {}
    for edge in parents_of(session, model_ids, ("declared",)):
        bases.setdefault(edge.child_model_id, edge.parent_text)
    return tuple(
        SubmissionReview(
            id=row.id,
            contributor=contributor,
            name=f"{row.namespace}/{row.name}",
            state=row.state,
            reason=row.reason,
            size_bytes=row.size_bytes,
            findings=stored_findings(row.findings),
            model=None
            if model is None
            else _submitted_model(model, bases.get(model.id), organs.get(model.id, OrganCounts())),
            created_at=row.created_at,
            changed_at=row.changed_at,
        )
        for row, contributor, model in rows
    )


def _submitted_model(model: Model, base: str | None, organs: OrganCounts) -> SubmittedModel:
    return SubmittedModel(
        name=model.full_name,
        state=model.state,
        title=model.title,
        description=model.description,
        license=model.license,
        tags=tuple(json.loads(model.tags)),
        base=base,
        kind=model.kind,
        complete=model.complete,
        architecture=model.architecture,
        parameters=model.parameters,
        tensors=model.tensors,
        size_bytes=model.size_bytes,
        organs=organs.different,
        organs_new=organs.new,
        mean_theta=model.mean_theta,
    )


def _submissions() -> Select[*tuple[Any, ...]]:
    return (
        select(Submission, Contributor.name, Model)
        .join(Contributor, Contributor.id == Submission.contributor_id)
        .outerjoin(Model, Model.id == Submission.model_id)
    )
