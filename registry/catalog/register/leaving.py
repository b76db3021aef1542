"""What a copy of the registry leaves out: bytes on their way, of which only this registry's own disk has the file."""

from __future__ import annotations

from sqlalchemy import delete, update
from sqlalchemy.orm import Session

from organs.registry.catalog.clock import now
from organs.registry.catalog.register.submissions import NO_FILES
from organs.registry.catalog.tables import PageToken, Submission, Upload, UploadPiece, WebSession

UNSENT = ("checking", "ready", "publishing")
"""States of submissions whose bytes lie with the uploads."""
NOT_COPIED = "Its bytes were on their way when the copy was made from which this registry was restored: send it again."


def leave_out_uploads(session: Session) -> None:
    """Forget the uploads, and browsers that are logged in; withdraw the submissions whose bytes lie with them."""
    for table in (UploadPiece, Upload, PageToken, WebSession):
        session.execute(delete(table))
    values = {"state": "withdrawn", "manifest": NO_FILES, "reason": NOT_COPIED, "changed_at": now()}
    session.execute(update(Submission).where(Submission.state.in_(UNSENT)).values(values))
