"""Rows of uploads and submissions. What a row counts as received is on the disk already."""

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
from organs.registry.catalog.queries.submissions import counted_uploads
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.tables import Contributor, PageToken, Submission, Upload, UploadPiece, WebSession, now
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.digest import Digest
from organs.registry.errors import NotFound, OverQuota, TooMany

OPEN_MAX = 64
"""Uploads of one contributor that are under way at once. A program needs one for each of its connections."""
KEPT_MAX = 20_000
"""All uploads of one contributor, finished ones among them: more than the largest model has organs."""
PACKED_MAX = 200_000
"""Pieces in all packs of one contributor: ten times as many as a model has organs, and few enough to be counted."""
KEPT = timedelta(days=7)
"""From the last chunk; a finished upload that nothing is made of goes then, too."""
TOO_MANY_SECONDS = 60.0

Pieces = Sequence[tuple[int, Digest]]
"""The size and the digest of each, in order."""


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
    """Raise OverQuota or TooMany where the contributor may not open an upload of `size_bytes`, with so many pieces
    `packed` in it. TooMany ends by itself; OverQuota does not.

    With `hold`, in a session that writes, nobody else opens one for the same contributor until it ends.
    """
    if size_bytes > most_bytes:
        raise OverQuota(f"it has {size_bytes:,} bytes; {most_bytes:,} are the most that is taken")
    contributor = session.get_one(Contributor, contributor_id, with_for_update=hold)
    are_open, are_kept = counted_uploads(session, contributor_id, now())
    if are_open >= OPEN_MAX:
        raise TooMany(f"{are_open} uploads are open already: finish or cancel some", TOO_MANY_SECONDS)
    if are_kept >= KEPT_MAX:
        raise OverQuota(f"{are_kept:,} uploads are kept already: make models of them, or remove some")
    if packed and packed_pieces(session, contributor_id) + packed > PACKED_MAX:
        raise OverQuota(f"more than {PACKED_MAX:,} pieces would be kept in packs: make models of them, or remove some")
    if contributor.name == LOCAL:
        return  # who works at the machine has its disk
    quota = quota_of(session, contributor, default_quota_bytes)
    counted_bytes = size_bytes + PIECE_ROW_BYTES * packed
    if counted_bytes > quota.left_bytes:
        counts = f", and counts as {counted_bytes:,} with what is noted of its pieces" if packed else ""
        raise OverQuota(
            f"it has {size_bytes:,} bytes{counts}; "
            f"of the quota of {quota.limit_bytes:,} bytes {quota.left_bytes:,} are left"
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
    """A new upload of which nothing has come yet. Those `pieces` count when it is finished."""
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
        expires_at=moment + KEPT,
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


def note_received(session: Session, upload_id: int, before_bytes: int, after_bytes: int) -> bool:
    """Count what has come up to `after_bytes`, and is on the disk; False where it was not `before_bytes` until now."""
    statement = update(Upload).where(
        Upload.id == upload_id, Upload.state == "open", Upload.received_bytes == before_bytes
    )
    return _changed(session, statement.values(received_bytes=after_bytes, expires_at=now() + KEPT))


def complete_upload(session: Session, upload_id: int, digest: Digest) -> bool:
    """All has come, and `digest` is of all of it; False where it is not open any more."""
    statement = update(Upload).where(Upload.id == upload_id, Upload.state == "open")
    return _changed(session, statement.values(state="complete", digest=digest, expires_at=now() + KEPT))


def remove_upload(session: Session, upload_id: int) -> bool:
    """Forget an upload; its file may go when this is committed. False where it is gone already."""
    session.execute(delete(UploadPiece).where(UploadPiece.upload_id == upload_id))
    return _changed(session, delete(Upload).where(Upload.id == upload_id))


def remove_expired_upload(session: Session, upload_id: int) -> bool:
    """Forget an upload if its time is over still: False where somebody has renewed it meanwhile, or it is gone."""
    row = session.get(Upload, upload_id, with_for_update=True, populate_existing=True)
    return row is not None and row.expires_at <= now() and remove_upload(session, upload_id)


def renew_uploads(
    session: Session, contributor_id: int, digests: Collection[str], public_ids: Collection[str] = ()
) -> int:
    """Keep the contributor's finished uploads that have pieces of `digests`, or are called by `public_ids`, another
    KEPT from now: a model is being made of them. How many times one was found.
    """
    renewed = 0
    own = (Upload.contributor_id == contributor_id, Upload.state == "complete")
    for batch in batches(sorted({*digests, *public_ids})):
        having = select(UploadPiece.upload_id).where(UploadPiece.digest.in_(batch))
        named = or_(Upload.id.in_(having), Upload.public_id.in_(batch))
        statement = update(Upload).where(*own, named).values(expires_at=now() + KEPT)
        done: Any = session.execute(statement, execution_options=_WITHOUT_OBJECTS)
        renewed += done.rowcount
    return renewed


_WITHOUT_OBJECTS = {"synchronize_session": False}


def _changed(session: Session, statement: object) -> bool:
    done = session.execute(statement, execution_options=_WITHOUT_OBJECTS)  # type: ignore[call-overload]
    return bool(done.rowcount == 1)


ENDED = ("published", "refused", "withdrawn")
NO_FILES = "{}"
"""In place of the manifest of a submission that has ended: it may have megabytes, and nobody asks for it again."""


def add_submission(
    session: Session,
    contributor_id: int,
    namespace: str,
    name: str,
    *,
    manifest: str,
    said: str,
    size_bytes: int,
) -> Submission:
    """A new submission, which is to be looked at."""
    moment = now()
    row = Submission(
        contributor_id=contributor_id,
        namespace=namespace,
        name=name,
        state="checking",
        manifest=manifest,
        metadata_given=said,
        findings="[]",
        size_bytes=size_bytes,
        created_at=moment,
        changed_at=moment,
    )
    session.add(row)
    session.flush()
    return row


def hold_contributor(session: Session, contributor_id: int) -> None:
    """Until the transaction ends nobody else adds a submission of the contributor, nor forgets what one is made of."""
    session.get_one(Contributor, contributor_id, with_for_update=True)


def locked_submission(session: Session, submission_id: int, contributor_id: int | None = None) -> Submission:
    """The row, for this transaction alone; those of others count as absent where one is named. Raises NotFound."""
    row = session.get(Submission, submission_id, with_for_update=True)
    if row is None or contributor_id not in (None, row.contributor_id):
        raise NotFound(f"there is no submission {submission_id} of yours")
    return row


def change_submission(
    session: Session,
    row: Submission,
    state: str,
    *,
    findings: str | None = None,
    said: str | None = None,
    model_id: int | None = None,
    reason: str | None = None,
    decided_by: str | None = None,
) -> None:
    """Give the submission a state, and what is not None beside it; one that has ended keeps its manifest no more."""
    row.state, row.changed_at = state, now()
    if state in ENDED:
        row.manifest = NO_FILES
    if findings is not None:
        row.findings = findings
    if said is not None:
        row.metadata_given = said
    if model_id is not None:
        row.model_id = model_id
    if reason is not None:
        row.reason = shown_text(reason)
    if decided_by is not None:
        row.decided_by = contributor_by_name(session, decided_by).id
    session.flush()


def submissions_waiting_for(session: Session, model_id: int) -> Sequence[Submission]:
    """All that wait for an administrator's word on one model: the same bytes may be sent twice under one name."""
    waiting = select(Submission).where(Submission.model_id == model_id, Submission.state == "quarantined")
    return session.scalars(waiting.order_by(Submission.id).with_for_update()).all()


UNSENT = ("checking", "ready", "publishing")
"""States of submissions whose bytes lie with the uploads."""
NOT_COPIED = "Its bytes were on their way when the copy was made from which this registry was restored: send it again."


def leave_out_uploads(session: Session) -> None:
    """Forget the uploads, and browsers that are logged in; withdraw the submissions whose bytes lie with them."""
    for table in (UploadPiece, Upload, PageToken, WebSession):
        session.execute(delete(table))
    values = {"state": "withdrawn", "manifest": NO_FILES, "reason": NOT_COPIED, "changed_at": now()}
    session.execute(update(Submission).where(Submission.state.in_(UNSENT)).values(values))
