"""The index of placements by organ also has the visibility and the model, to find the models that have an organ."""

from __future__ import annotations

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.drop_index("ix_placements_organ_id", table_name="placements")
    op.create_index("ix_placements_organ", "placements", ["organ_id", "visible", "model_id"], unique=False)
