"""Rows of submissions."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.accounts import contributor_by_name
from organs.registry.catalog.queries.submissions import UNDER_WAY
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
from organs.registry.errors import NotFound

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
