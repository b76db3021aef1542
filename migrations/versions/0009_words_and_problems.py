"""Codes of findings use the spelling "license"; submissions have `accepted`; failed jobs have a problem document."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

CODES = ("licences-conflict", "licences-differ", "licence-not-stated", "licence-unknown", "licence-terms")
COLUMNS = (("chimeras", "recipe"), ("chimeras", "findings"), ("submissions", "findings"), ("jobs", "arguments"))
"""The columns with JSON texts that contain codes."""


def upgrade() -> None:
    """Apply."""
    for table_name, column_name in COLUMNS:
        column = sa.column(column_name, sa.Text)
        table = sa.table(table_name, column)
        renamed: sa.ColumnElement[str] = column
        for code in CODES:
            renamed = sa.func.replace(renamed, f'"{code}"', f'"{code.replace("licence", "license")}"')
        op.execute(table.update().where(column.like('%"licence%')).values({column_name: renamed}))
    column = sa.column("metadata_given", sa.Text)
    accepted = sa.func.replace(column, '"acknowledged":', '"accepted":')
    op.execute(sa.table("submissions", column).update().values(metadata_given=accepted))
    op.add_column("jobs", sa.Column("problem", sa.Text(), nullable=True))
