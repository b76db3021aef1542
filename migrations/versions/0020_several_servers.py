"""Uploads can be objects in a bucket, chunk by chunk, and servers share the counts of requests."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "upload_chunks",
        sa.Column("upload_id", number, nullable=False),
        sa.Column("offset_bytes", number, nullable=False),
        sa.Column("size_bytes", number, nullable=False),
        sa.Column("file", sa.String(length=128).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.CheckConstraint("length(file) <= 128", name=op.f("ck_upload_chunks_file_length")),
        sa.CheckConstraint("size_bytes > 0", name=op.f("ck_upload_chunks_size_positive")),
        sa.ForeignKeyConstraint(
            ["upload_id"], ["uploads.id"], name=op.f("fk_upload_chunks_upload_id_uploads"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("upload_id", "offset_bytes", name=op.f("pk_upload_chunks")),
        sa.UniqueConstraint("file", name=op.f("uq_upload_chunks_file")),
        sqlite_strict=True,
    )
    op.create_table(
        "rate_counts",
        sa.Column("key", sa.String(length=32).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("count", number, nullable=False),
        sa.CheckConstraint("length(key) = 32", name=op.f("ck_rate_counts_key_length")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_rate_counts")),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_rate_counts_expires_at"), "rate_counts", ["expires_at"], unique=False)
