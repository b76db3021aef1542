"""The rows of submissions: asked for, looked at, and how they end. Who calls has looked at the state before."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from organs.registry.catalog.clock import now
from organs.registry.catalog.queries.accounts import contributor_by_name
from organs.registry.catalog.tables import Contributor, Submission
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.errors import NotFound

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
