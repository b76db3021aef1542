"""Gains: what validated chimeras gained over their bases, by text, and the organs that the gains are attributed to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NUMBER = sa.Float(53).with_variant(sa.REAL(), "sqlite")
FLAG = sa.Boolean().with_variant(sa.Integer(), "sqlite")


def _text(length: int) -> sa.types.TypeEngine[str]:
    return sa.String(length).with_variant(sa.TEXT(), "sqlite")


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "gains",
        sa.Column("id", COUNT, primary_key=True),
        sa.Column("model_id", COUNT, sa.ForeignKey("models.id", name="fk_gains_model_id_models"), nullable=False),
        sa.Column(
            "base_model_id", COUNT, sa.ForeignKey("models.id", name="fk_gains_base_model_id_models"), nullable=False
        ),
        sa.Column("donor_model_id", COUNT, sa.ForeignKey("models.id", name="fk_gains_donor_model_id_models")),
        sa.Column("grafted", _text(4096), nullable=False),
        sa.Column("text_digest", _text(64), nullable=False),
        sa.Column("percent", NUMBER, nullable=False),
        sa.Column("margin", NUMBER, nullable=False),
        sa.Column("tokens", COUNT, nullable=False),
        sa.Column("settled", FLAG, nullable=False),
        sa.Column("text", _text(96), nullable=False),
        sa.UniqueConstraint("model_id", "text_digest", name="uq_gains_model_id_text_digest"),
        sa.CheckConstraint("length(text) <= 96", name=op.f("ck_gains_text_length")),
        sa.CheckConstraint("length(text_digest) <= 64", name=op.f("ck_gains_text_digest_length")),
        sa.CheckConstraint("length(grafted) <= 4096", name=op.f("ck_gains_grafted_length")),
        sqlite_strict=True,
    )
    op.create_index("ix_gains_base_model_id_percent", "gains", ["base_model_id", "percent"])
    op.create_index("ix_gains_donor_model_id", "gains", ["donor_model_id"])
    op.create_table(
        "gain_organs",
        sa.Column("organ_id", COUNT, sa.ForeignKey("organs.id", name="fk_gain_organs_organ_id_organs"), nullable=False),
        sa.Column("model_id", COUNT, sa.ForeignKey("models.id", name="fk_gain_organs_model_id_models"), nullable=False),
        sa.PrimaryKeyConstraint("organ_id", "model_id", name="pk_gain_organs"),
        sqlite_strict=True,
    )
    op.create_index("ix_gain_organs_model_id", "gain_organs", ["model_id"])
