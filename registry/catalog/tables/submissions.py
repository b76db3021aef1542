"""What contributors send: the bytes on their way, and the models that are to come of them."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import CheckConstraint, ForeignKey, Index, Text
from sqlalchemy.orm import Mapped, mapped_column

from organs.registry.catalog.tables.base import Base, Big, Timestamp, at_most, one_of, text
from organs.registry.catalog.vocabulary import SUBMISSION_STATES, TEXT_MAX, UPLOAD_KINDS, UPLOAD_STATES


class Upload(Base):
    """Bytes that arrive in chunks, into a file of the folder for uploads; nobody but their sender is told of them."""

    __tablename__ = "uploads"
    __table_args__ = (
        CheckConstraint("length(public_id) = 22", name="public_id_length"),
        one_of("kind", UPLOAD_KINDS),
        one_of("state", UPLOAD_STATES),
        at_most("name", 255),
        at_most("digest", 64),
        CheckConstraint("received_bytes BETWEEN 0 AND size_bytes", name="received_within_size"),
        Index("ix_uploads_contributor_id_state", "contributor_id", "state"),
        Index("ix_uploads_state_expires_at", "state", "expires_at"),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    public_id: Mapped[str] = mapped_column(text(22), unique=True)
    """What its address ends in, and what its file is called: random."""
    contributor_id: Mapped[int] = mapped_column(ForeignKey("contributors.id"))
    kind: Mapped[str] = mapped_column(text(16))
    name: Mapped[str | None] = mapped_column(text(255))
    """Of a whole file: what its sender calls it. Never a path."""
    digest: Mapped[str | None] = mapped_column(text(64))
    """SHA-256 of all the bytes; of a whole file it may be unknown until they have come."""
    size_bytes: Mapped[int] = mapped_column(Big)
    received_bytes: Mapped[int] = mapped_column(Big)
    """Durable; what the file has beyond is written over."""
    state: Mapped[str] = mapped_column(text(16))
    created_at: Mapped[datetime] = mapped_column(Timestamp)
    expires_at: Mapped[datetime] = mapped_column(Timestamp)


class UploadPiece(Base):
    """A piece of a model's file that lies in a finished upload, at an offset of it."""

    __tablename__ = "upload_pieces"
    __table_args__ = (CheckConstraint("length(digest) = 64", name="digest_length"),)

    upload_id: Mapped[int] = mapped_column(ForeignKey("uploads.id", ondelete="CASCADE"), primary_key=True)
    offset_bytes: Mapped[int] = mapped_column(Big, primary_key=True)
    digest: Mapped[str] = mapped_column(text(64), index=True)
    size_bytes: Mapped[int] = mapped_column(Big)


class Submission(Base):
    """A model that somebody wants to publish: from what was sent to what became of it."""

    __tablename__ = "submissions"
    __table_args__ = (
        one_of("state", SUBMISSION_STATES),
        at_most("namespace", 96),
        at_most("name", 96),
        at_most("reason", TEXT_MAX),
        Index("ix_submissions_contributor_id_id", "contributor_id", "id"),
        Index("ix_submissions_state_id", "state", "id"),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    contributor_id: Mapped[int] = mapped_column(ForeignKey("contributors.id"))
    namespace: Mapped[str] = mapped_column(text(96))
    name: Mapped[str] = mapped_column(text(96))
    state: Mapped[str] = mapped_column(text(16))
    manifest: Mapped[str] = mapped_column(Text, deferred=True)
    """JSON object: the files and their pieces; up to some mebibytes."""
    metadata_given: Mapped[str] = mapped_column(Text)
    """JSON object: what the contributor says of the model beside its header."""
    findings: Mapped[str] = mapped_column(Text)
    """JSON list."""
    size_bytes: Mapped[int] = mapped_column(Big)
    job_id: Mapped[int | None] = mapped_column(Big)
    """The job that looks at it. No reference: jobs are forgotten, submissions are not."""
    model_id: Mapped[int | None] = mapped_column(ForeignKey("models.id"), index=True)
    decided_by: Mapped[int | None] = mapped_column(ForeignKey("contributors.id"))
    reason: Mapped[str | None] = mapped_column(text(TEXT_MAX))
    """Why it was refused, in words for its contributor."""
    created_at: Mapped[datetime] = mapped_column(Timestamp)
    changed_at: Mapped[datetime] = mapped_column(Timestamp)
