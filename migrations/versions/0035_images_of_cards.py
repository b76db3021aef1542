"""Images of cards."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "card_images",
        sa.Column("model_id", number, nullable=False),
        sa.Column("name", sa.String(length=200).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("blob_id", number, nullable=False),
        sa.Column("format", sa.String(length=16).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("height", sa.Integer(), nullable=False),
        sa.CheckConstraint("length(name) <= 200", name=op.f("ck_card_images_name_length")),
        sa.CheckConstraint("format IN ('png', 'jpeg')", name=op.f("ck_card_images_format_known")),
        sa.CheckConstraint("width > 0 AND height > 0", name=op.f("ck_card_images_sides_positive")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_card_images_model_id_models")),
        sa.ForeignKeyConstraint(["blob_id"], ["blobs.id"], name=op.f("fk_card_images_blob_id_blobs")),
        sa.PrimaryKeyConstraint("model_id", "name", name=op.f("pk_card_images")),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_card_images_blob_id"), "card_images", ["blob_id"])
