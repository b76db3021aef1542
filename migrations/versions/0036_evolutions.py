"""Evolutions and their trials; fleets evolve."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

WORK_BEFORE = "work IN ('ingest', 'measure', 'repack', 'validate', 'sensitivity')"
WORK = "work IN ('ingest', 'measure', 'repack', 'validate', 'sensitivity', 'evolve')"


def upgrade() -> None:
    """Apply."""
    _add_work_of_fleets()
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    timestamp = sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite")

    def text(length: int) -> sa.String:
        return sa.String(length=length).with_variant(sa.TEXT(), "sqlite")

    op.create_table(
        "evolutions",
        sa.Column("id", number, nullable=False),
        sa.Column("contributor_id", number, nullable=False),
        sa.Column("base_model_id", number, nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("note", text(4096), nullable=False),
        sa.Column("space", sa.Text(), nullable=False),
        sa.Column("texts", sa.Text(), nullable=False),
        sa.Column("blocks", sa.Integer(), nullable=False),
        sa.Column("runtime", text(256), nullable=False),
        sa.Column("winner_model_id", number, nullable=True),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.Column("created_at", timestamp, nullable=False),
        sa.Column("finished_at", timestamp, nullable=True),
        sa.CheckConstraint("state IN ('running', 'finished', 'failed')", name=op.f("ck_evolutions_state_known")),
        sa.CheckConstraint("length(note) <= 4096", name=op.f("ck_evolutions_note_length")),
        sa.CheckConstraint("length(runtime) <= 256", name=op.f("ck_evolutions_runtime_length")),
        sa.ForeignKeyConstraint(
            ["contributor_id"], ["contributors.id"], name=op.f("fk_evolutions_contributor_id_contributors")
        ),
        sa.ForeignKeyConstraint(["base_model_id"], ["models.id"], name=op.f("fk_evolutions_base_model_id_models")),
        sa.ForeignKeyConstraint(["winner_model_id"], ["models.id"], name=op.f("fk_evolutions_winner_model_id_models")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_evolutions")),
        sqlite_strict=True,
        sqlite_autoincrement=True,
    )
    for column in ("contributor_id", "base_model_id", "winner_model_id"):
        op.create_index(op.f(f"ix_evolutions_{column}"), "evolutions", [column])
    op.create_table(
        "evolution_trials",
        sa.Column("evolution_id", number, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("role", text(16), nullable=False),
        sa.Column("of_number", sa.Integer(), nullable=True),
        sa.Column("choices", sa.Text(), nullable=False),
        sa.Column("plan", text(64), nullable=True),
        sa.Column("state", text(16), nullable=False),
        sa.Column("worker", text(96), nullable=True),
        sa.Column("attempts", number, nullable=False),
        sa.Column("deaths", number, nullable=False),
        sa.Column("holder", text(32), nullable=True),
        sa.Column("lease_expires_at", timestamp, nullable=True),
        sa.Column("note", text(4096), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("created_at", timestamp, nullable=False),
        sa.Column("started_at", timestamp, nullable=True),
        sa.Column("finished_at", timestamp, nullable=True),
        sa.CheckConstraint("attempts >= 0 AND deaths >= 0", name=op.f("ck_evolution_trials_counts_positive")),
        sa.CheckConstraint(
            "role IN ('start', 'proposed', 'check', 'without')", name=op.f("ck_evolution_trials_role_known")
        ),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'done', 'failed', 'set_aside')",
            name=op.f("ck_evolution_trials_state_known"),
        ),
        sa.CheckConstraint("length(plan) <= 64", name=op.f("ck_evolution_trials_plan_length")),
        sa.CheckConstraint("length(worker) <= 96", name=op.f("ck_evolution_trials_worker_length")),
        sa.CheckConstraint("length(holder) <= 32", name=op.f("ck_evolution_trials_holder_length")),
        sa.CheckConstraint("length(note) <= 4096", name=op.f("ck_evolution_trials_note_length")),
        sa.ForeignKeyConstraint(
            ["evolution_id"],
            ["evolutions.id"],
            name=op.f("fk_evolution_trials_evolution_id_evolutions"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("evolution_id", "number", name=op.f("pk_evolution_trials")),
        sqlite_strict=True,
    )
    op.create_index("ix_evolution_trials_state", "evolution_trials", ["evolution_id", "state", "number"])
    op.create_index("ix_evolution_trials_plan", "evolution_trials", ["evolution_id", "plan"])


def _add_work_of_fleets() -> None:
    """Allow fleets to evolve; in SQLite in the stored schema, as migration 0026 does."""
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        op.drop_constraint(op.f("ck_fleet_units_work_known"), "fleet_units", type_="check")
        op.create_check_constraint(op.f("ck_fleet_units_work_known"), "fleet_units", WORK)
        return
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    statement = sa.text(
        "UPDATE sqlite_schema SET sql = replace(sql, :before, :after) WHERE type = 'table' AND name = 'fleet_units'"
    )
    connection.execute(statement, {"before": WORK_BEFORE, "after": WORK})
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
