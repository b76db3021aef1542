"""Organs and their places have an effective rank.

For existing organs it is null until `organ measure --missing` has measured them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

NUMBER = sa.Float(53).with_variant(sa.REAL(), "sqlite")


def upgrade() -> None:
    """Apply."""
    op.add_column("measurements", sa.Column("effective_rank", NUMBER, nullable=True))
    op.add_column("placements", sa.Column("effective_rank", NUMBER, nullable=True))
    op.create_index(
        "ix_placements_effective_rank",
        "placements",
        ["visible", "type", "effective_rank", "id", "facet_id", "block", "model_id", "theta"],
    )
