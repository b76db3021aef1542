"""Models have measured sizes, fleets measure sensitivities; a size at the end of a name (`4.5bpw`, `2.1GB`, `Q4_K_M-best`) is a quantisation."""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None

ENDINGS = ("bpw", "mb", "gb", "best")
"""A name whose quantisation was not found before ends in one of these."""
QUANTISATION = re.compile(
    r"(?P<stem>.*?[A-Za-z0-9])[-._](?P<quantisation>(?:(?:UD|i1|imat(?:rix)?)[-._])?"
    r"(?:(?:I?Q[1-8]|TQ[12])_[A-Z0-9_]{1,12}?|(?:MXFP[468]|NVFP4)(?:_[A-Z0-9_]{1,12}?)??|BF16|F16|F32|FP16|FP32"
    r"|[0-9]{1,4}(?:\.[0-9]{1,3})?(?:bpw|[MG]B))(?:[-._](?:imat(?:rix)?|best))?)",
    re.ASCII | re.IGNORECASE,
)


WORK_BEFORE = "work IN ('ingest', 'measure', 'repack', 'validate')"
WORK = "work IN ('ingest', 'measure', 'repack', 'validate', 'sensitivity')"


def upgrade() -> None:
    """Apply."""
    _add_tables()
    _add_work_of_fleets()
    connection = op.get_bind()
    for table in ("models", "other_names"):
        columns = sa.table(table, *map(sa.column, ("name", "stem", "quantisation")))
        may_change = sa.or_(*(sa.func.lower(columns.c.name).endswith(ending) for ending in ENDINGS))
        for name, stem in connection.execute(
            sa.select(columns.c.name, columns.c.stem).where(may_change).distinct()
        ).all():
            match = QUANTISATION.fullmatch(name)
            if match is None or match["stem"] == stem:
                continue
            values = {"stem": match["stem"]}
            if table == "models":
                values["quantisation"] = match["quantisation"].upper()
            connection.execute(
                sa.update(columns).where(columns.c.stem == stem, columns.c.name == name).values(**values)
            )


def _add_work_of_fleets() -> None:
    """Allow fleets to measure sensitivities; in SQLite in the stored schema, as migration 0026 does."""
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        op.drop_constraint(op.f("ck_fleet_units_work_known"), "fleet_units", type_="check")
        op.create_check_constraint(op.f("ck_fleet_units_work_known"), "fleet_units", WORK)
        return
    version = connection.exec_driver_sql("PRAGMA schema_version").scalar_one()
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    statement = sa.text(
        "UPDATE sqlite_schema SET sql = replace(sql, :before, :after) WHERE type = 'table' AND name = 'fleet_units'"
    )
    connection.execute(statement, {"before": WORK_BEFORE, "after": WORK})
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")


def _add_tables() -> None:
    number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    timestamp = sa.DateTime(timezone=True).with_variant(sa.TEXT(), "sqlite")

    def text(length: int) -> sa.String:
        return sa.String(length=length).with_variant(sa.TEXT(), "sqlite")

    op.create_table(
        "sensitivities",
        sa.Column("id", number, nullable=False),
        sa.Column("file_digest", text(64), nullable=False),
        sa.Column("organs", text(255), nullable=False),
        sa.Column("dtype", text(16), nullable=False),
        sa.Column("importances", text(64), nullable=False),
        sa.Column("texts", text(64), nullable=False),
        sa.Column("tokens", number, nullable=False),
        sa.Column("runtime", text(256), nullable=False),
        sa.Column("reading", sa.Text(), nullable=False),
        sa.Column("created_at", timestamp, nullable=False),
        sa.CheckConstraint("length(file_digest) <= 64", name=op.f("ck_sensitivities_file_digest_length")),
        sa.CheckConstraint("length(organs) <= 255", name=op.f("ck_sensitivities_organs_length")),
        sa.CheckConstraint("length(dtype) <= 16", name=op.f("ck_sensitivities_dtype_length")),
        sa.CheckConstraint("length(importances) <= 64", name=op.f("ck_sensitivities_importances_length")),
        sa.CheckConstraint("length(texts) <= 64", name=op.f("ck_sensitivities_texts_length")),
        sa.CheckConstraint("length(runtime) <= 256", name=op.f("ck_sensitivities_runtime_length")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sensitivities")),
        sa.UniqueConstraint(
            *("file_digest", "organs", "dtype", "importances", "texts", "tokens", "runtime"),
            name=op.f("uq_sensitivities_measured"),
        ),
        sqlite_strict=True,
    )
    op.create_table(
        "sizes",
        sa.Column("id", number, nullable=False),
        sa.Column("source_model_id", number, nullable=False),
        sa.Column("model_id", number, nullable=True),
        sa.Column("kind", text(16), nullable=False),
        sa.Column("label", text(96), nullable=False),
        sa.Column("tag", text(96), nullable=False),
        sa.Column("size_bytes", number, nullable=False),
        sa.Column("reading", sa.Text(), nullable=False),
        sa.Column("texts", text(64), nullable=False),
        sa.Column("runtime", text(256), nullable=False),
        sa.Column("created_at", timestamp, nullable=False),
        sa.CheckConstraint("kind IN ('chosen', 'plain')", name=op.f("ck_sizes_kind_known")),
        sa.CheckConstraint("length(label) <= 96", name=op.f("ck_sizes_label_length")),
        sa.CheckConstraint("length(tag) <= 96", name=op.f("ck_sizes_tag_length")),
        sa.CheckConstraint("length(texts) <= 64", name=op.f("ck_sizes_texts_length")),
        sa.CheckConstraint("length(runtime) <= 256", name=op.f("ck_sizes_runtime_length")),
        sa.ForeignKeyConstraint(["source_model_id"], ["models.id"], name=op.f("fk_sizes_source_model_id_models")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_sizes_model_id_models")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sizes")),
        sa.UniqueConstraint("source_model_id", "tag", name=op.f("uq_sizes_source_model_id_tag")),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_sizes_model_id"), "sizes", ["model_id"])
