"""Queries for administrators: submissions to review, contributors, totals, and previews of removals."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Row, Select, func, select
from sqlalchemy.orm import Session

from organs.registry.catalog.cursor import check_limit, next_cursor, parse_cursor
from organs.registry.catalog.engine import batches
from organs.registry.catalog.queries.accounts import contributor_account
from organs.registry.catalog.queries.events import newest_events
from organs.registry.catalog.queries.models import models_in_any_state, models_of_other_name
from organs.registry.catalog.queries.organs import (
    OrganCounts,
    experts_placed_by,
    organ_counts,
    organs_placed_by,
    organs_without_place,
)
from organs.registry.catalog.queries.relatives import dependants_of, parents_of
from organs.registry.catalog.queries.submissions import stored_findings
from organs.registry.catalog.tables import (
    Blob,
    BlobPart,
    Chimera,
    Contributor,
    FilePart,
    Lineage,
    Model,
    ModelFile,
    Organ,
    Placement,
    Submission,
    Upload,
)
from organs.registry.catalog.vocabulary import CONTRIBUTOR_STATES, MODEL_STATES
from organs.registry.entities.account import ContributorAccountPage
from organs.registry.entities.administration import AdminOverview, Removal
from organs.registry.entities.submission import SubmissionReview, SubmissionReviewPage, SubmittedModel
from organs.registry.errors import NotFound
from organs.registry.names import ModelName, nearest

_WAITING, _CONTRIBUTORS = "quarantine", "admin contributors"
"""The queries that cursors of the lists belong to."""


def waiting_submissions(session: Session, limit: int, after: str | None = None) -> SubmissionReviewPage:
    """Return the next `limit` submissions that wait for review, the longest waiting first. Raises BadQuery."""
    check_limit(limit)
    statement = _submissions().where(Submission.state == "quarantined")
    if after is not None:
        statement = statement.where(Submission.id > parse_cursor(_WAITING, after).id)
    rows = session.execute(statement.order_by(Submission.id).limit(limit + 1)).all()
    next_page = next_cursor(_WAITING, [row.id for row, _, _ in rows], limit)
    return SubmissionReviewPage(items=_reviews(session, rows[:limit]), next=next_page)


def submission_review(session: Session, submission_id: int) -> SubmissionReview:
    """Return the submission of that number, in any state. Raises NotFound."""
    row = session.execute(_submissions().where(Submission.id == submission_id)).one_or_none()
    if row is None:
        raise NotFound(f"there is no submission {submission_id}")
    return _reviews(session, [row])[0]


def all_contributors(
    session: Session, limit: int, after: str | None = None, *, default_bytes: int
) -> ContributorAccountPage:
    """Return the next `limit` contributors, newest first, including those without a visible model. Raises BadQuery.

    `default_bytes` is the quota of contributors without their own quota.
    """
    check_limit(limit)
    statement = select(Contributor)
    if after is not None:
        statement = statement.where(Contributor.id < parse_cursor(_CONTRIBUTORS, after).id)
    rows = session.scalars(statement.order_by(Contributor.id.desc()).limit(limit + 1)).all()
    return ContributorAccountPage(
        items=tuple(contributor_account(session, row, default_bytes) for row in rows[:limit]),
        next=next_cursor(_CONTRIBUTORS, [row.id for row in rows], limit),
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
        organs=organs.distinct,
        organs_new=organs.new,
        mean_theta=model.mean_theta,
    )


def _submissions() -> Select[*tuple[Any, ...]]:
    return (
        select(Submission, Contributor.name, Model)
        .join(Contributor, Contributor.id == Submission.contributor_id)
        .outerjoin(Model, Model.id == Submission.model_id)
    )


CHIMERAS_MAX = 1000
"""The most chimeras that the preview of a removal names."""


def model_in_any_state(session: Session, name: ModelName) -> Model:
    """Return the model of that name, also a hidden or removed one.

    Without a version, the newest version that is not removed is preferred. Raises NotFound, also for another name of
    a model, so that nobody removes a model by a name that is not its own.
    """
    statement = select(Model).where(Model.namespace == name.namespace, Model.name == name.name)
    if name.version is not None:
        statement = statement.where(Model.version == name.version)
    order = (Model.state == "removed", Model.version.desc())
    model = session.scalars(statement.order_by(*order).limit(1)).one_or_none()
    if model is None:
        other = session.scalars(models_of_other_name(name).limit(1)).one_or_none()
        if other is not None:
            raise NotFound(f"{name} is another name of {other.full_name}; use that name")
        rows = session.execute(select(Model.namespace, Model.name).distinct())
        close = nearest(f"{name.namespace}/{name.name}", [f"{row.namespace}/{row.name}" for row in rows])
        raise NotFound(f"no model is registered as {name}{f'; did you mean {close}?' if close else ''}")
    return model


def removal_of(session: Session, model: Model) -> Removal:
    """Return what `remove_model` would delete now."""
    places = session.scalar(select(func.count()).select_from(Placement).where(Placement.model_id == model.id)) or 0
    placed = {*organs_placed_by(session, model.id), *experts_placed_by(session, model.id)}
    organs = set(organs_without_place(session, placed, but=model.id))
    blobs = _exclusive_blobs(session, model, organs)
    parents, dependants = dependants_of(session, blobs, model.id, CHIMERAS_MAX)
    blobs -= parents
    names = models_in_any_state(session, dependants)
    return Removal(
        model=model.full_name,
        state=model.state,
        reason=model.state_reason,
        size_bytes=model.size_bytes,
        places=places,
        organs=len(organs),
        blobs=len(blobs),
        stored_bytes=_stored_bytes(session, blobs),
        parents=len(parents),
        parents_bytes=_stored_bytes(session, parents),
        dependants=tuple(names[model_id].full_name for model_id in dependants),
        chimeras=tuple(_chimeras(session, model)),
    )


def _exclusive_blobs(session: Session, model: Model, organs: Collection[int]) -> set[int]:
    """Return the ids of blobs of `organs` and of the model's headers that no other organ, file or stack has."""
    files = select(ModelFile.id).where(ModelFile.model_id == model.id)
    blobs = set(session.scalars(select(FilePart.blob_id).where(FilePart.file_id.in_(files)).distinct()))
    for batch in batches(sorted(organs)):
        blobs.update(session.scalars(select(Organ.blob_id).where(Organ.id.in_(batch))))
    for batch in batches(sorted(blobs)):
        users = session.execute(select(Organ.blob_id, Organ.id).where(Organ.blob_id.in_(batch)))
        blobs.difference_update(blob_id for blob_id, organ_id in users if organ_id not in organs)
        parts = select(FilePart.blob_id).where(FilePart.blob_id.in_(batch), FilePart.file_id.not_in(files))
        blobs.difference_update(session.scalars(parts.distinct()))
    for batch in batches(sorted(blobs)):
        stacks = session.execute(select(BlobPart.part_id, BlobPart.blob_id).where(BlobPart.part_id.in_(batch)))
        blobs.difference_update({part_id for part_id, stack_id in stacks if stack_id not in blobs})
    return blobs


def _stored_bytes(session: Session, blobs: Collection[int]) -> int:
    sums = (select(func.sum(Blob.stored_bytes)).where(Blob.id.in_(batch)) for batch in batches(sorted(blobs)))
    return sum(int(session.scalar(statement) or 0) for statement in sums)


def _chimeras(session: Session, model: Model) -> list[str]:
    """Return the names of chimeras that have organs of `model`, in any state, oldest first."""
    is_child = (
        select(Lineage.id)
        .where(Lineage.child_model_id == Model.id, Lineage.parent_model_id == model.id)
        .where(Lineage.evidence == "recorded")
    )
    statement = (
        select(Model)
        .join(Chimera, Chimera.model_id == Model.id)
        .where(Model.state != "removed", Model.id != model.id)
        .where(is_child.exists() | (Chimera.base_model_id == model.id))
    )
    return [chimera.full_name for chimera in session.scalars(statement.order_by(Model.id).limit(CHIMERAS_MAX))]
