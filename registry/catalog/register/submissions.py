"""Rows of uploads and submissions. Bytes are durable on the disk before a row counts them as received."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.engine import batches
from organs.registry.catalog.queries.accounts import (
    PIECE_ROW_BYTES,
    contributor_by_name,
    packed_pieces,
    quota_of,
)
from organs.registry.catalog.queries.submissions import UNDER_WAY, counted_uploads
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.tables import Contributor, PageToken, Submission, Upload, UploadPiece, WebSession, now
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.digest import Digest
from organs.registry.errors import NotFound, OverQuota, TooMany

OPEN_MAX = 64
"""Unfinished uploads of one contributor. A program needs one for each of its connections."""
UPLOADS_MAX = 20_000
"""All uploads of one contributor, including finished ones: more than the largest model has organs."""
PACKED_MAX = 200_000
"""Pieces in all packs of one contributor: ten times the organs of a model, and few enough to be counted."""
LIFETIME = timedelta(days=7)
"""How long an upload stays after its last chunk; a finished upload without a model also expires."""
TOO_MANY_SECONDS = 60.0

Pieces = Sequence[tuple[int, Digest]]
"""The size and the digest of each piece, in order."""


def check_upload_allowed(
    session: Session,
    contributor_id: int,
    size_bytes: int,
    packed: int,
    *,
    default_quota_bytes: int,
    most_bytes: int,
    hold: bool,
) -> None:
    """Raise OverQuota or TooMany if the contributor may not open an upload of `size_bytes` with `packed` pieces.

    TooMany passes by itself; OverQuota does not. With `hold`, in a session that writes, no other session can open an
    upload for the same contributor until this one ends.
    """
    if size_bytes > most_bytes:
        raise OverQuota(f"the upload has {size_bytes:,} bytes; at most {most_bytes:,} are accepted")
    contributor = session.get_one(Contributor, contributor_id, with_for_update=hold)
    unfinished, total = counted_uploads(session, contributor_id, now())
    if unfinished >= OPEN_MAX:
        raise TooMany(f"{unfinished} uploads are open already: finish or cancel some", TOO_MANY_SECONDS)
    if total >= UPLOADS_MAX:
        raise OverQuota(f"{total:,} uploads are stored already: publish models of them, or remove some")
    if packed and packed_pieces(session, contributor_id) + packed > PACKED_MAX:
        raise OverQuota(f"packs would have more than {PACKED_MAX:,} pieces: publish models of them, or remove some")
    if contributor.name == LOCAL:
        return  # users of this machine may fill its disk
    quota = quota_of(session, contributor, default_quota_bytes)
    counted_bytes = size_bytes + PIECE_ROW_BYTES * packed
    if counted_bytes > quota.left_bytes:
        counts = f", and counts as {counted_bytes:,} with the records of its pieces" if packed else ""
        raise OverQuota(
            f"the upload has {size_bytes:,} bytes{counts}; "
            f"{quota.left_bytes:,} of the quota of {quota.limit_bytes:,} bytes are left"
        )


def add_upload(
    session: Session,
    contributor_id: int,
    public_id: str,
    *,
    kind: str,
    size_bytes: int,
    digest: Digest | None,
    name: str | None,
    pieces: Pieces = (),
) -> Upload:
    """Add an upload without any bytes yet. Its `pieces` count after it is finished."""
    moment = now()
    row = Upload(
        public_id=public_id,
        contributor_id=contributor_id,
        kind=kind,
        name=name,
        digest=digest,
        size_bytes=size_bytes,
        received_bytes=0,
        state="open",
        created_at=moment,
        expires_at=moment + LIFETIME,
    )
    session.add(row)
    session.flush()
    offset_bytes = 0
    for piece_bytes, piece_digest in pieces:
        session.add(
            UploadPiece(upload_id=row.id, offset_bytes=offset_bytes, digest=piece_digest, size_bytes=piece_bytes)
        )
        offset_bytes += piece_bytes
    return row


def record_received(session: Session, upload_id: int, before_bytes: int, after_bytes: int) -> bool:
    """Count durable bytes up to `after_bytes`; False if the count was not `before_bytes`."""
    statement = update(Upload).where(
        Upload.id == upload_id, Upload.state == "open", Upload.received_bytes == before_bytes
    )
    return _changed(session, statement.values(received_bytes=after_bytes, expires_at=now() + LIFETIME))


def complete_upload(session: Session, upload_id: int, digest: Digest) -> bool:
    """Mark an upload as complete; `digest` is of all its bytes. False if it is no longer open."""
    statement = update(Upload).where(Upload.id == upload_id, Upload.state == "open")
    return _changed(session, statement.values(state="complete", digest=digest, expires_at=now() + LIFETIME))


def remove_upload(session: Session, upload_id: int) -> bool:
    """Delete an upload; its file may be removed after the commit. False if it is deleted already."""
    session.execute(delete(UploadPiece).where(UploadPiece.upload_id == upload_id))
    return _changed(session, delete(Upload).where(Upload.id == upload_id))


def remove_expired_upload(session: Session, upload_id: int) -> bool:
    """Delete an upload if it has expired; False if it was renewed meanwhile, or is deleted already."""
    row = session.get(Upload, upload_id, with_for_update=True, populate_existing=True)
    return row is not None and row.expires_at <= now() and remove_upload(session, upload_id)


def renew_uploads(
    session: Session, contributor_id: int, digests: Collection[str], public_ids: Collection[str] = ()
) -> int:
    """Keep finished uploads of the contributor for LIFETIME from now, because a submission uses them.

    These are the uploads with pieces of `digests`, and those with one of the `public_ids`. Return how many matched; an
    upload that matches in several batches counts several times.
    """
    renewed = 0
    finished = (Upload.contributor_id == contributor_id, Upload.state == "complete")
    for batch in batches(sorted({*digests, *public_ids})):
        having = select(UploadPiece.upload_id).where(UploadPiece.digest.in_(batch))
        matches = or_(Upload.id.in_(having), Upload.public_id.in_(batch))
        statement = update(Upload).where(*finished, matches).values(expires_at=now() + LIFETIME)
        result: Any = session.execute(statement, execution_options=_WITHOUT_OBJECTS)
        renewed += result.rowcount
    return renewed


_WITHOUT_OBJECTS = {"synchronize_session": False}


def _changed(session: Session, statement: object) -> bool:
    result = session.execute(statement, execution_options=_WITHOUT_OBJECTS)  # type: ignore[call-overload]
    return bool(result.rowcount == 1)


ENDED = ("published", "refused", "withdrawn")
NO_FILES = "{}"
"""The manifest of a submission that has ended. The original may have megabytes and is not needed again."""


def add_submission(
    session: Session,
    contributor_id: int,
    namespace: str,
    name: str,
    *,
    manifest: str,
    description: str,
    size_bytes: int,
) -> Submission:
    """Add a submission that waits for its check; `description` is the contributor's metadata as JSON."""
    moment = now()
    row = Submission(
        contributor_id=contributor_id,
        namespace=namespace,
        name=name,
        state="checking",
        manifest=manifest,
        metadata_given=description,
        findings="[]",
        size_bytes=size_bytes,
        created_at=moment,
        changed_at=moment,
    )
    session.add(row)
    session.flush()
    return row


