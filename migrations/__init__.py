"""Schema migrations, configured in code so that an installed wheel can migrate.

`HEAD` is the newest revision, and `OLDEST` that of the oldest database that can be opened. They are read from the names
of the files, so that a database with the newest schema opens without Alembic. Released data is only migrated forward.
The command `python -m organs.migrations.new "what it does"` writes a new migration.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from organs.registry.errors import CatalogError, SchemaTooNew

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection, Engine

    from organs.migrations.schema import Schema

LOCATION = Path(__file__).parent
REVISIONS = sorted(path.name[:4] for path in (LOCATION / "versions").glob("[0-9][0-9][0-9][0-9]_*.py"))
OLDEST, HEAD = REVISIONS[0], REVISIONS[-1]
UNCHANGED = "nothing was changed; restore a backup, or undo the change of the tables"

_lock = threading.Lock()
"""Held during a migration, because Alembic keeps its state in a place that all threads share. A second thread finds a
migrated database."""


def configuration(engine: Engine | None = None) -> Config:
    """Return Alembic's configuration for `engine`."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(LOCATION).replace("%", "%%"))
    config.attributes["engine"] = engine
    return config


def migrate(engine: Engine) -> None:
    """Bring the schema to `HEAD`.

    Raises SchemaTooNew for a database that a newer version has migrated, and CatalogError for one that is older than
    `OLDEST`, and if the schema differs from that of its revision. In all cases nothing is changed.
    """
    from alembic import command
    from alembic.util import CommandError

    try:
        with _lock:
            config = configuration(engine)
            with engine.connect() as connection:
                revision = current_revision(connection)
            if revision is not None and revision.isdecimal() and revision < OLDEST:
                raise CatalogError(
                    f"the database has the schema {revision}, and this version opens schemas from {OLDEST} on: "
                    "open it once with an earlier version"
                )
            config.attributes["revision"], config.attributes["expected"] = revision, expected_schema(revision)
            command.upgrade(config, "head")
    except CommandError as error:
        if "Can't locate revision" in str(error):
            raise SchemaTooNew("a newer version of organ-registry wrote this database: upgrade the program") from error
        raise


def current_revision(connection: Connection) -> str | None:
    """Return the revision in the stamp of a database; None if it has no stamp."""
    from alembic.migration import MigrationContext

    return MigrationContext.configure(connection).get_current_revision()


def expected_schema(revision: str | None) -> Schema:
    """Return the schema of an empty SQLite database after the migrations up to `revision`.

    It is not safe for threads. Raises CommandError for an unknown revision.
    """
    from alembic import command
    from sqlalchemy import StaticPool, create_engine

    from organs.migrations.schema import schema_of

    if revision is None:
        return {}
    engine = create_engine("sqlite://", poolclass=StaticPool)
    try:
        command.upgrade(configuration(engine), revision)
        with engine.connect() as connection:
            return schema_of(connection)
    finally:
        engine.dispose()


def check_schema(connection: Connection, revision: str | None, expected: Schema) -> None:
    """Compare the schema of a database with the schema `expected` for its revision.

    Raises CatalogError with the first differences.
    """
    from organs.migrations.schema import in_a_sentence, schema_differences, schema_of

    found = schema_of(connection)
    if revision is None:
        own_tables = sorted(found.keys() & expected_tables())
        if own_tables:
            raise CatalogError(f"the database has no revision, but it has the table {own_tables[0]}: {UNCHANGED}")
        return
    differences = schema_differences(expected, found, same_engine=connection.dialect.name == "sqlite")
    if differences:
        sentence = f"the database says that its schema is revision {revision}, but {in_a_sentence(differences)}"
        raise CatalogError(f"{sentence}: {UNCHANGED}")


def expected_tables() -> set[str]:
    """Return the names of the tables of the newest schema."""
    from organs.registry.catalog.tables import Base

    return set(Base.metadata.tables)
