"""Jobs are claimed as units of fleets are: a random text identifies the claim, and deaths of runners are counted."""

from __future__ import annotations

from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply.

    Until now, the number of attempts identified the claim, and was that of the deaths, with the present claim. A claim
    of the former version ends with its lease: no process can renew it.
    """
    text, number = ("TEXT", "INTEGER") if op.get_bind().dialect.name == "sqlite" else ("VARCHAR(32)", "BIGINT")
    op.execute(
        f"ALTER TABLE jobs ADD COLUMN holder {text} CONSTRAINT ck_jobs_holder_length CHECK (length(holder) <= 32)"
    )
    op.execute(f"ALTER TABLE jobs ADD COLUMN deaths {number} DEFAULT 0 NOT NULL")
    op.execute("UPDATE jobs SET deaths = attempts WHERE state = 'queued'")
    op.execute("UPDATE jobs SET deaths = attempts - 1 WHERE state = 'running'")
