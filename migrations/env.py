"""Run by Alembic: migrates the database of the engine that it is given, in one transaction."""

from __future__ import annotations

from typing import Literal

from alembic import context

from organs.migrations import check_schema, current_revision
from organs.registry.catalog.tables import Base, Flag, Timestamp

engine = context.config.attributes["engine"]


def render_plainly(kind: str, item: object, _context: object) -> str | Literal[False]:
    """Migrations name SQLAlchemy's own types, so that they stay true when ours change."""
    if kind == "type" and isinstance(item, Timestamp):
        return "sa.DateTime(timezone=True).with_variant(sa.TEXT(), 'sqlite')"
    if kind == "type" and isinstance(item, Flag):
        return "sa.Boolean().with_variant(sa.Integer(), 'sqlite')"
    return False


with engine.connect() as connection:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=True,
        compare_type=True,
        render_item=render_plainly,
        transaction_per_migration=False,
        transactional_ddl=True,  # SQLite's too: else each step is committed, and two who migrate at once get between
    )
    with context.begin_transaction():
        revision = current_revision(connection)
        # In the transaction that migrates. Another process may have migrated since the revision was read.
        if "expected" in context.config.attributes and revision == context.config.attributes["revision"]:
            check_schema(connection, revision, context.config.attributes["expected"])
        context.run_migrations()
    connection.commit()
