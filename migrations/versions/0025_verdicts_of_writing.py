"""A verdict for runtimes that only write text: `writes`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

OLD = "verdict IN ('broken', 'undecided', 'inert', 'degraded', 'gains', 'coherent')"
NEW = "verdict IN ('broken', 'undecided', 'inert', 'degraded', 'gains', 'coherent', 'writes')"


def upgrade() -> None:
    """Apply."""
    if op.get_bind().dialect.name == "sqlite":
        _replace_check_of_sqlite()
    else:
        op.drop_constraint(op.f("ck_verdicts_verdict_known"), "verdicts", type_="check")
        op.create_check_constraint(op.f("ck_verdicts_verdict_known"), "verdicts", NEW)


def _replace_check_of_sqlite() -> None:
    """Change the text of the CHECK in the schema, as migration 0013 does; the new version makes all connections read it."""
    (version,) = op.get_bind().execute(sa.text("PRAGMA schema_version")).one()
    op.execute("PRAGMA writable_schema = ON")
    schema = sa.table(
        "sqlite_master", sa.column("name", sa.Text), sa.column("type", sa.Text), sa.column("sql", sa.Text)
    )
    is_verdicts = (schema.c.name == "verdicts", schema.c.type == "table")
    op.execute(schema.update().where(*is_verdicts).values(sql=sa.func.replace(schema.c.sql, OLD, NEW)))
    op.execute(f"PRAGMA schema_version = {version + 1}")
    op.execute("PRAGMA writable_schema = OFF")
