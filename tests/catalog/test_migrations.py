"""Tests of migrations: the result agrees with the tables from every revision, and newer schemas are refused."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import (
    Connection,
    Engine,
    TableClause,
    column,
    create_engine,
    event,
    insert,
    inspect,
    select,
    table,
    text,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DatabaseError
from sqlalchemy.types import TypeEngine

from organs import migrations
from organs.registry.catalog.engine import open_catalog
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.records import Edits
from organs.registry.catalog.register.model_changes import edit_model
from organs.registry.catalog.tables import Base, ModelRow, ModelTag
from organs.registry.errors import CatalogError, SchemaTooNew
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.settings import DATABASE_VARIABLE, HOME_VARIABLE
from tests import postgres
from tests.gains import add_gains
from tests.registry_templates import RegistryTemplates, add_three_models
from tests.related_models import ingest_bytes
from tests.small_models import small_model

ROOT = Path(__file__).resolve().parents[2]
REVISIONS = [script.revision for script in ScriptDirectory.from_config(migrations.configuration()).walk_revisions()]


@pytest.fixture
def migrated(tmp_path: Path) -> Iterator[Engine]:
    with LocalRegistry.open(tmp_path / "fresh") as registry:
        yield registry.catalog.writer


def url_of(home: Path) -> str:
    """Return the URL of the database of the registry in `home`, which may be without tables."""
    return postgres.bare_database_url(home) if postgres.is_used() else f"sqlite:///{home / 'registry.sqlite3'}"


def allow_missing_rows(connection: Connection) -> None:
    """Do not check references to other rows."""
    statement = "SET session_replication_role = replica" if postgres.is_used() else "PRAGMA foreign_keys = OFF"
    connection.exec_driver_sql(statement)


def environment_of(home: Path) -> dict[str, str]:
    """Return the environment of a process that opens the registry in `home`, which may be without tables."""
    return os.environ | {HOME_VARIABLE: str(home)} | ({DATABASE_VARIABLE: url_of(home)} if postgres.is_used() else {})


def differences(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return list(compare_metadata(context, Base.metadata))


def schema(engine: Engine) -> dict[str, Any]:
    """Return everything that a table consists of, with the CHECKs, which Alembic does not compare.

    Names of foreign keys are left out: SQLAlchemy does not see those of columns that were added to a table on SQLite.
    """
    inspector = inspect(engine)
    return {
        table: {
            "columns": sorted(
                (column["name"], _type_name(column["type"]), column["nullable"])
                for column in inspector.get_columns(table)
            ),
            "key": inspector.get_pk_constraint(table)["constrained_columns"],
            "checks": _sorted(inspector.get_check_constraints(table), "name", "sqltext"),
            "unique": _sorted(inspector.get_unique_constraints(table), "name", "column_names"),
            "foreign": _sorted(inspector.get_foreign_keys(table), "constrained_columns", "referred_table", "options"),
            "indexes": _sorted(inspector.get_indexes(table), "name", "column_names", "unique"),
        }
        for table in inspector.get_table_names()
        if table != "alembic_version"
    }


def _type_name(column_type: TypeEngine[Any]) -> str:
    """Return the name of a type without the length of texts: some migrations limit it only by a CHECK."""
    return str(column_type).partition("(")[0]


def _sorted(found: list[Any], *parts: str) -> list[str]:
    return sorted(repr([row[part] for part in parts]) for row in found)


@pytest.mark.sqlite
def test_every_created_or_migrated_table_is_strict(migrated: Engine) -> None:
    with migrated.connect() as connection:
        listed = connection.exec_driver_sql("SELECT name, strict FROM pragma_table_list WHERE schema = 'main'").all()
    strict = {name: bool(flag) for name, flag in listed if not name.startswith(("sqlite_", "alembic_"))}
    assert strict == dict.fromkeys(Base.metadata.tables, True)


def test_constraints_and_indexes_are_the_same_by_migrating_as_by_creating(migrated: Engine, tmp_path: Path) -> None:
    created = create_engine(url_of(tmp_path))
    Base.metadata.create_all(created)
    expected = schema(created)
    created.dispose()
    assert sum(len(table["checks"]) for table in expected.values()) > 20
    assert schema(migrated) == expected


def test_the_newest_revision_is_the_only_head() -> None:
    script = ScriptDirectory.from_config(migrations.configuration())
    assert script.get_heads() == [migrations.HEAD]
    assert migrations.HEAD in REVISIONS


@pytest.mark.long
@pytest.mark.parametrize("revision", REVISIONS)
def test_opening_a_database_of_any_revision_migrates_it(revision: str, tmp_path: Path) -> None:
    url = url_of(tmp_path)
    old = create_engine(url)
    command.upgrade(migrations.configuration(old), revision)
    old.dispose()
    catalog = open_catalog(url, migrations.migrate, migrations.HEAD)
    try:
        assert differences(catalog.writer) == []
        with catalog.reading() as session:
            assert session.scalar(text("SELECT version_num FROM alembic_version")) == migrations.HEAD
    finally:
        catalog.close()


@pytest.mark.long
def test_four_processes_open_the_same_new_registry_concurrently_and_write_to_it(tmp_path: Path) -> None:
    script = (
        "from organs.registry.catalog.register.events import contributor_id\n"
        "from organs.registry.local import LocalRegistry\n"
        "for number in range(25):\n"
        "    with LocalRegistry.open() as registry, registry.catalog.writing() as session:\n"
        "        contributor_id(session, f'writer {number}')\n"
    )
    command_line, environment = [sys.executable, "-c", script], environment_of(tmp_path / "home")
    running = [
        subprocess.Popen(command_line, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(4)
    ]
    ends = [(process.communicate()[1], process.returncode) for process in running]
    assert ends == [("", 0)] * 4
    with LocalRegistry.open(tmp_path / "home") as registry, registry.catalog.reading() as session:
        assert session.scalar(text("SELECT count(*) FROM contributors WHERE name LIKE 'writer %'")) == 25


@pytest.mark.long
def test_a_database_that_is_up_to_date_is_opened_without_loading_alembic(tmp_path: Path) -> None:
    LocalRegistry.open(tmp_path).close()
    script = "import sys; from organs.registry import LocalRegistry\nLocalRegistry.open().close(); print(*sys.modules)"
    environment = os.environ | postgres.environment(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "sqlalchemy" in loaded
    assert not {name for name in loaded if name.startswith(("alembic", "migrations.versions"))}


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an SQLite database of the oldest schema."""
    path = tmp_path_factory.mktemp("oldest") / "registry.sqlite3"
    upgrade(f"sqlite:///{path}")
    return path


