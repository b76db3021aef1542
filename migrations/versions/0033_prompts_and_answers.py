"""Prompts and answers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    timestamp = sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite")

    def text(length: int) -> sa.String:
        return sa.String(length=length).with_variant(sa.TEXT(), "sqlite")

    op.create_table(
        "answers",
        sa.Column("id", number, nullable=False),
        sa.Column("key", text(32), nullable=False),
        sa.Column("asker", text(64), nullable=False),
        sa.Column("has_account", sa.Boolean().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("state", text(16), nullable=False),
        sa.Column("arguments", sa.Text(), nullable=False),
        sa.Column("attempts", number, nullable=False),
        sa.Column("deaths", number, nullable=False),
        sa.Column("holder", text(32), nullable=True),
        sa.Column("lease_expires_at", timestamp, nullable=True),
        sa.Column("note", text(4096), nullable=False),
        sa.Column("result", sa.Text(), nullable=True),
        sa.Column("created_at", timestamp, nullable=False),
        sa.Column("started_at", timestamp, nullable=True),
        sa.Column("finished_at", timestamp, nullable=True),
        sa.CheckConstraint("state IN ('queued', 'running', 'finished', 'failed')", name=op.f("ck_answers_state_known")),
        sa.CheckConstraint("length(asker) = 64", name=op.f("ck_answers_asker_length")),
        sa.CheckConstraint("length(holder) <= 32", name=op.f("ck_answers_holder_length")),
        sa.CheckConstraint("length(key) = 32", name=op.f("ck_answers_key_length")),
        sa.CheckConstraint("length(note) <= 4096", name=op.f("ck_answers_note_length")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_answers")),
        sa.UniqueConstraint("key", name=op.f("uq_answers_key")),
        sqlite_strict=True,
    )
    op.create_index("ix_answers_asker", "answers", ["asker", "started_at"])
    op.create_index("ix_answers_state", "answers", ["state", "id"])
    op.create_index(op.f("ix_answers_created_at"), "answers", ["created_at"])
    op.create_index(op.f("ix_answers_started_at"), "answers", ["started_at"])
