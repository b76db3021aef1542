"""Running totals of the registry, with the totals of the existing rows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

# A total without a row is 0.
COUNTED = {
    "models": "SELECT count(*) AS number FROM models WHERE state = 'visible'",
    "placements": "SELECT count(*) AS number FROM placements WHERE visible",
    "organs": "SELECT count(DISTINCT organ_id) AS number FROM placements WHERE visible",
    "blobs": "SELECT count(*) AS number FROM blobs WHERE state <> 'doomed'",
    "size_bytes": "SELECT sum(size_bytes) AS number FROM blobs WHERE state <> 'doomed'",
    "stored_bytes": "SELECT sum(stored_bytes) AS number FROM blobs WHERE state <> 'doomed'",
}


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "totals",
        sa.Column("name", sa.String(length=16).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("value", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.CheckConstraint(
            "name IN ('models', 'placements', 'organs', 'blobs', 'size_bytes', 'stored_bytes')",
            name=op.f("ck_totals_name_known"),
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_totals")),
        sqlite_strict=True,
    )
    for name, counted in COUNTED.items():
        rows = f"SELECT '{name}', number FROM ({counted}) AS counted WHERE number > 0"  # noqa: S608  # constants only
        op.execute(f"INSERT INTO totals (name, value) {rows}")
