"""Tokens record the token that created them.

Existing tokens have no parent, keep their scopes, and do not get the new scope `tokens`, because an upgrade must not
extend the rights of a token. They can revoke themselves, and an administrator can revoke them.
"""

from __future__ import annotations

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    # Written by hand. On SQLite, Alembic adds a foreign key only by copying the table, and sessions refer to it.
    integer = "INTEGER" if op.get_bind().dialect.name == "sqlite" else "BIGINT"
    op.execute(
        f"ALTER TABLE tokens ADD COLUMN parent_id {integer} CONSTRAINT fk_tokens_parent_id_tokens REFERENCES tokens (id)"
    )
    op.create_index(op.f("ix_tokens_parent_id"), "tokens", ["parent_id"], unique=False)
