"""Models have the time at which a repack last examined their organs. Blobs may depend on others from now on."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    with op.batch_alter_table("models", schema=None) as batch_op:
        timestamp = sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite")
        batch_op.add_column(sa.Column("repacked_at", timestamp, nullable=True))
        batch_op.create_index("ix_models_repacked_at", ["repacked_at"], unique=False)
