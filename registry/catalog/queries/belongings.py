"""What one contributor has here, for their own eyes: models in every state, bytes under way, what is submitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from organs.registry.catalog.tables import Model, Submission, Upload

SHOWN_MAX = 100
"""Of each kind that are listed; the newest."""


@dataclass(frozen=True, slots=True)
class UploadsUnderWay:
    """Uploads of one kind and state, together."""

    kind: str
    state: str
    count: int
    received_bytes: int
    size_bytes: int


def models_of(session: Session, contributor_id: int) -> Sequence[Model]:
    """Their models in whatever state, newest first, SHOWN_MAX at most."""
    statement = select(Model).where(Model.contributor_id == contributor_id)
    return session.scalars(statement.order_by(Model.id.desc()).limit(SHOWN_MAX)).all()


def uploads_under_way(session: Session, contributor_id: int) -> list[UploadsUnderWay]:
    """Their uploads, summed up: a push has one for every large tensor."""
    sums = (func.count(), func.sum(Upload.received_bytes), func.sum(Upload.size_bytes))
    statement = select(Upload.kind, Upload.state, *sums).where(Upload.contributor_id == contributor_id)
    rows = session.execute(statement.group_by(Upload.kind, Upload.state).order_by(Upload.kind, Upload.state))
    return [UploadsUnderWay(kind, state, count, int(got), int(size)) for kind, state, count, got, size in rows]


def submissions_of(session: Session, contributor_id: int) -> Sequence[tuple[Submission, Model | None]]:
    """What they have submitted with what became of it, newest first, SHOWN_MAX at most."""
    statement = select(Submission, Model).outerjoin(Model, Model.id == Submission.model_id)
    own = statement.where(Submission.contributor_id == contributor_id)
    return [(row[0], row[1]) for row in session.execute(own.order_by(Submission.id.desc()).limit(SHOWN_MAX))]
