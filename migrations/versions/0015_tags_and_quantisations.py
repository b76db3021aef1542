"""Models by tag, and the quantisations of one model by their common name."""

from __future__ import annotations

import json
import re

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
NAME = sa.String(96).with_variant(sa.TEXT(), "sqlite")
BATCH = 500
TAGS_MAX = 100
QUANTISATION = re.compile(
    r"(?P<stem>.*?[A-Za-z0-9])[-._](?P<quantisation>(?:UD-)?(?:I?Q[1-8]|TQ[12])_[A-Z0-9_]{1,12}|BF16|F16|F32|FP16|FP32|MXFP4(?:_MOE)?)",
    re.ASCII | re.IGNORECASE,
)


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "model_tags",
        sa.Column("tag", NAME, nullable=False),
        sa.Column("model_id", ID, nullable=False),
        sa.CheckConstraint("length(tag) <= 96", name=op.f("ck_model_tags_tag_length")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_model_tags_model_id_models")),
        sa.PrimaryKeyConstraint("tag", "model_id", name=op.f("pk_model_tags")),
        sqlite_strict=True,
    )
    op.create_index("ix_model_tags_model_id", "model_tags", ["model_id"])
    op.add_column("models", sa.Column("stem", NAME, _at_most("stem"), server_default=sa.text("''"), nullable=False))
    op.add_column("models", sa.Column("quantisation", NAME, _at_most("quantisation"), nullable=True))
    _fill()
    op.create_index("ix_models_namespace_stem", "models", ["namespace", "stem"])


def _at_most(column: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(f"length({column}) <= 96", name=op.f(f"ck_models_{column}_length"))


def _fill() -> None:
    """Write the new columns and the tags of all models, some hundred at a time."""
    connection = op.get_bind()
    models = sa.table("models", *map(sa.column, ("id", "name", "tags", "state", "stem", "quantisation")))
    tags = sa.table("model_tags", sa.column("tag", NAME), sa.column("model_id", ID))
    split = sa.update(models).where(models.c.id == sa.bindparam("row"))
    split = split.values(stem=sa.bindparam("new_stem"), quantisation=sa.bindparam("new_quantisation"))
    last = 0
    while True:
        columns = (models.c.id, models.c.name, models.c.tags, models.c.state)
        page = sa.select(*columns).where(models.c.id > last).order_by(models.c.id).limit(BATCH)
        rows = connection.execute(page).all()
        if not rows:
            return
        last = rows[-1].id
        values, tagged = [], []
        for row in rows:
            match = QUANTISATION.fullmatch(row.name)
            stem, quantisation = (match["stem"], match["quantisation"].upper()) if match else (row.name, None)
            values.append({"row": row.id, "new_stem": stem, "new_quantisation": quantisation})
            tagged += _tags(row.id, row.tags) if row.state != "removed" else []
        connection.execute(split, values)
        if tagged:
            connection.execute(sa.insert(tags), tagged)


def _tags(model_id: int, text: str) -> list[dict[str, object]]:
    names = [str(tag).strip().casefold()[:96].strip() for tag in json.loads(text)]
    return [{"tag": name, "model_id": model_id} for name in dict.fromkeys(filter(None, names))][:TAGS_MAX]
