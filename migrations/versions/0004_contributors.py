"""Contributors: tokens, sessions, uploads, submissions; downloads and grafts of models."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

COUNT_GRAFTS = """
UPDATE models SET grafts = (
    SELECT count(DISTINCT chimeras.model_id) FROM chimeras
    JOIN models AS child ON child.id = chimeras.model_id
    JOIN lineage ON lineage.child_model_id = child.id
    WHERE lineage.parent_model_id = models.id AND chimeras.base_model_id <> models.id AND child.state = 'visible'
)
"""


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "tokens",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("contributor_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("public_id", sa.String(length=9).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("scopes", sa.String(length=64).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("label", sa.String(length=96).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=True),
        sa.CheckConstraint("length(label) <= 96", name=op.f("ck_tokens_label_length")),
        sa.CheckConstraint("length(public_id) = 9", name=op.f("ck_tokens_public_id_length")),
        sa.CheckConstraint("length(scopes) <= 64", name=op.f("ck_tokens_scopes_length")),
        sa.CheckConstraint("length(secret_sha256) = 64", name=op.f("ck_tokens_secret_sha256_length")),
        sa.ForeignKeyConstraint(
            ["contributor_id"], ["contributors.id"], name=op.f("fk_tokens_contributor_id_contributors")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("public_id", name=op.f("uq_tokens_public_id")),
        sqlite_strict=True,
    )
    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_tokens_contributor_id"), ["contributor_id"], unique=False)

    op.create_table(
        "uploads",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("public_id", sa.String(length=22).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("contributor_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("kind", sa.String(length=16).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("name", sa.String(length=255).with_variant(sa.TEXT(), "sqlite"), nullable=True),
        sa.Column("digest", sa.String(length=64).with_variant(sa.TEXT(), "sqlite"), nullable=True),
        sa.Column("size_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("received_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("state", sa.String(length=16).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.CheckConstraint("kind IN ('piece', 'pack', 'file')", name=op.f("ck_uploads_kind_known")),
        sa.CheckConstraint("state IN ('open', 'complete')", name=op.f("ck_uploads_state_known")),
        sa.CheckConstraint("length(digest) <= 64", name=op.f("ck_uploads_digest_length")),
        sa.CheckConstraint("length(name) <= 255", name=op.f("ck_uploads_name_length")),
        sa.CheckConstraint("length(public_id) = 22", name=op.f("ck_uploads_public_id_length")),
        sa.CheckConstraint("received_bytes BETWEEN 0 AND size_bytes", name=op.f("ck_uploads_received_within_size")),
        sa.ForeignKeyConstraint(
            ["contributor_id"], ["contributors.id"], name=op.f("fk_uploads_contributor_id_contributors")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploads")),
        sa.UniqueConstraint("public_id", name=op.f("uq_uploads_public_id")),
        sqlite_strict=True,
    )
    with op.batch_alter_table("uploads", schema=None) as batch_op:
        batch_op.create_index("ix_uploads_contributor_id_state", ["contributor_id", "state"], unique=False)
        batch_op.create_index("ix_uploads_state_expires_at", ["state", "expires_at"], unique=False)

    op.create_table(
        "daily_downloads",
        sa.Column("model_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("day", sa.String(length=10).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("downloads", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.CheckConstraint("length(day) = 10", name=op.f("ck_daily_downloads_day_length")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_daily_downloads_model_id_models")),
        sa.PrimaryKeyConstraint("model_id", "day", name=op.f("pk_daily_downloads")),
        sqlite_strict=True,
    )
    op.create_table(
        "submissions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("contributor_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("namespace", sa.String(length=96).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("name", sa.String(length=96).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("state", sa.String(length=16).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("manifest", sa.Text(), nullable=False),
        sa.Column("metadata_given", sa.Text(), nullable=False),
        sa.Column("findings", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("model_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("decided_by", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=True),
        sa.Column("reason", sa.String(length=4096).with_variant(sa.TEXT(), "sqlite"), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.CheckConstraint(
            "state IN ('checking', 'ready', 'publishing', 'quarantined', 'published', 'refused', 'withdrawn')",
            name=op.f("ck_submissions_state_known"),
        ),
        sa.CheckConstraint("length(name) <= 96", name=op.f("ck_submissions_name_length")),
        sa.CheckConstraint("length(namespace) <= 96", name=op.f("ck_submissions_namespace_length")),
        sa.CheckConstraint("length(reason) <= 4096", name=op.f("ck_submissions_reason_length")),
        sa.ForeignKeyConstraint(
            ["contributor_id"], ["contributors.id"], name=op.f("fk_submissions_contributor_id_contributors")
        ),
        sa.ForeignKeyConstraint(
            ["decided_by"], ["contributors.id"], name=op.f("fk_submissions_decided_by_contributors")
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_submissions_model_id_models")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_submissions")),
        sqlite_strict=True,
    )
    with op.batch_alter_table("submissions", schema=None) as batch_op:
        batch_op.create_index("ix_submissions_contributor_id_id", ["contributor_id", "id"], unique=False)
        batch_op.create_index(batch_op.f("ix_submissions_model_id"), ["model_id"], unique=False)
        batch_op.create_index("ix_submissions_state_id", ["state", "id"], unique=False)

    op.create_table(
        "upload_pieces",
        sa.Column("upload_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("offset_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("digest", sa.String(length=64).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("size_bytes", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.CheckConstraint("length(digest) = 64", name=op.f("ck_upload_pieces_digest_length")),
        sa.ForeignKeyConstraint(
            ["upload_id"], ["uploads.id"], name=op.f("fk_upload_pieces_upload_id_uploads"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("upload_id", "offset_bytes", name=op.f("pk_upload_pieces")),
        sqlite_strict=True,
    )
    with op.batch_alter_table("upload_pieces", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_upload_pieces_digest"), ["digest"], unique=False)

    op.create_table(
        "web_sessions",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("token_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.CheckConstraint("length(secret_sha256) = 64", name=op.f("ck_web_sessions_secret_sha256_length")),
        sa.ForeignKeyConstraint(["token_id"], ["tokens.id"], name=op.f("fk_web_sessions_token_id_tokens")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_web_sessions")),
        sa.UniqueConstraint("secret_sha256", name=op.f("uq_web_sessions_secret_sha256")),
        sqlite_strict=True,
    )
    with op.batch_alter_table("web_sessions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_web_sessions_expires_at"), ["expires_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_web_sessions_token_id"), ["token_id"], unique=False)

    op.create_table(
        "page_tokens",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("session_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("scopes", sa.String(length=64).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite"), nullable=False),
        sa.CheckConstraint("length(scopes) <= 64", name=op.f("ck_page_tokens_scopes_length")),
        sa.CheckConstraint("length(secret_sha256) = 64", name=op.f("ck_page_tokens_secret_sha256_length")),
        sa.ForeignKeyConstraint(
            ["session_id"], ["web_sessions.id"], name=op.f("fk_page_tokens_session_id_web_sessions"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_page_tokens")),
        sa.UniqueConstraint("secret_sha256", name=op.f("uq_page_tokens_secret_sha256")),
        sqlite_strict=True,
    )
    with op.batch_alter_table("page_tokens", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_page_tokens_session_id"), ["session_id"], unique=False)

    # Written by hand. On SQLite, Alembic adds a column with a CHECK only by copying the table, and models refer to it.
    text = "TEXT" if op.get_bind().dialect.name == "sqlite" else "VARCHAR"
    whole, moment = ("INTEGER", "TEXT") if text == "TEXT" else ("BIGINT", "TIMESTAMP WITH TIME ZONE")
    op.execute(
        f"ALTER TABLE contributors ADD COLUMN state {text} DEFAULT 'active' NOT NULL "
        "CONSTRAINT ck_contributors_state_known CHECK (state IN ('active', 'suspended'))"
    )
    op.execute(f"ALTER TABLE contributors ADD COLUMN quota_bytes {whole}")
    op.execute(
        f"ALTER TABLE models ADD COLUMN state_reason {text} "
        "CONSTRAINT ck_models_state_reason_length CHECK (length(state_reason) <= 4096)"
    )
    op.execute(f"ALTER TABLE models ADD COLUMN changed_at {moment}")
    op.execute(f"ALTER TABLE models ADD COLUMN downloads {whole} DEFAULT 0 NOT NULL")
    op.execute(f"ALTER TABLE models ADD COLUMN grafts {whole} DEFAULT 0 NOT NULL")
    op.create_index("ix_models_state_downloads", "models", ["state", "downloads"], unique=False)
    op.create_index("ix_models_state_grafts", "models", ["state", "grafts"], unique=False)
    op.execute(COUNT_GRAFTS)
