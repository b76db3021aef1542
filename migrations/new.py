"""Write the next migration: `python -m organs.migrations.new "what it does"`.

The migration has the differences between the tables and the newest migration.
"""

from __future__ import annotations

import sys

from alembic import command
from sqlalchemy import create_engine

from organs.migrations import HEAD, configuration


def main() -> None:
    """Write `migrations/versions/NNNN_*.py`."""
    engine = create_engine("sqlite://", poolclass=None)
    config = configuration(engine)
    command.upgrade(config, "head")
    config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    next_revision = f"{int(HEAD or 0) + 1:04d}"
    command.revision(config, message=" ".join(sys.argv[1:]), autogenerate=True, rev_id=next_revision)


if __name__ == "__main__":
    main()
