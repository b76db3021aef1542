"""Rows of uploads and of submissions. Bytes of uploads are durable before a row counts them as received."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import delete, or_, select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.engine import database_now
from organs.registry.catalog.queries.accounts import PIECE_ROW_BYTES, contributor_by_name, packed_pieces, quota_of
from organs.registry.catalog.queries.submissions import UNDER_WAY, counted_uploads
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.rows import batches, execute_quietly
from organs.registry.catalog.tables import (
    ContributorRow,
    PageToken,
    SubmissionRow,
    UploadChunk,
    UploadPiece,
    UploadRow,
    WebSession,
    now,
)
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.digest import Digest
from organs.registry.errors import NotFound, OverQuota, TooMany
from organs.registry.upload_limits import OPEN_UPLOADS_MAX, PACKED_PIECES_MAX, UPLOAD_LIFETIME, UPLOADS_MAX

OPEN_UPLOADS_RETRY_SECONDS = 60.0
"""The time after which a contributor with too many open uploads should try again."""

Pieces = Sequence[tuple[int, Digest]]
"""The size and the digest of each piece, in order."""


def check_upload_allowed(
    session: Session,
    contributor_id: int,
    size_bytes: int,
    packed: int,
    *,
    default_quota_bytes: int,
    upload_max_bytes: int,
    hold: bool,
) -> None:
    """Raise OverQuota or TooMany if the contributor may not open an upload of `size_bytes` with `packed` pieces.

    TooMany is a temporary limit, OverQuota is not. With `hold`, in a writing session, no other session can open an
    upload for the same contributor until this session ends.
    """
    if size_bytes > upload_max_bytes:
        raise OverQuota(f"the upload has {size_bytes:,} bytes; at most {upload_max_bytes:,} are accepted")
    contributor = session.get_one(ContributorRow, contributor_id, with_for_update=hold)
    unfinished, total = counted_uploads(session, contributor_id, database_now(session))
    if unfinished >= OPEN_UPLOADS_MAX:
        raise TooMany(f"{unfinished} uploads are open already: finish or cancel some", OPEN_UPLOADS_RETRY_SECONDS)
    if total >= UPLOADS_MAX:
        raise OverQuota(f"{total:,} uploads are stored already: publish models of them, or remove some")
    if packed and packed_pieces(session, contributor_id) + packed > PACKED_PIECES_MAX:
        raise OverQuota(
            f"packs would have more than {PACKED_PIECES_MAX:,} pieces: publish models of them, or remove some"
        )
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
) -> UploadRow:
    """Add an upload without any bytes yet. Its `pieces` count after it is finished."""
    moment = database_now(session)
    row = UploadRow(
        public_id=public_id,
        contributor_id=contributor_id,
        kind=kind,
        name=name,
        digest=digest,
        size_bytes=size_bytes,
        received_bytes=0,
        state="open",
        created_at=moment,
        expires_at=moment + UPLOAD_LIFETIME,
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


def record_received(
    session: Session, upload_id: int, before_bytes: int, after_bytes: int, file: str | None = None
) -> bool:
    """Count durable bytes up to `after_bytes`; return False if the count was not `before_bytes`.

    `file` is the name of the object with the new bytes, if they are in a bucket.
    """
    statement = update(UploadRow).where(
        UploadRow.id == upload_id, UploadRow.state == "open", UploadRow.received_bytes == before_bytes
    )
    values = statement.values(received_bytes=after_bytes, expires_at=database_now(session) + UPLOAD_LIFETIME)
    if not execute_quietly(session, values):
        return False
    if file is not None:
        size_bytes = after_bytes - before_bytes
        session.add(UploadChunk(upload_id=upload_id, offset_bytes=before_bytes, size_bytes=size_bytes, file=file))
    return True


def complete_upload(session: Session, upload_id: int, digest: Digest) -> bool:
    """Mark an upload as complete; `digest` is of all its bytes. Return False if it is no longer open."""
    statement = update(UploadRow).where(UploadRow.id == upload_id, UploadRow.state == "open")
    expires_at = database_now(session) + UPLOAD_LIFETIME
    return execute_quietly(session, statement.values(state="complete", digest=digest, expires_at=expires_at)) == 1


def remove_upload(session: Session, upload_id: int) -> bool:
    """Delete an upload; its file may be removed after the commit. Return False if it is deleted already."""
    for table in (UploadPiece, UploadChunk):
        session.execute(delete(table).where(table.upload_id == upload_id))
    return execute_quietly(session, delete(UploadRow).where(UploadRow.id == upload_id)) == 1


def remove_expired_upload(session: Session, upload_id: int) -> bool:
    """Delete an upload if it has expired; return False if it was renewed meanwhile or is deleted already."""
    row = session.get(UploadRow, upload_id, with_for_update=True, populate_existing=True)
    return row is not None and row.expires_at <= database_now(session) and remove_upload(session, upload_id)


def renew_uploads(
    session: Session, contributor_id: int, digests: Collection[str], public_ids: Collection[str] = ()
) -> int:
    """Keep finished uploads of the contributor for UPLOAD_LIFETIME from now, because a submission uses them.

    These are the uploads with pieces of `digests`, and those in `public_ids`. Return the number of matches; an upload
    that matches in several batches counts several times.
    """
    renewed = 0
    finished = (UploadRow.contributor_id == contributor_id, UploadRow.state == "complete")
    for batch in batches(sorted({*digests, *public_ids})):
        upload_ids = select(UploadPiece.upload_id).where(UploadPiece.digest.in_(batch))
        matches = or_(UploadRow.id.in_(upload_ids), UploadRow.public_id.in_(batch))
        statement = (
            update(UploadRow).where(*finished, matches).values(expires_at=database_now(session) + UPLOAD_LIFETIME)
        )
        renewed += execute_quietly(session, statement)
    return renewed


ENDED = ("published", "refused", "withdrawn")
NO_FILES = "{}"
"""The manifest of a submission that has ended. The original is dropped, because it may have megabytes."""


def add_submission(
    session: Session,
    contributor_id: int,
    namespace: str,
    name: str,
    *,
    manifest: str,
    description: str,
    size_bytes: int,
) -> SubmissionRow:
    """Add a submission that waits for its check; `description` is the contributor's metadata, as JSON."""
    moment = now()
    row = SubmissionRow(
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
    session.get_one(ContributorRow, contributor_id, with_for_update=True)


def locked_submission(session: Session, submission_id: int, contributor_id: int | None = None) -> SubmissionRow:
    """Return the locked row of a submission; with `contributor_id`, only one of that contributor. Raises NotFound."""
    row = session.get(SubmissionRow, submission_id, with_for_update=True)
    if row is None or contributor_id not in (None, row.contributor_id):
        raise NotFound(f"you have no submission {submission_id}")
    return row


def change_submission(
    session: Session,
    row: SubmissionRow,
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


def submissions_waiting_for(session: Session, model_id: int) -> Sequence[SubmissionRow]:
    """Return the locked submissions of a model that wait for review; there may be several for equal bytes."""
    waiting = select(SubmissionRow).where(SubmissionRow.model_id == model_id, SubmissionRow.state == "quarantined")
    return session.scalars(waiting.order_by(SubmissionRow.id).with_for_update()).all()


NOT_COPIED = "This registry was moved, or restored from a backup, without the uploaded bytes: send them again."


def remove_uploads(session: Session) -> None:
    """Delete all uploads, because their bytes were not copied; withdraw submissions that need them."""
    for table in (UploadPiece, UploadChunk, UploadRow):
        session.execute(delete(table))
    values = {"state": "withdrawn", "manifest": NO_FILES, "reason": NOT_COPIED, "changed_at": now()}
    session.execute(update(SubmissionRow).where(SubmissionRow.state.in_(UNDER_WAY)).values(values))


def remove_sessions(session: Session) -> None:
    """Delete all sessions of browsers."""
    for table in (PageToken, WebSession):
        session.execute(delete(table))
