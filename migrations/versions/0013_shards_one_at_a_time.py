"""Split models whose shards arrive one at a time: the state `incomplete`, and the number of shards."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
OLD = "state IN ('visible', 'quarantined', 'yanked', 'removed')"
NEW = "state IN ('visible', 'quarantined', 'yanked', 'removed', 'incomplete')"


def upgrade() -> None:
    """Apply."""
    if op.get_bind().dialect.name == "sqlite":
        _replace_check_of_sqlite()
    else:
        op.drop_constraint(op.f("ck_models_state_known"), "models", type_="check")
        op.create_check_constraint(op.f("ck_models_state_known"), "models", NEW)
    op.add_column("models", sa.Column("shards", COUNT, nullable=True))


def _replace_check_of_sqlite() -> None:
    """Change the text of the CHECK in the schema.

    SQLite cannot alter a CHECK. A copy of the table would violate the foreign keys of all tables that refer to it. The
    change of the text is the way that SQLite's documentation of ALTER TABLE describes for a CHECK that accepts more.
    The new column makes other connections read the schema again.
    """
    op.execute("PRAGMA writable_schema = ON")
    schema = sa.table(
        "sqlite_master", sa.column("name", sa.Text), sa.column("type", sa.Text), sa.column("sql", sa.Text)
    )
    is_models = (schema.c.name == "models", schema.c.type == "table")
    op.execute(schema.update().where(*is_models).values(sql=sa.func.replace(schema.c.sql, OLD, NEW)))
    op.execute("PRAGMA writable_schema = RESET")
