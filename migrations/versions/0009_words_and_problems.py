"""Codes of findings spell "license"; findings of a submission are accepted; failed jobs keep a problem document."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

COLUMNS = (("chimeras", "recipe"), ("chimeras", "findings"), ("submissions", "findings"), ("jobs", "arguments"))
"""JSON texts that name codes."""


def upgrade() -> None:
    """Apply."""
    for table_name, column_name in COLUMNS:
        column = sa.column(column_name, sa.Text)
        table = sa.table(table_name, column)
        renamed = sa.func.replace(sa.func.replace(column, '"licence-', '"license-'), '"licences-', '"licenses-')
        op.execute(table.update().where(column.like('%"licence%')).values({column_name: renamed}))
    column = sa.column("metadata_given", sa.Text)
    renamed = sa.func.replace(column, '"acknowledged":', '"accepted":')
    op.execute(sa.table("submissions", column).update().values(metadata_given=renamed))
    op.add_column("jobs", sa.Column("problem", sa.Text(), nullable=True))
