"""Files that were installed for other tools or reclaimed are recorded; more kinds of texts of other tools, and longer ones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

KINDS_BEFORE = "kind IN ('template', 'parameters', 'license')"
KINDS = "kind IN ('template', 'parameters', 'license', 'system', 'messages', 'renderer')"
LENGTH_BEFORE, LENGTH = "length(text) <= 32768", "length(text) <= 65536"


def upgrade() -> None:
    """Apply."""
    _relax_texts()
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    timestamp = sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite")

    def text(length: int) -> sa.String:
        return sa.String(length=length).with_variant(sa.TEXT(), "sqlite")

    op.create_table(
        "outside_files",
        sa.Column("id", number, nullable=False),
        sa.Column("place", text(64), nullable=False),
        sa.Column("machine", text(255), nullable=False),
        sa.Column("path", text(4096), nullable=False),
        sa.Column("folder", text(4096), nullable=False),
        sa.Column("batch", text(32), nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("tool", text(16), nullable=False),
        sa.Column("name", text(512), nullable=False),
        sa.Column("model_id", number, nullable=False),
        sa.Column("kind", text(16), nullable=False),
        sa.Column("size_bytes", number, nullable=False),
        sa.Column("sha256", text(64), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=True),
        sa.Column("mode", sa.Integer(), nullable=False),
        sa.Column("modified_ns", number, nullable=False),
        sa.Column("stamp", text(64), nullable=False),
        sa.Column("created_at", timestamp, nullable=False),
        sa.CheckConstraint("length(place) = 64", name=op.f("ck_outside_files_place_length")),
        sa.CheckConstraint("length(machine) <= 255", name=op.f("ck_outside_files_machine_length")),
        sa.CheckConstraint("length(path) <= 4096", name=op.f("ck_outside_files_path_length")),
        sa.CheckConstraint("length(folder) <= 4096", name=op.f("ck_outside_files_folder_length")),
        sa.CheckConstraint("length(batch) = 32", name=op.f("ck_outside_files_batch_length")),
        sa.CheckConstraint("state IN ('installed', 'reclaimed')", name=op.f("ck_outside_files_state_known")),
        sa.CheckConstraint("length(tool) <= 16", name=op.f("ck_outside_files_tool_length")),
        sa.CheckConstraint("length(name) <= 512", name=op.f("ck_outside_files_name_length")),
        sa.CheckConstraint("kind IN ('model', 'text', 'link')", name=op.f("ck_outside_files_kind_known")),
        sa.CheckConstraint("length(sha256) = 64", name=op.f("ck_outside_files_sha256_length")),
        sa.CheckConstraint("length(stamp) <= 64", name=op.f("ck_outside_files_stamp_length")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_outside_files_model_id_models")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outside_files")),
        sa.UniqueConstraint("place", "batch", "machine", name=op.f("uq_outside_files_place_batch_machine")),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_outside_files_batch"), "outside_files", ["batch"])
    op.create_index(op.f("ix_outside_files_model_id"), "outside_files", ["model_id"])


def _relax_texts() -> None:
    """Allow more kinds of texts, and longer ones; in SQLite in the stored schema, as migration 0026 does."""
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        for name, condition in (("kind_known", KINDS), ("text_length", LENGTH)):
            constraint = op.f(f"ck_runtime_texts_{name}")
            op.drop_constraint(constraint, "runtime_texts", type_="check")
            op.create_check_constraint(constraint, "runtime_texts", condition)
        return
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    for before, after in ((KINDS_BEFORE, KINDS), (LENGTH_BEFORE, LENGTH)):
        statement = sa.text(
            "UPDATE sqlite_schema SET sql = replace(sql, :before, :after) WHERE type = 'table' AND name = :table"
        )
        connection.execute(statement, {"before": before, "after": after, "table": "runtime_texts"})
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
