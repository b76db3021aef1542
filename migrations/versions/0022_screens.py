"""Drop the predictions of chimeras, which real models did not bear out, and add screens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.drop_column("chimeras", "prediction")
    op.add_column("chimeras", sa.Column("screen", sa.Text(), nullable=True))
