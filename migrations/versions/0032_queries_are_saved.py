"""Accounts can save queries under names."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "saved_queries",
        sa.Column("contributor_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kind", sa.String(length=16).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("name", sa.String(length=64).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("query", sa.String(length=2000).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.CheckConstraint("kind IN ('models', 'organs')", name=op.f("ck_saved_queries_kind_known")),
        sa.CheckConstraint("length(name) <= 64", name=op.f("ck_saved_queries_name_length")),
        sa.CheckConstraint("length(query) <= 2000", name=op.f("ck_saved_queries_query_length")),
        sa.ForeignKeyConstraint(
            ["contributor_id"], ["contributors.id"], name=op.f("fk_saved_queries_contributor_id_contributors")
        ),
        sa.PrimaryKeyConstraint("contributor_id", "kind", "name", name=op.f("pk_saved_queries")),
        sqlite_strict=True,
    )
