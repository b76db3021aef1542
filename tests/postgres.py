"""A pytest plugin that runs the tests on PostgreSQL: `pytest -p tests.postgres PATH`, or `make test-postgres`.

It starts its own server in a temporary folder (or uses the one that `ORGAN_TEST_POSTGRES_URL` names) and gives each
registry's folder a database there. A copied folder gets a copy of the database of the original folder.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.pool import NullPool

from organs import migrations
from organs.registry.settings import Settings

URL_VARIABLE = "ORGAN_TEST_POSTGRES_URL"
MARKER = "registry.postgres"
"""The file in a registry's folder that names its database, so that copies of the folder can find the original."""
EMPTY = "organ_empty"
"""The database with the newest schema and no rows; new databases are copies of it."""
SERVER_SETTINGS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "autovacuum": "off",
    "max_connections": "300",
    "listen_addresses": "",
}
START_SECONDS = "60"

_created: dict[str, Path] = {}
"""The databases that this process created, with the folder of each."""

_in_folder = Settings.in_folder


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Start one server for all workers, and let every folder use it, before any test module is imported."""
    if URL_VARIABLE not in os.environ:
        server = temporary_server()
        os.environ[URL_VARIABLE] = server.__enter__()
        early_config.add_cleanup(lambda: server.__exit__(None, None, None))
        early_config.add_cleanup(lambda: os.environ.pop(URL_VARIABLE, None))
    if "PYTEST_XDIST_WORKER" not in os.environ:
        _make_empty_database()
    Settings.in_folder = classmethod(_settings_on_postgres)  # type: ignore[method-assign,assignment]
    early_config.add_cleanup(lambda: setattr(Settings, "in_folder", _in_folder))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests about SQLite itself."""
    left_out = [item for item in items if item.get_closest_marker("sqlite") is not None]
    items[:] = [item for item in items if item.get_closest_marker("sqlite") is None]
    config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    """Drop the databases whose folders were removed: ten thousand databases would fill a disk."""
    removed = [name for name, home in _created.items() if not home.exists()]
    if removed:
        with _connection() as connection:
            for name in removed:
                del _created[name]
                connection.execute(text(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))


def is_used() -> bool:
    """Return whether the tests of this process run on PostgreSQL."""
    return URL_VARIABLE in os.environ


@contextmanager
def temporary_server() -> Iterator[str]:
    """Run a PostgreSQL server on a socket in a temporary folder; yield its URL, and remove it at the end.

    Raises pytest.UsageError if the programs of PostgreSQL are not installed.
    """
    programs = _programs()
    with tempfile.TemporaryDirectory(prefix="organ-postgres-", ignore_cleanup_errors=True) as name:
        folder, prefix = Path(name), []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            user = pwd.getpwnam("postgres")
            os.chown(folder, user.pw_uid, user.pw_gid)
            prefix = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        data = folder / "data"
        initialise = [
            str(programs / "initdb"),
            "-D",
            str(data),
            "-U",
            "organ",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        control = [*prefix, str(programs / "pg_ctl"), "-D", str(data), "-w", "-t", START_SECONDS]
        _run([*prefix, *initialise, "-E", "UTF8", "--locale=C.UTF-8"])
        options = " ".join(f"-c {name}={value}" for name, value in SERVER_SETTINGS.items())
        _run([*control, "-l", str(folder / "log"), "-o", f"{options} -k {folder}", "start"])
        try:
            yield f"postgresql+psycopg://organ@/postgres?host={folder}"
        finally:
            _run([*control, "-m", "immediate", "stop"])


def database_url(home: Path) -> str:
    """Return the URL of the database of the registry in the folder `home`; create the database if it does not exist."""
    name = _name_of(home)
    _created[name] = home
    marker = home / MARKER
    source = marker.read_text() if marker.is_file() else EMPTY
    if source != name:
        _copy_database(source, name)
        home.mkdir(parents=True, exist_ok=True)
        marker.write_text(name)
    return _server().set(database=name).render_as_string(hide_password=False)


def bare_database_url(folder: Path) -> str:
    """Return the URL of a new database without tables; its name is derived from the path of `folder`."""
    name = _name_of(folder)
    _created[name] = folder
    _copy_database("template1", name)
    return _server().set(database=name).render_as_string(hide_password=False)


def replace_database(home: Path, source: Path) -> None:
    """Replace the database of the folder `home` by a copy of that of `source`. Neither may have open connections."""
    with _connection() as connection:
        connection.execute(text(f'DROP DATABASE IF EXISTS "{_name_of(home)}" WITH (FORCE)'))
    _copy_database((source / MARKER).read_text(), _name_of(home))


def keep_databases(folder: Path) -> None:
    """Do not drop the databases of the folders below `folder` when it is moved or removed."""
    for name in [name for name, home in _created.items() if folder in home.parents]:
        del _created[name]


def _settings_on_postgres(_cls: type[Settings], home: Path) -> Settings:
    settings = _in_folder(home)
    return replace(settings, database_url=database_url(settings.home))


def _programs() -> Path:
    """Return the folder of `initdb` and `pg_ctl`."""
    initdb = shutil.which("initdb")
    folders = [Path(initdb).parent] if initdb else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for folder in folders:
        if (folder / "initdb").is_file():
            return folder
    raise pytest.UsageError(f"PostgreSQL's initdb is not installed; install the server, or set {URL_VARIABLE}")


def _run(command: list[str]) -> None:
    result = subprocess.run(command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        raise pytest.UsageError(f"{' '.join(command)} failed: {result.stderr}")


def _server() -> URL:
    return make_url(os.environ[URL_VARIABLE])


def _name_of(home: Path) -> str:
    return f"organ_{hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:32]}"


@contextmanager
def _connection() -> Iterator[Any]:
    engine = create_engine(_server(), isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


def _copy_database(source: str, name: str) -> None:
    """Create the database `name` as a copy of `source`, unless another process has created it."""
    with _connection() as connection:
        exists = text("SELECT 1 FROM pg_database WHERE datname = :name")
        if connection.scalar(exists, {"name": name}) is not None:
            return
        try:
            connection.execute(text(f'CREATE DATABASE "{name}" TEMPLATE "{source}"'))
        except ProgrammingError:
            if connection.scalar(exists, {"name": name}) is None:
                raise


def _make_empty_database() -> None:
    with _connection() as connection:
        connection.execute(text(f'DROP DATABASE IF EXISTS "{EMPTY}"'))
        connection.execute(text(f'CREATE DATABASE "{EMPTY}"'))
    engine = create_engine(_server().set(database=EMPTY), poolclass=NullPool)
    migrations.migrate(engine)
    engine.dispose()
