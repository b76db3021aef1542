"""Kinds of files that are no language models; the verdict `writes`; names of tensors with up to 127 characters."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

KINDS_BEFORE = "kind IN ('model', 'adapter', 'vocabulary')"
KINDS = "kind IN ('model', 'adapter', 'vocabulary', 'imatrix', 'control-vector', 'projector', 'image')"
VERDICTS_BEFORE = "verdict IN ('broken', 'undecided', 'inert', 'degraded', 'gains', 'coherent')"
VERDICTS = "verdict IN ('broken', 'undecided', 'inert', 'degraded', 'gains', 'coherent', 'writes')"
NAMES = (("placements", "name"), ("placements", "slot"), ("experts", "slot"), ("facets", "slot"))
IMAGES = (
    *("aura", "chroma", "cosmos", "flux", "flux2", "hidream", "hyvid", "lens", "ltxv", "lumina2", "pig", "qwen_image"),
    *("sd1", "sd3", "sdxl", "wan", "z_image"),
)


def upgrade() -> None:
    """Apply."""
    if op.get_bind().dialect.name == "sqlite":
        _relax_in_sqlite()
    else:
        for table, column, known in (("models", "kind", KINDS), ("verdicts", "verdict", VERDICTS)):
            op.drop_constraint(op.f(f"ck_{table}_{column}_known"), table, type_="check")
            op.create_check_constraint(op.f(f"ck_{table}_{column}_known"), table, known)
        for table, column in NAMES:
            name = f"ck_{table}_{column}_length"
            op.drop_constraint(op.f(name), table, type_="check")
            op.alter_column(table, column, type_=sa.String(127), existing_type=sa.String(64), existing_nullable=False)
            op.create_check_constraint(op.f(name), table, f"length({column}) <= 127")
    for kind, architectures in (("control-vector", ("controlvector",)), ("projector", ("clip",)), ("image", IMAGES)):
        _set_kind(kind, sa.column("architecture").in_(architectures))
    typed = sa.text("id IN (SELECT model_id FROM model_metadata WHERE key = 'general.type' AND value = 'imatrix')")
    _set_kind("imatrix", typed)


def _set_kind(kind: str, condition: sa.ColumnElement[bool] | sa.TextClause) -> None:
    models = sa.table("models", sa.column("kind"))
    op.execute(models.update().where(models.c.kind == "model", condition).values(kind=kind))


def _relax_in_sqlite() -> None:
    """Replace the conditions in the stored schema: copies of tables with millions of rows would take minutes.

    SQLite's documentation of ALTER TABLE has this procedure, for constraints that all rows fulfil.
    """
    connection = op.get_bind()
    changes = [("models", KINDS_BEFORE, KINDS), ("verdicts", VERDICTS_BEFORE, VERDICTS)]
    changes += [(table, f"length({column}) <= 64", f"length({column}) <= 127") for table, column in NAMES]
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    for table, before, after in changes:
        statement = sa.text(
            "UPDATE sqlite_schema SET sql = replace(sql, :before, :after) WHERE type = 'table' AND name = :table"
        )
        connection.execute(statement, {"before": before, "after": after, "table": table})
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
