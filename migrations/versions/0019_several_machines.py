"""The catalog has a version that grows with every commit (PostgreSQL), and leases that exclude other machines."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    version = op.create_table(
        "catalog_version",
        sa.Column("id", number, nullable=False),
        sa.Column("number", number, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_catalog_version")),
        sqlite_strict=True,
    )
    op.bulk_insert(version, [{"id": 1, "number": 1}])
    op.create_table(
        "named_leases",
        sa.Column("name", sa.String(length=32).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("holder", sa.String(length=32).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.CheckConstraint("length(holder) <= 32", name=op.f("ck_named_leases_holder_length")),
        sa.CheckConstraint("length(name) <= 32", name=op.f("ck_named_leases_name_length")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_named_leases")),
        sqlite_strict=True,
    )
