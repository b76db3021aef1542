"""More words at the end of names are quantisations: `NVFP4`, `i1-Q4_K_M`, `Q4_K_M-imat`."""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

WORDS = ("fp", "i1", "imat", "ud")
"""A name whose quantisation was not found before has one of these."""
QUANTISATION = re.compile(
    r"(?P<stem>.*?[A-Za-z0-9])[-._](?P<quantisation>(?:(?:UD|i1|imat(?:rix)?)[-._])?"
    r"(?:(?:I?Q[1-8]|TQ[12])_[A-Z0-9_]{1,12}?|(?:MXFP[468]|NVFP4)(?:_[A-Z0-9_]{1,12}?)??|BF16|F16|F32|FP16|FP32)"
    r"(?:[-._]imat(?:rix)?)?)",
    re.ASCII | re.IGNORECASE,
)


def upgrade() -> None:
    """Apply."""
    connection = op.get_bind()
    for table in ("models", "other_names"):
        columns = sa.table(table, *map(sa.column, ("name", "stem", "quantisation")))
        may_change = sa.or_(*(sa.func.lower(columns.c.name).contains(word) for word in WORDS))
        names = sa.select(columns.c.name, columns.c.stem).where(may_change).distinct()
        for name, stem in connection.execute(names).all():
            match = QUANTISATION.fullmatch(name)
            if match is None or match["stem"] == stem:
                continue
            values = {"stem": match["stem"]}
            if table == "models":
                values["quantisation"] = match["quantisation"].upper()
            rows = sa.update(columns).where(columns.c.stem == stem, columns.c.name == name)
            connection.execute(rows.values(**values))
