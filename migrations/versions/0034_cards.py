"""Descriptions may be as long as the card of a model."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

LENGTH_BEFORE, LENGTH = "length(description) <= 4096", "length(description) <= 65536"


def upgrade() -> None:
    """Apply; in SQLite in the stored schema, as migration 0026 does."""
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        constraint = op.f("ck_models_description_length")
        op.alter_column("models", "description", type_=sa.String(65_536), existing_type=sa.String(4096))
        op.drop_constraint(constraint, "models", type_="check")
        op.create_check_constraint(constraint, "models", LENGTH)
        return
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    statement = sa.text(
        "UPDATE sqlite_schema SET sql = replace(sql, :before, :after) WHERE type = 'table' AND name = 'models'"
    )
    connection.execute(statement, {"before": LENGTH_BEFORE, "after": LENGTH})
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
