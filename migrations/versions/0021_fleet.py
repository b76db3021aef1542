"""Add the ledger of fleets: runs of plans, and their units."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    timestamp = sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite")

    def text(length: int) -> sa.String:
        return sa.String(length=length).with_variant(sa.TEXT(), "sqlite")

    op.create_table(
        "fleet_runs",
        sa.Column("id", number, nullable=False),
        sa.Column("name", text(96), nullable=False),
        sa.Column("digest", text(64), nullable=False),
        sa.Column("dashboard", text(256), nullable=True),
        sa.Column("created_at", timestamp, nullable=False),
        sa.CheckConstraint("length(dashboard) <= 256", name=op.f("ck_fleet_runs_dashboard_length")),
        sa.CheckConstraint("length(digest) = 64", name=op.f("ck_fleet_runs_digest_length")),
        sa.CheckConstraint("length(name) <= 96", name=op.f("ck_fleet_runs_name_length")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fleet_runs")),
        sa.UniqueConstraint("digest", name=op.f("uq_fleet_runs_digest")),
        sqlite_strict=True,
    )
    op.create_table(
        "fleet_units",
        sa.Column("run_id", number, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("work", text(16), nullable=False),
        sa.Column("source", text(4096), nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("attempts", number, nullable=False),
        sa.Column("deaths", number, nullable=False),
        sa.Column("lease_expires_at", timestamp, nullable=True),
        sa.Column("holder", text(32), nullable=True),
        sa.Column("worker", text(96), nullable=True),
        sa.Column("version", text(96), nullable=True),
        sa.Column("size_bytes", number, nullable=True),
        sa.Column("note", text(4096), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("created_at", timestamp, nullable=False),
        sa.Column("started_at", timestamp, nullable=True),
        sa.Column("finished_at", timestamp, nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed', 'set_aside')", name=op.f("ck_fleet_units_state_known")
        ),
        sa.CheckConstraint(
            "work IN ('ingest', 'measure', 'repack', 'validate')", name=op.f("ck_fleet_units_work_known")
        ),
        sa.CheckConstraint("attempts >= 0 AND deaths >= 0", name=op.f("ck_fleet_units_counts_positive")),
        sa.CheckConstraint("length(holder) <= 32", name=op.f("ck_fleet_units_holder_length")),
        sa.CheckConstraint("length(note) <= 4096", name=op.f("ck_fleet_units_note_length")),
        sa.CheckConstraint("length(source) <= 4096", name=op.f("ck_fleet_units_source_length")),
        sa.CheckConstraint("length(version) <= 96", name=op.f("ck_fleet_units_version_length")),
        sa.CheckConstraint("length(worker) <= 96", name=op.f("ck_fleet_units_worker_length")),
        sa.ForeignKeyConstraint(
            ["run_id"], ["fleet_runs.id"], name=op.f("fk_fleet_units_run_id_fleet_runs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("run_id", "number", name=op.f("pk_fleet_units")),
        sqlite_strict=True,
    )
    op.create_index("ix_fleet_units_run_id_finished_at", "fleet_units", ["run_id", "finished_at"])
    op.create_index("ix_fleet_units_run_id_state", "fleet_units", ["run_id", "state", "number"])