def upgrade(url: str) -> None:
    engine = create_engine(url)
    command.upgrade(migrations.configuration(engine), migrations.OLDEST)
    engine.dispose()


def stamped(url: str, oldest: Path, *changes: str) -> None:
    """Make a database of the oldest schema, and change it without a migration."""
    if postgres.is_used():
        upgrade(url)
    else:
        shutil.copy(oldest, make_url(url).database or "")
    engine = create_engine(url)
    with engine.begin() as connection:
        for change in changes:
            connection.exec_driver_sql(change)
    engine.dispose()


def dump(url: str) -> list[object]:
    """Return the schema and all rows."""
    engine = create_engine(url)
    with closing(engine.raw_connection()) as connection:
        if isinstance(connection.driver_connection, sqlite3.Connection):
            content: list[object] = list(connection.driver_connection.iterdump())
        else:
            cursor = connection.cursor()
            content = [schema(engine)]
            for table in inspect(engine).get_table_names():
                cursor.execute(f'SELECT * FROM "{table}"')
                content += [table, cursor.fetchall()]
    engine.dispose()
    return content


TYPED = "CREATE TABLE totals (name TEXT PRIMARY KEY NOT NULL, value TEXT) STRICT"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["ALTER TABLE models DROP COLUMN changed_at"], "table models has no column changed_at"),
        (["DROP INDEX ix_models_digest"], "table models has no index ix_models_digest"),
        (["ALTER TABLE models ADD COLUMN mine TEXT"], "table models has a column mine that it should not have"),
        (["ALTER TABLE jobs RENAME TO others"], "there is no table jobs"),
        (["UPDATE alembic_version SET version_num = '0013'"], "table models has no column shards"),
        (["DELETE FROM alembic_version"], "the database has no revision, but it has the table"),
        (["DROP TABLE alembic_version"], "it has the table"),
        (["UPDATE alembic_version SET version_num = '9999'"], "newer version"),
        (
            ["UPDATE alembic_version SET version_num = '0011'"],
            "the database has the schema 0011, and this version opens schemas from 0012",
        ),
        pytest.param(
            ["DROP TABLE totals", TYPED],
            "column value of table totals is TEXT, not INTEGER NOT NULL",
            marks=pytest.mark.sqlite,
        ),
    ],
)
def test_a_schema_that_differs_from_its_recorded_revision_is_refused_and_not_changed(
    changes: list[str], said: str, oldest: Path, tmp_path: Path
) -> None:
    url = url_of(tmp_path)
    stamped(url, oldest, *changes)
    before = dump(url)
    with pytest.raises(CatalogError, match=re.escape(said)) as caught:
        LocalRegistry.open(tmp_path)
    assert isinstance(caught.value, SchemaTooNew) == ("newer" in said)
    assert dump(url) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DatabaseError("CREATE", None, Exception("cut"))])
