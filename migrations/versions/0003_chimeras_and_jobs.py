"""Chimeras with their sources, computed organs, scores and verdicts; and jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "scores",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("file_digest", sa.String(length=64).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("text_digest", sa.String(length=64).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("tokens", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("runtime", sa.String(length=256).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("reading", sa.Text(), nullable=False),
        sa.Column("perplexity", sa.Float(precision=53).with_variant(sa.REAL(), "sqlite"), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.CheckConstraint("length(file_digest) <= 64", name=op.f("ck_scores_file_digest_length")),
        sa.CheckConstraint("length(runtime) <= 256", name=op.f("ck_scores_runtime_length")),
        sa.CheckConstraint("length(text_digest) <= 64", name=op.f("ck_scores_text_digest_length")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_scores")),
        sa.UniqueConstraint(
            "file_digest",
            "text_digest",
            "tokens",
            "runtime",
            name=op.f("uq_scores_file_digest_text_digest_tokens_runtime"),
        ),
        sqlite_strict=True,
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kind", sa.String(length=32).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("state", sa.String(length=16).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("contributor_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("attempts", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("progress", sa.Float(precision=53).with_variant(sa.REAL(), "sqlite"), nullable=False),
        sa.Column("note", sa.String(length=4096).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=True),
        sa.Column("lease_expires_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=True),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'finished', 'failed', 'cancelled')", name=op.f("ck_jobs_state_known")
        ),
        sa.CheckConstraint("length(kind) <= 32", name=op.f("ck_jobs_kind_length")),
        sa.CheckConstraint("length(note) <= 4096", name=op.f("ck_jobs_note_length")),
        sa.ForeignKeyConstraint(
            ["contributor_id"], ["contributors.id"], name=op.f("fk_jobs_contributor_id_contributors")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sqlite_strict=True,
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_jobs_contributor_id"), ["contributor_id"], unique=False)
        batch_op.create_index("ix_jobs_state_kind", ["state", "kind", "id"], unique=False)

    op.create_table(
        "chimeras",
        sa.Column("model_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("lock_id", sa.String(length=64).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("base_model_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("recipe", sa.Text(), nullable=False),
        sa.Column("findings", sa.Text(), nullable=False),
        sa.Column("prediction", sa.Text(), nullable=False),
        sa.Column("origins", sa.Text(), nullable=False),
        sa.CheckConstraint("length(lock_id) <= 64", name=op.f("ck_chimeras_lock_id_length")),
        sa.ForeignKeyConstraint(["base_model_id"], ["models.id"], name=op.f("fk_chimeras_base_model_id_models")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_chimeras_model_id_models")),
        sa.PrimaryKeyConstraint("model_id", name=op.f("pk_chimeras")),
        sqlite_strict=True,
    )
    with op.batch_alter_table("chimeras", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_chimeras_base_model_id"), ["base_model_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_chimeras_lock_id"), ["lock_id"], unique=False)

    op.create_table(
        "computations",
        sa.Column("key", sa.String(length=64).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("organ_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("made", sa.Text(), nullable=False),
        sa.CheckConstraint("length(key) <= 64", name=op.f("ck_computations_key_length")),
        sa.ForeignKeyConstraint(["organ_id"], ["organs.id"], name=op.f("fk_computations_organ_id_organs")),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_computations")),
        sqlite_strict=True,
    )
    with op.batch_alter_table("computations", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_computations_organ_id"), ["organ_id"], unique=False)

    op.create_table(
        "verdicts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("model_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("runtime", sa.String(length=256).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("verdict", sa.String(length=16).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("reason", sa.String(length=4096).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("report", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.CheckConstraint(
            "verdict IN ('broken', 'undecided', 'inert', 'degraded', 'gains', 'coherent')",
            name=op.f("ck_verdicts_verdict_known"),
        ),
        sa.CheckConstraint("length(reason) <= 4096", name=op.f("ck_verdicts_reason_length")),
        sa.CheckConstraint("length(runtime) <= 256", name=op.f("ck_verdicts_runtime_length")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_verdicts_model_id_models")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_verdicts")),
        sqlite_strict=True,
    )
    with op.batch_alter_table("verdicts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_verdicts_model_id"), ["model_id"], unique=False)
