"""Gains name the types of grafted organs as pages do: `feed-forward 0-3` for `organ 0-3`."""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

NAMES = {"skeleton": "attention", "organ": "feed-forward", "embed": "embedding"}
TEXT_MAX = 4096
TYPE = re.compile(r"\b(skeleton|organ|embed)\b")


def upgrade() -> None:
    """Apply."""
    gains = sa.table("gains", sa.column("grafted"))
    connection = op.get_bind()
    for text in connection.execute(sa.select(gains.c.grafted).distinct()).scalars().all():
        named = TYPE.sub(lambda match: NAMES[match[1]], text)[:TEXT_MAX]
        if named != text:
            connection.execute(sa.update(gains).where(gains.c.grafted == text).values(grafted=named))
