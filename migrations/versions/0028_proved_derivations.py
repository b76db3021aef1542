"""Quantised organs have the proof from which organs they were made."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

    def text(length: int) -> sa.String:
        return sa.String(length=length).with_variant(sa.TEXT(), "sqlite")

    op.create_table(
        "derivations",
        sa.Column("organ_id", number, nullable=False),
        sa.Column("source_id", number, nullable=False),
        sa.Column("encoder", text(96), nullable=False),
        sa.Column("importances", text(64), nullable=True),
        sa.Column("equal_blocks", number, nullable=False),
        sa.Column("blocks", number, nullable=False),
        sa.CheckConstraint("length(encoder) <= 96", name=op.f("ck_derivations_encoder_length")),
        sa.CheckConstraint("length(importances) = 64", name=op.f("ck_derivations_importances_length")),
        sa.ForeignKeyConstraint(["organ_id"], ["organs.id"], name=op.f("fk_derivations_organ_id_organs")),
        sa.ForeignKeyConstraint(["source_id"], ["organs.id"], name=op.f("fk_derivations_source_id_organs")),
        sa.PrimaryKeyConstraint("organ_id", "source_id", name=op.f("pk_derivations")),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_derivations_source_id"), "derivations", ["source_id"])
