"""Queries for administrators: submissions to review, contributors, previews of removals, and health in numbers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row, func, select, text
from sqlalchemy.orm import Session

from organs.registry.catalog.cache import cached
from organs.registry.catalog.engine import REVISION_STATEMENT
from organs.registry.catalog.queries.accounts import contributor_account
from organs.registry.catalog.queries.card_images import images_of_cards
from organs.registry.catalog.queries.events import newest_events
from organs.registry.catalog.queries.model_names import models_in_any_state, models_of_other_name
from organs.registry.catalog.queries.organs import (
    experts_placed_by,
    organ_counts,
    organs_placed_by,
    organs_without_place,
)
from organs.registry.catalog.queries.relatives import dependants_of, parents_of
from organs.registry.catalog.queries.reports import running_totals
from organs.registry.catalog.queries.submissions import stored_findings, submissions_with_job
from organs.registry.catalog.rows import count, entity_of, first, is_named, page_of_rows, rows_among, scalars_among
from organs.registry.catalog.tables import (
    Blob,
    BlobPart,
    CardImageRow,
    ChimeraRow,
    ContributorRow,
    FilePart,
    JobRow,
    Lineage,
    ModelFileRow,
    ModelRow,
    OrganRow,
    Placement,
    SubmissionRow,
    UploadRow,
)
from organs.registry.catalog.vocabulary import CONTRIBUTOR_STATES, MODEL_STATES, SUBMISSION_STATES
from organs.registry.entities.account import ContributorAccountPage
from organs.registry.entities.published import Removal
from organs.registry.entities.server import (
    AdminOverview,
    DatabaseHealth,
    IntakeHealth,
    JobCount,
    QueueHealth,
    RegistryTotals,
)
from organs.registry.entities.submission import SubmissionReview, SubmissionReviewPage, SubmittedModel
from organs.registry.errors import NotFound
from organs.registry.names import ModelName, nearest


def waiting_submissions(session: Session, limit: int, after: str | None) -> SubmissionReviewPage:
    """Return the next `limit` submissions that wait for review, the longest waiting first. Raises BadQuery."""
    statement = submissions_with_job().where(SubmissionRow.state == "quarantined")
    rows, following = page_of_rows(session, statement, "quarantine", limit, after, oldest_first=True)
    return SubmissionReviewPage(items=_reviews(session, rows), next=following)


def submission_review(session: Session, submission_id: int) -> SubmissionReview:
    """Return the submission of that number, in any state. Raises NotFound."""
    row = session.execute(submissions_with_job().where(SubmissionRow.id == submission_id)).one_or_none()
    if row is None:
        raise NotFound(f"there is no submission {submission_id}")
    return _reviews(session, [row])[0]


def all_contributors(session: Session, limit: int, after: str | None, *, default_bytes: int) -> ContributorAccountPage:
    """Return the next `limit` contributors, newest first, including those without a visible model. Raises BadQuery.

    `default_bytes` is the quota of contributors without their own quota.
    """
    rows, following = page_of_rows(session, select(ContributorRow), "admin contributors", limit, after)
    items = tuple(contributor_account(session, row, default_bytes) for (row,) in rows)
    return ContributorAccountPage(items=items, next=following)


def admin_overview(session: Session, events: int) -> AdminOverview:
    """Return the registry in numbers, counted now, and the newest `events` of the log."""
    uploads = session.execute(select(func.count(), func.sum(UploadRow.size_bytes)).select_from(UploadRow)).one()
    return AdminOverview(
        waiting=count(session, SubmissionRow, SubmissionRow.state == "quarantined"),
        models=counts_by_state(session, ModelRow.state, MODEL_STATES),
        contributors=counts_by_state(session, ContributorRow.state, CONTRIBUTOR_STATES),
        uploads=uploads[0],
        upload_bytes=int(uploads[1] or 0),
        events=newest_events(session, events).items,
    )


def _reviews(session: Session, rows: Sequence[Row[*tuple[Any, ...]]]) -> tuple[SubmissionReview, ...]:
    model_ids = [model.id for _, _, model, _ in rows if model is not None]
    organs, images = organ_counts(session, model_ids), images_of_cards(session, model_ids)
    bases: dict[int | None, str | None] = {}
    for edge in parents_of(session, model_ids, ("declared",)):
        bases.setdefault(edge.child_model_id, edge.parent_text)
    reviews = []
    for row, contributor, model, _ in rows:
        submitted: SubmittedModel | None = None
        if model is not None:
            distinct, new = organs.get(model.id, (0, 0))
            shown = {"base": bases.get(model.id), "images": tuple(images.get(model.id, ()))}
            submitted = entity_of(SubmittedModel, model, organs=distinct, organs_new=new, **shown)
        values = {"contributor": contributor, "name": f"{row.namespace}/{row.name}", "model": submitted}
        reviews.append(entity_of(SubmissionReview, row, findings=stored_findings(row.findings), **values))
    return tuple(reviews)


CHIMERAS_MAX = 1000
"""The most chimeras that the preview of a removal names."""


def model_in_any_state(session: Session, name: ModelName) -> ModelRow:
    """Return the model of that name, also a hidden or removed one.

    Without a version, the newest version that is not removed is preferred. Raises NotFound, also for another name of
    a model, so that nobody removes a model by a name that is not its own.
    """
    own = select(ModelRow).where(is_named(name)).order_by(ModelRow.state == "removed", ModelRow.version.desc())
    model = first(session, own)
    if model is None:
        other = first(session, models_of_other_name(name))
        if other is not None:
            raise NotFound(f"{name} is another name of {other.full_name}; use that name")
        rows = session.execute(select(ModelRow.namespace, ModelRow.name).distinct())
        close = nearest(f"{name.namespace}/{name.name}", [f"{row.namespace}/{row.name}" for row in rows])
        raise NotFound(f"no model is registered as {name}{f'; did you mean {close}?' if close else ''}")
    return model


def removal_of(session: Session, model: ModelRow) -> Removal:
    """Return what `remove_model` would delete now."""
    placed = {*organs_placed_by(session, model.id), *experts_placed_by(session, model.id)}
    organs = set(organs_without_place(session, placed, but=model.id))
    files = select(ModelFileRow.id).where(ModelFileRow.model_id == model.id)
    blobs = set(session.scalars(select(FilePart.blob_id).where(FilePart.file_id.in_(files)).distinct()))
    blobs.update(scalars_among(session, select(OrganRow.blob_id), OrganRow.id, organs))
    blobs.update(session.scalars(select(CardImageRow.blob_id).where(CardImageRow.model_id == model.id)))
    # Only those stay that no other organ, file, card or stack has.
    users = rows_among(session, select(OrganRow.blob_id, OrganRow.id), OrganRow.blob_id, blobs)
    blobs -= {blob_id for blob_id, organ_id in users if organ_id not in organs}
    other_parts = select(FilePart.blob_id).where(FilePart.file_id.not_in(files)).distinct()
    blobs -= set(scalars_among(session, other_parts, FilePart.blob_id, blobs))
    other_images = select(CardImageRow.blob_id).where(CardImageRow.model_id != model.id).distinct()
    blobs -= set(scalars_among(session, other_images, CardImageRow.blob_id, blobs))
    stacks = rows_among(session, select(BlobPart.part_id, BlobPart.blob_id), BlobPart.part_id, blobs)
    blobs -= {part_id for part_id, stack_id in stacks if stack_id not in blobs}
    parents, dependants = dependants_of(session, blobs, model.id, CHIMERAS_MAX)
    blobs -= parents
    names = models_in_any_state(session, dependants)
    is_child = (
        select(Lineage.id)
        .where(Lineage.child_model_id == ModelRow.id, Lineage.parent_model_id == model.id)
        .where(Lineage.evidence == "recorded")
    )
    chimeras = (
        select(ModelRow)
        .join(ChimeraRow, ChimeraRow.model_id == ModelRow.id)
        .where(ModelRow.state != "removed", ModelRow.id != model.id)
        .where(is_child.exists() | (ChimeraRow.base_model_id == model.id))
        .order_by(ModelRow.id)
    )

    def stored_bytes(ids: Collection[int]) -> int:
        return sum(scalars_among(session, select(Blob.stored_bytes), Blob.id, ids))

    return Removal(
        model=model.full_name,
        state=model.state,
        reason=model.state_reason,
        size_bytes=model.size_bytes,
        places=count(session, Placement, Placement.model_id == model.id),
        organs=len(organs),
        blobs=len(blobs),
        stored_bytes=stored_bytes(blobs),
        parents=len(parents),
        parents_bytes=stored_bytes(parents),
        dependants=tuple(names[model_id].full_name for model_id in dependants),
        chimeras=tuple(chimera.full_name for chimera in session.scalars(chimeras.limit(CHIMERAS_MAX))),
    )


FAILED_HOURS = 24
"""Jobs that failed within these hours count as failed."""
_DATABASE_SIZES = {
    "sqlite": text("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"),
    "postgresql": text("SELECT pg_database_size(current_database())"),
}


@dataclass(frozen=True, slots=True)
class CatalogHealth:
    """The queue, the intake, the totals and the database in numbers."""

    queue: QueueHealth
    intake: IntakeHealth
    totals: RegistryTotals
    corrupt_blobs: int
    """Blobs whose stored bytes are wrong or missing."""
    database: DatabaseHealth


def catalog_health(session: Session, moment: datetime) -> CatalogHealth:
    """Return the numbers of the catalog at `moment`, the time in UTC. Each table is counted by one query.

    They are cached until the catalog changes, at most for a minute, because a part of them depends on the time.
    """

    def read() -> CatalogHealth:
        by_kind = (
            select(JobRow.kind, JobRow.state, func.count())
            .group_by(JobRow.kind, JobRow.state)
            .order_by(JobRow.kind, JobRow.state)
        )
        jobs = tuple(JobCount(kind=kind, state=state, jobs=number) for kind, state, number in session.execute(by_kind))
        recent = JobRow.finished_at > moment - timedelta(hours=FAILED_HOURS)
        sizes = select(func.count(), func.sum(UploadRow.size_bytes), func.sum(UploadRow.received_bytes))
        uploads, declared, received = session.execute(sizes.where(UploadRow.state == "open")).one()
        dialect = session.connection().dialect
        name = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}.get(dialect.name, dialect.name)
        version = ".".join(map(str, dialect.server_version_info or ()))
        return CatalogHealth(
            queue=QueueHealth(
                jobs=jobs,
                waiting=sum(row.jobs for row in jobs if row.state == "queued"),
                running=sum(row.jobs for row in jobs if row.state == "running"),
                failed=count(session, JobRow, JobRow.state == "failed", recent),
                waiting_since=session.scalar(select(func.min(JobRow.created_at)).where(JobRow.state == "queued")),
            ),
            intake=IntakeHealth(
                uploads=uploads,
                upload_bytes=int(declared or 0),
                received_bytes=int(received or 0),
                submissions=counts_by_state(session, SubmissionRow.state, SUBMISSION_STATES),
                models=counts_by_state(session, ModelRow.state, MODEL_STATES),
            ),
            totals=running_totals(session),
            corrupt_blobs=count(session, Blob, Blob.state == "corrupt"),
            database=DatabaseHealth(
                engine=f"{name} {version}",
                size_bytes=int(session.scalar(_DATABASE_SIZES[dialect.name]) or 0),
                revision=session.scalar(REVISION_STATEMENT) or "",
            ),
        )

    return cached(session, ("health", moment.replace(second=0, microsecond=0)), read)


def counts_by_state(session: Session, state: Any, states: Sequence[str]) -> dict[str, int]:
    """Return the number of rows in each of `states`, of the table that has the column `state`."""
    counted: dict[str, int] = dict(session.execute(select(state, func.count()).group_by(state)).all())
    return {name: counted.get(name, 0) for name in states}