def test_an_interrupted_or_failed_migration_leaves_no_tables(error: BaseException, tmp_path: Path) -> None:
    """All steps are one transaction: a concurrent migration sees the old schema or the new one."""
    url = url_of(tmp_path)

    def cut(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if "CREATE TABLE page_tokens" in statement:
            raise error

    def migrate(engine: Engine) -> None:
        event.listen(engine, "before_cursor_execute", cut)
        migrations.migrate(engine)

    with pytest.raises((CatalogError, KeyboardInterrupt)):
        open_catalog(url, migrate, migrations.HEAD)
    left = create_engine(url)
    assert inspect(left).get_table_names() == []
    left.dispose()
    with closing(open_catalog(url, migrations.migrate, migrations.HEAD)) as catalog:
        assert differences(catalog.writer) == []


Tables = Mapping[str, TableClause]


def tables_of(engine: Engine) -> Tables:
    """Return the tables of `engine` that the newest schema also has, with the columns that it also has."""
    inspector, newest = inspect(engine), Base.metadata.tables
    names = {name: [one["name"] for one in inspector.get_columns(name)] for name in inspector.get_table_names()}
    return {
        name: table(name, *(column(one) for one in names[name] if one in newest[name].columns))
        for name in names.keys() & newest.keys()
    }


def rows_of(engine: Engine, tables: Tables) -> dict[str, list[dict[str, Any]]]:
    with engine.connect() as connection:
        return {
            name: sorted((dict(row) for row in connection.execute(select(one)).mappings()), key=repr)
            for name, one in tables.items()
        }


FORMER = {"chimeras": {"prediction": "{}"}, "gains": {"grafted": "organ 0-1"}}
"""By table, columns and values that the oldest schema had instead of those of the newest."""


@pytest.mark.long
def test_the_rows_of_the_oldest_schema_are_kept_and_completed(
    templates: RegistryTemplates, registry: LocalRegistry, oldest: Path, tmp_path: Path
) -> None:
    templates.fill(registry, add_three_models)
    for seed, name in enumerate(("base-Q8_0", "base-4.5bpw"), 1):
        ingest_bytes(registry, tmp_path, name, small_model(seed=seed))
    made = registry.compose("local/base").graft("local/tuned", type="organ").plan().register()
    add_gains(registry, made.model, {"python": 1.5})
    with registry.catalog.writing() as session:
        edit_model(session, model_by_name(session, parse_model_name("base")), Edits(tags=("Medical", "code")), "local")
    url = url_of(tmp_path)
    stamped(url, oldest)
    engine = create_engine(url)
    tables = tables_of(engine)
    expected = rows_of(registry.catalog.writer, tables)
    assert [len(expected[name]) for name in ("models", "chimeras", "gains")] == [6, 1, 1]
    with engine.begin() as connection:
        allow_missing_rows(connection)
        for name, rows in expected.items():
            former = [row | FORMER.get(name, {}) for row in rows]
            if former:
                connection.execute(insert(table(name, *map(column, former[0]))), former)
    engine.dispose()
    with closing(open_catalog(url, migrations.migrate, migrations.HEAD)) as catalog:
        assert rows_of(catalog.writer, tables) == expected
        with catalog.reading() as session:
            names = session.execute(select(ModelRow.name, ModelRow.stem, ModelRow.quantisation)).all()
            tags = session.execute(select(ModelTag.model_id, ModelTag.tag).order_by(ModelTag.tag)).all()
    named = {("base", "base", None), ("base-Q8_0", "base", "Q8_0"), ("base-4.5bpw", "base", "4.5BPW")}
    assert named < set(map(tuple, names))
    assert tags == [(1, "code"), (1, "medical")]


def test_a_database_with_additional_tables_is_migrated(oldest: Path, tmp_path: Path) -> None:
    stamped(url_of(tmp_path), oldest, "CREATE TABLE notes (text TEXT)")
    LocalRegistry.open(tmp_path).close()
