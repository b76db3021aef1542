"""Organs record the number of their NaN and infinite values, models the number of tensors with these values.

For existing organs it is unknown (null) until a file with them is ingested again, or `organ verify --read-data
--repair` has read them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Apply."""
    op.add_column("organs", sa.Column("nonfinite", COUNT, nullable=True))
    op.add_column("models", sa.Column("nonfinite_tensors", COUNT, nullable=True))
