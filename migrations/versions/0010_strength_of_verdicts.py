"""Verdicts say how much was scored; scores are kept by window."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Apply."""
    op.add_column("verdicts", sa.Column("strength", COUNT, server_default="0", nullable=False))
    op.execute(sa.table("scores").delete())  # a cache, with scores by token
