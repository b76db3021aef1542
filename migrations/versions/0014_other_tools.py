"""Models of other tools: their texts, names that models had before, and files that an ingest has read."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "known_files",
        sa.Column("stamp", sa.String(length=64).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("sha256", sa.String(length=64).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.CheckConstraint("length(sha256) = 64", name=op.f("ck_known_files_sha256_length")),
        sa.CheckConstraint("length(stamp) = 64", name=op.f("ck_known_files_stamp_length")),
        sa.PrimaryKeyConstraint("stamp", name=op.f("pk_known_files")),
        sqlite_strict=True,
    )
    op.create_table(
        "former_names",
        sa.Column("namespace", sa.String(length=96).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("name", sa.String(length=96).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("model_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.CheckConstraint("length(name) <= 96", name=op.f("ck_former_names_name_length")),
        sa.CheckConstraint("length(namespace) <= 96", name=op.f("ck_former_names_namespace_length")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_former_names_model_id_models")),
        sa.PrimaryKeyConstraint("namespace", "name", "version", name=op.f("pk_former_names")),
        sqlite_strict=True,
    )
    with op.batch_alter_table("former_names", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_former_names_model_id"), ["model_id"], unique=False)

    op.create_table(
        "runtime_texts",
        sa.Column("model_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("source", sa.String(length=255).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "kind IN ('template', 'parameters', 'license')",
            name=op.f("ck_runtime_texts_kind_known"),
        ),
        sa.CheckConstraint("length(source) <= 255", name=op.f("ck_runtime_texts_source_length")),
        sa.CheckConstraint("length(text) <= 32768", name=op.f("ck_runtime_texts_text_length")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_runtime_texts_model_id_models")),
        sa.PrimaryKeyConstraint("model_id", "position", name=op.f("pk_runtime_texts")),
        sqlite_strict=True,
    )
