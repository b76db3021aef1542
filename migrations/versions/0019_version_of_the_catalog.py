"""On PostgreSQL, the catalog has a version that grows with every commit, so that readers can cache what they computed."""

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
