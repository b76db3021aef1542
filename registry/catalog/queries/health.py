"""The queue, the intake and the database in numbers, for those who run a server.

The numbers are cached until the catalog changes, at most for a minute, because a part of them depends on the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from organs.registry.catalog.cache import cached
from organs.registry.catalog.engine import REVISION_STATEMENT
from organs.registry.catalog.queries.reports import running_totals
from organs.registry.catalog.rows import count
from organs.registry.catalog.tables import Blob, JobRow, ModelRow, SubmissionRow, UploadRow
from organs.registry.catalog.vocabulary import MODEL_STATES, SUBMISSION_STATES
from organs.registry.entities.about import RegistryTotals
from organs.registry.entities.health import DatabaseHealth, IntakeHealth, JobCount, QueueHealth

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
    """Return the numbers of the catalog at `moment`, the time in UTC. Each table is counted by one query."""

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