def hold_contributor(session: Session, contributor_id: int) -> None:
    """Lock a contributor: no other transaction can change their submissions and uploads until this one ends."""
    session.get_one(Contributor, contributor_id, with_for_update=True)


def locked_submission(session: Session, submission_id: int, contributor_id: int | None = None) -> Submission:
    """Return the locked row of a submission; with `contributor_id`, only one of that contributor. Raises NotFound."""
    row = session.get(Submission, submission_id, with_for_update=True)
    if row is None or contributor_id not in (None, row.contributor_id):
        raise NotFound(f"you have no submission {submission_id}")
    return row


def change_submission(
    session: Session,
    row: Submission,
    state: str,
    *,
    findings: str | None = None,
    description: str | None = None,
    model_id: int | None = None,
    reason: str | None = None,
    decided_by: str | None = None,
) -> None:
    """Change the state of a submission, and the values that are not None. A final state drops the manifest."""
    row.state, row.changed_at = state, now()
    if state in ENDED:
        row.manifest = NO_FILES
    if findings is not None:
        row.findings = findings
    if description is not None:
        row.metadata_given = description
    if model_id is not None:
        row.model_id = model_id
    if reason is not None:
        row.reason = shown_text(reason)
    if decided_by is not None:
        row.decided_by = contributor_by_name(session, decided_by).id
    session.flush()


def submissions_waiting_for(session: Session, model_id: int) -> Sequence[Submission]:
    """Return the locked submissions of a model that wait for review; there may be several for equal bytes."""
    waiting = select(Submission).where(Submission.model_id == model_id, Submission.state == "quarantined")
    return session.scalars(waiting.order_by(Submission.id).with_for_update()).all()


NOT_COPIED = "This registry was restored from a backup, which does not have the uploaded bytes: send them again."


def remove_uploads(session: Session) -> None:
    """Delete uploads and browser sessions from a copy; withdraw submissions whose bytes are only in the uploads."""
    for table in (UploadPiece, Upload, PageToken, WebSession):
        session.execute(delete(table))
    values = {"state": "withdrawn", "manifest": NO_FILES, "reason": NOT_COPIED, "changed_at": now()}
    session.execute(update(Submission).where(Submission.state.in_(UNDER_WAY)).values(values))
