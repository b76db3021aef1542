"""Measured edges have the change of the weights, and how many blocks of a quantisation a source explains."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    number = sa.Float(53).with_variant(sa.REAL(), "sqlite")
    op.add_column("lineage", sa.Column("change", number, nullable=True))
    op.add_column("lineage", sa.Column("matched", number, nullable=True))
