"""Other names of models: their former names, and names under which the same bytes were met."""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NAME = sa.String(96).with_variant(sa.TEXT(), "sqlite")
QUANTISATION = re.compile(
    r"(?P<stem>.*?[A-Za-z0-9])[-._](?:(?:UD-)?(?:I?Q[1-8]|TQ[12])_[A-Z0-9_]{1,12}|BF16|F16|F32|FP16|FP32|MXFP4(?:_MOE)?)",
    re.ASCII | re.IGNORECASE,
)


def upgrade() -> None:
    """Apply."""
    names = op.create_table(
        "other_names",
        sa.Column("namespace", NAME, nullable=False),
        sa.Column("name", NAME, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("model_id", ID, nullable=False),
        sa.Column("stem", NAME, nullable=False),
        sa.CheckConstraint("length(name) <= 96", name=op.f("ck_other_names_name_length")),
        sa.CheckConstraint("length(namespace) <= 96", name=op.f("ck_other_names_namespace_length")),
        sa.CheckConstraint("length(stem) <= 96", name=op.f("ck_other_names_stem_length")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_other_names_model_id_models")),
        sa.PrimaryKeyConstraint("namespace", "name", "version", name=op.f("pk_other_names")),
        sqlite_strict=True,
    )
    former = sa.table("former_names", *map(sa.column, ("namespace", "name", "version", "model_id")))
    for row in op.get_bind().execute(sa.select(former)).all():
        match = QUANTISATION.fullmatch(row.name)
        stem = match["stem"] if match else row.name
        op.execute(sa.insert(names).values(**row._mapping, stem=stem))
    op.drop_table("former_names")
    op.create_index("ix_other_names_model_id", "other_names", ["model_id"])
    op.create_index("ix_other_names_stem", "other_names", ["stem", "namespace"])
    op.drop_index("ix_models_namespace_stem", "models")
    op.create_index("ix_models_stem", "models", ["stem", "namespace"])
