"""Failed jobs have a problem document, with the code of the error."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("jobs", sa.Column("problem", sa.Text(), nullable=True))
