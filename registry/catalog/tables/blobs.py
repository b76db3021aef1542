"""Stored bytes, who is bringing them in, and who needs them meanwhile."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    Text,
)
from sqlalchemy.orm import Mapped, mapped_column

from organs.registry.catalog.tables.base import Base, Big, Timestamp, at_most, one_of, text
from organs.registry.catalog.vocabulary import (
    BLOB_STATES,
    INGEST_STATES,
    TEXT_MAX,
)


class Ingest(Base):
    """One run over one model. While `running` and before `lease_expires_at`, its blobs are not swept."""

    __tablename__ = "ingests"
    __table_args__ = (one_of("state", INGEST_STATES), at_most("source", TEXT_MAX))

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    source: Mapped[str] = mapped_column(text(TEXT_MAX))
    state: Mapped[str] = mapped_column(text(16))
    started_at: Mapped[datetime] = mapped_column(Timestamp)
    finished_at: Mapped[datetime | None] = mapped_column(Timestamp)
    lease_expires_at: Mapped[datetime] = mapped_column(Timestamp)
    model_id: Mapped[int | None] = mapped_column(ForeignKey("models.id"), index=True)
    report: Mapped[str | None] = mapped_column(Text)
    """JSON: sizes, counts, seconds and MB/s per stage."""


class Blob(Base):
    """Stored bytes. `digest` and `size_bytes` are of the plain bytes; `file` is None for an inline blob."""

    __tablename__ = "blobs"
    __table_args__ = (
        one_of("state", BLOB_STATES),
        CheckConstraint("length(digest) = 64", name="digest_length"),
        at_most("codec", 32),
        at_most("file", 128),
        CheckConstraint("size_bytes >= 0 AND stored_bytes >= 0", name="sizes_positive"),
        Index("ix_blobs_state_touched_at", "state", "touched_at"),
    )

    id: Mapped[int] = mapped_column(Big, primary_key=True)
    digest: Mapped[str] = mapped_column(text(64), unique=True)
    size_bytes: Mapped[int] = mapped_column(Big)
    stored_bytes: Mapped[int] = mapped_column(Big)
    codec: Mapped[str] = mapped_column(text(32))
    codec_version: Mapped[int] = mapped_column(Integer)
    file: Mapped[str | None] = mapped_column(text(128), unique=True)
    state: Mapped[str] = mapped_column(text(16))
    depends_on: Mapped[int | None] = mapped_column(ForeignKey("blobs.id"), index=True)
    """The blob that this one is encoded against, for codecs that need one."""
    created_at: Mapped[datetime] = mapped_column(Timestamp)
    touched_at: Mapped[datetime] = mapped_column(Timestamp)
    """Last time a writer needed it; the sweep's grace counts from here."""


class InlineBlob(Base):
    """The stored bytes of a small blob, in the database instead of a file."""

    __tablename__ = "inline_blobs"

    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id", ondelete="CASCADE"), primary_key=True)
    stored: Mapped[bytes] = mapped_column(LargeBinary)


class BlobLease(Base):
    """A blob that a running ingest will need."""

    __tablename__ = "blob_leases"

    ingest_id: Mapped[int] = mapped_column(ForeignKey("ingests.id", ondelete="CASCADE"), primary_key=True)
    blob_id: Mapped[int] = mapped_column(ForeignKey("blobs.id"), primary_key=True, index=True)
