"""Rows of blobs and of the ingests that lease them: written when the bytes are durable."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.clock import now
from organs.registry.catalog.queries.blobs import BlobRow, blobs_by_digest, unneeded, unneeded_blobs
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.events import record_event
from organs.registry.catalog.register.facets import (
    add_to_totals,
    blob_changes,
    is_counted,
)
from organs.registry.catalog.tables import Blob, BlobLease, Ingest, InlineBlob
from organs.registry.catalog.upsert import insert_missing, insert_missing_and_tell
from organs.registry.catalog.vocabulary import Action, shown_text
from organs.registry.store import BlobAddress, StoredBlob

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


def record_blobs(session: Session, ingest_id: int, blobs: Sequence[StoredBlob]) -> list[str]:
    """Write the rows of durable `blobs` and lease them to the ingest.

    A digest that somebody else has recorded meanwhile keeps its row. One that is corrupt, or doomed, which it may have
    become after it was found corrupt, is replaced. The physical names that no row points at now: files to be removed
    after the commit.
    """
    blobs = sorted(blobs, key=lambda blob: blob.digest)  # everybody locks rows in one order, so nobody waits in a ring
    before = blobs_by_digest(session, [blob.digest for blob in blobs])
    written = now()
    fresh = [_values(blob, written) for blob in blobs if blob.digest not in before]
    inserted = insert_missing_and_tell(session, Blob, "digest", fresh)
    replaced = [blob for blob in blobs if blob.digest in before and before[blob.digest].state != "present"]
    for blob in replaced:
        _replace(session, before[blob.digest].id, blob, written)
    went = [before[blob.digest] for blob in replaced if is_counted(before[blob.digest].state)]
    came = {blob.digest: blob for blob in reversed(blobs) if blob.digest in inserted}
    came |= {blob.digest: blob for blob in replaced}
    add_to_totals(session, blob_changes(came.values(), went))
    rows = blobs_by_digest(session, [blob.digest for blob in blobs])
    kept = {row.file for row in rows.values()}
    written_files = [blob.file for blob in blobs] + [row.file for row in before.values()]
    unused = [file for file in written_files if file is not None and file not in kept]
    inline = [
        {"blob_id": rows[blob.digest].id, "stored": blob.inline}
        for blob in blobs
        if blob.inline is not None and rows[blob.digest].file is None
    ]
    insert_missing(session, InlineBlob, inline)
    lease_blobs(session, ingest_id, [row.id for row in rows.values()])
    return unused


def lease_blobs(session: Session, ingest_id: int, blob_ids: Sequence[int]) -> None:
    """Keep blobs from the sweep until the ingest ends; one that was doomed is spared."""
    columns = select(Blob.id, Blob.state, Blob.size_bytes, Blob.stored_bytes)
    rows = session.execute(columns.where(Blob.id.in_(blob_ids)).order_by(Blob.id).with_for_update()).all()
    insert_missing(session, BlobLease, [{"ingest_id": ingest_id, "blob_id": blob_id} for blob_id in sorted(blob_ids)])
    touched = now()
    session.execute(update(Blob).where(Blob.id.in_(blob_ids)).values(touched_at=touched))
    session.execute(update(Blob).where(Blob.id.in_(blob_ids), Blob.state == "doomed").values(state="present"))
    add_to_totals(session, blob_changes([row for row in rows if not is_counted(row.state)]))


def mark_corrupt(session: Session, checked: BlobRow) -> bool:
    """Set the blob aside: its bytes are compared with its digest before they are used, and an ingest stores them anew.

    Return False, and change nothing, when the row points at other stored bytes than those that were checked.
    """
    current = _current_row(session, checked)
    if current is None:
        return False
    session.execute(update(Blob).where(Blob.id == current.id).values(state="corrupt"))
    add_to_totals(session, blob_changes([] if is_counted(current.state) else [current]))
    if not current.is_set_aside:
        record_event(session, LOCAL, Action.SET_ASIDE, _event_text(current))
    return True


def mark_present(session: Session, checked: BlobAddress) -> bool:
    """Take a blob back that was set aside and whose bytes were read whole and found right.

    Return False, and change nothing, when the row points at other stored bytes or is not set aside any more.
    """
    current = _current_row(session, checked)
    if current is None or not current.is_set_aside:
        return False
    session.execute(update(Blob).where(Blob.id == current.id).values(state="present"))
    record_event(session, LOCAL, Action.TAKE_BACK, _event_text(current))
    return True


def doom_blobs(session: Session, grace: timedelta) -> list[Blob]:
    """Mark what nothing needs and nobody touched within the grace. A later sweep reclaims it, a writer spares it."""
    present = now()
    doomed = list(unneeded_blobs(session, "present", present - grace, present))
    doomed += unneeded_blobs(session, "corrupt", present - grace, present)
    for blob in doomed:
        blob.state = "doomed"
        blob.touched_at = present
    add_to_totals(session, blob_changes([], doomed))
    return doomed


def reclaim_blob(session: Session, blob_id: int) -> str | None:
    """Delete the row of a blob that is still doomed and unneeded; None when it was spared.

    Its physical name, to be unlinked after the commit; empty for an inline blob.
    """
    session.execute(select(Blob.id).where(Blob.id == blob_id).with_for_update())  # no lease slips in from here on
    statement = unneeded(now()).where(Blob.id == blob_id, Blob.state == "doomed")
    blob = session.scalars(statement).one_or_none()
    if blob is None:
        return None
    file = blob.file or ""
    session.execute(delete(BlobLease).where(BlobLease.blob_id == blob_id))
    session.execute(delete(InlineBlob).where(InlineBlob.blob_id == blob_id))
    session.execute(delete(Blob).where(Blob.id == blob_id))
    return file


def _current_row(session: Session, checked: BlobAddress) -> BlobRow | None:
    """The row of `checked` as it is now; None when it is gone or points at other stored bytes."""
    current = blobs_by_digest(session, [checked.digest]).get(checked.digest)
    same = current is not None and (current.file, current.inline) == (checked.file, checked.inline)
    return current if same else None


def _event_text(row: BlobRow) -> str:
    return f"{row.digest}, {row.size_bytes} bytes"


def _values(blob: StoredBlob, written: datetime) -> dict[str, object]:
    return {
        "digest": blob.digest,
        "size_bytes": blob.size_bytes,
        "stored_bytes": blob.stored_bytes,
        "codec": blob.codec,
        "codec_version": blob.codec_version,
        "file": blob.file,
        "state": "present",
        "created_at": written,
        "touched_at": written,
    }


def _replace(session: Session, blob_id: int, blob: StoredBlob, written: datetime) -> None:
    session.execute(delete(InlineBlob).where(InlineBlob.blob_id == blob_id))
    values = _values(blob, written)
    del values["digest"], values["created_at"]
    session.execute(update(Blob).where(Blob.id == blob_id).values(values))
