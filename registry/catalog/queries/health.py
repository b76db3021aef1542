"""The queue, the intake and the database in numbers, for those who run a server.

The numbers are cached until the catalog changes, at most for a minute, because a part of them depends on the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from organs.registry.catalog.cache import cached
from organs.registry.catalog.queries.reports import running_totals
from organs.registry.catalog.tables import Blob, JobRow, Model, Submission, Upload
from organs.registry.catalog.vocabulary import MODEL_STATES, SUBMISSION_STATES
from organs.registry.entities.about import RegistryTotals
from organs.registry.entities.health import DatabaseHealth, IntakeHealth, JobCount, QueueHealth

FAILED_HOURS = 24
"""Jobs that failed within these hours count as failed."""
_DATABASE_SIZES = {
    "sqlite": text("SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"),
    "postgresql": text("SELECT pg_database_size(current_database())"),
}
_REVISION = text("SELECT version_num FROM alembic_version")


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
    """Return the numbers of the catalog at `moment`, the time in UTC. Each table is counted by one query."""
    minute = moment.replace(second=0, microsecond=0)
    return cached(session, ("health", minute), lambda: _counted(session, moment))


def _counted(session: Session, moment: datetime) -> CatalogHealth:
    return CatalogHealth(
        queue=_queue(session, moment),
        intake=_intake(session),
        totals=running_totals(session),
        corrupt_blobs=session.scalar(select(func.count()).where(Blob.state == "corrupt")) or 0,
        database=_database(session),
    )


def _queue(session: Session, moment: datetime) -> QueueHealth:
    jobs = tuple(
        JobCount(kind=kind, state=state, jobs=count)
        for kind, state, count in session.execute(
            select(JobRow.kind, JobRow.state, func.count())
            .group_by(JobRow.kind, JobRow.state)
            .order_by(JobRow.kind, JobRow.state)
        )
    )
    recent = JobRow.finished_at > moment - timedelta(hours=FAILED_HOURS)
    return QueueHealth(
        jobs=jobs,
        waiting=sum(row.jobs for row in jobs if row.state == "queued"),
        running=sum(row.jobs for row in jobs if row.state == "running"),
        failed=session.scalar(select(func.count()).where(JobRow.state == "failed", recent)) or 0,
        waiting_since=session.scalar(select(func.min(JobRow.created_at)).where(JobRow.state == "queued")),
    )


def _intake(session: Session) -> IntakeHealth:
    sizes = select(func.count(), func.sum(Upload.size_bytes), func.sum(Upload.received_bytes))
    uploads, declared, received = session.execute(sizes.where(Upload.state == "open")).one()
    submissions = _by_state(session, Submission.state)
    models = _by_state(session, Model.state)
    return IntakeHealth(
        uploads=uploads,
        upload_bytes=int(declared or 0),
        received_bytes=int(received or 0),
        submissions={state: submissions.get(state, 0) for state in SUBMISSION_STATES},
        models={state: models.get(state, 0) for state in MODEL_STATES},
    )


def _by_state(session: Session, state: Any) -> Mapping[str, int]:
    return dict(session.execute(select(state, func.count()).group_by(state)).all())


def _database(session: Session) -> DatabaseHealth:
    dialect = session.connection().dialect
    name = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}.get(dialect.name, dialect.name)
    version = ".".join(map(str, dialect.server_version_info or ()))
    return DatabaseHealth(
        engine=f"{name} {version}",
        size_bytes=int(session.scalar(_DATABASE_SIZES[dialect.name]) or 0),
        revision=session.scalar(_REVISION) or "",
    )
