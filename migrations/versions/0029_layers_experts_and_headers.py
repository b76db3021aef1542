"""The lineage of a chimera can say that blocks were placed, experts pruned, or only the header edited."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

BEFORE = "'dissected', 'relative'"
RELATIONS = "'finetune', 'quantized', 'adapter', 'grafted', 'purified', 'merged', 'dissected', 'relative'"


def upgrade() -> None:
    """Apply; in SQLite in the stored schema, as in 0026, because a copy of a large table would take minutes."""
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        name = op.f("ck_lineage_relation_known")
        op.drop_constraint(name, "lineage", type_="check")
        op.create_check_constraint(name, "lineage", f"relation IN ({RELATIONS}, 'placed', 'pruned', 'edited')")
        return
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    statement = sa.text(
        "UPDATE sqlite_schema SET sql = replace(sql, :before, :after) WHERE type = 'table' AND name = 'lineage'"
    )
    connection.execute(statement, {"before": BEFORE, "after": f"{BEFORE}, 'placed', 'pruned', 'edited'"})
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
