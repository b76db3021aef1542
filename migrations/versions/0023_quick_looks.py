"""Keep a quick look beside each chimera. Scores by the old rule of windows are removed: they are not used again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("chimeras", sa.Column("quick_look", sa.Text(), nullable=True))
    op.execute("DELETE FROM scores WHERE runtime LIKE 'llama.cpp, %, windows in batches'")
