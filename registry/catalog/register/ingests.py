"""The life of an ingest. Its blobs are safe from the sweep while it runs and keeps its lease fresh."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, update
from sqlalchemy.orm import Session

from organs.registry.catalog.clock import now
from organs.registry.catalog.tables import BlobLease, Ingest
from organs.registry.catalog.vocabulary import shown_text

LEASE = timedelta(hours=1)


def begin_ingest(session: Session, source: str) -> int:
    """A new running ingest; its id."""
    begun = now()
    row = Ingest(source=shown_text(source), state="running", started_at=begun, lease_expires_at=begun + LEASE)
    session.add(row)
    session.flush()
    return row.id


def renew_lease(session: Session, ingest_id: int) -> None:
    """Another hour from now."""
    session.execute(update(Ingest).where(Ingest.id == ingest_id).values(lease_expires_at=now() + LEASE))


def end_ingest(
    session: Session, ingest_id: int, state: str, report: str | None = None, model_id: int | None = None
) -> None:
    """Note how it ended and give its leases back: from here on the references of its model protect the blobs."""
    session.execute(
        update(Ingest)
        .where(Ingest.id == ingest_id)
        .values(state=state, finished_at=now(), report=report, model_id=model_id)
    )
    session.execute(delete(BlobLease).where(BlobLease.ingest_id == ingest_id))
