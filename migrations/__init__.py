"""Schema migrations, configured in code so that an installed wheel can migrate.

`HEAD` is the newest revision; it stands here as text so that opening a database that is up to date need not load
Alembic. Migrations only move forward on released data. A new one is made by `python -m migrations.new "what it
does"`.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from registry.errors import SchemaTooNew

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Engine

HEAD = "0007"
LOCATION = Path(__file__).parent

_one_at_a_time = threading.Lock()
"""Alembic keeps what it is doing in a place that all threads share. A second upgrade finds nothing left to do."""


def configuration(engine: Engine | None = None) -> Config:
    """Alembic's configuration for `engine`."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(LOCATION).replace("%", "%%"))
    config.attributes["engine"] = engine
    return config


def migrate(engine: Engine) -> None:
    """Bring the schema to `HEAD`; raises SchemaTooNew for a database that a newer version has migrated."""
    from alembic import command
    from alembic.util import CommandError

    try:
        with _one_at_a_time:
            command.upgrade(configuration(engine), "head")
    except CommandError as error:
        if "Can't locate revision" in str(error):
            raise SchemaTooNew("a newer version of organ-registry wrote this database: upgrade the program") from error
        raise
