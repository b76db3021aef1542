"""Lineage has a relation for models of which experts were left out."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

BEFORE = "relation IN ('finetune', 'quantized', 'adapter', 'grafted', 'purified', 'merged', 'dissected', 'relative')"
AFTER = BEFORE.replace("'merged', ", "'merged', 'pruned', ")


def upgrade() -> None:
    """Apply."""
    if op.get_bind().dialect.name != "sqlite":
        name = op.f("ck_lineage_relation_known")
        op.drop_constraint(name, "lineage", type_="check")
        op.create_check_constraint(name, "lineage", AFTER)
        return
    # As in 0026: the condition is replaced in the stored schema, because all rows fulfil the new one.
    connection = op.get_bind()
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    statement = "UPDATE sqlite_schema SET sql = replace(sql, :before, :after) WHERE type = 'table' AND name = 'lineage'"
    connection.execute(sa.text(statement), {"before": BEFORE, "after": AFTER})
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
