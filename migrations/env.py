"""The script that Alembic runs. It migrates the database of the engine in its configuration, in one transaction."""

from __future__ import annotations

from typing import Literal

from alembic import context
from sqlalchemy import text

from organs.migrations import check_schema, current_revision
from organs.registry.catalog.tables import Base, Flag, Number, Timestamp

MIGRATION_LOCK = 2
"""The advisory lock of PostgreSQL that a migration holds."""

engine = context.config.attributes["engine"]


def render_plainly(kind: str, item: object, _context: object) -> str | Literal[False]:
    """Return the code of SQLAlchemy's own types, so that migrations stay valid when the types in `tables` change."""
    if kind == "type" and isinstance(item, Timestamp):
        return "sa.DateTime(timezone=True).with_variant(sa.TEXT(), 'sqlite')"
    if kind == "type" and isinstance(item, Flag):
        return "sa.Boolean().with_variant(sa.Integer(), 'sqlite')"
    if kind == "type" and isinstance(item, Number):
        return "sa.Float(53).with_variant(sa.REAL(), 'sqlite')"
    return False


with engine.connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=True,
        compare_type=True,
        render_item=render_plainly,
        transaction_per_migration=False,
        # Also on SQLite. Otherwise each step is committed, and two processes that migrate could run between the steps.
        transactional_ddl=True,
    )
    with context.begin_transaction():
        if connection.dialect.name == "postgresql":  # two processes could create the same table; SQLite locks the file
            connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
        revision = current_revision(connection)
        # Checked in the transaction of the migration. Another process may have migrated after the revision was read.
        if "expected" in context.config.attributes and revision == context.config.attributes["revision"]:
            check_schema(connection, revision, context.config.attributes["expected"])
        context.run_migrations()
    connection.commit()
