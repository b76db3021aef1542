"""Fixtures and hooks for several folders of tests."""

from __future__ import annotations

import gc
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from organs.registry.local import LocalRegistry
from tests import postgres
from tests.compiled_cache import compile_once
from tests.faults.failing import ingest_path, write_model
from tests.registry_templates import DATABASE, RegistryTemplates
from tests.token_leaks import current_watch, watch_everything

# The same examples in every run, so that failures are reproducible. `--hypothesis-profile=default` tries new ones.
# No deadline for an example: the machine may pause for seconds.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests about the database engine that is not used."""
    other_engine = "sqlite" if postgres.is_used() else "postgres"
    left_out = [item for item in items if item.get_closest_marker(other_engine) is not None]
    items[:] = [item for item in items if item.get_closest_marker(other_engine) is None]
    config.hook.pytest_deselected(items=left_out)


def pytest_configure(config: pytest.Config) -> None:
    """Start the watch for tokens, compile nothing twice, and collect garbage less often, which is a tenth faster."""
    gc.set_threshold(50_000, 20, 100)
    meanwhile = ExitStack()
    meanwhile.enter_context(watch_everything())
    meanwhile.enter_context(compile_once())
    config.add_cleanup(meanwhile.close)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Fail a test that disclosed a token, with its fixtures and servers, and stop events before the next test."""
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.cancel()
    current_watch().check()


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of an empty, migrated database; tests copy it, which is ten times as fast as migrating."""
    home = tmp_path_factory.mktemp("migrated")
    LocalRegistry.open(home).close()
    return home / DATABASE


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> RegistryTemplates:
    """Return templates of prepared registries, which tests copy."""
    shared = tmp_path_factory.getbasetemp()
    folder = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "homes"
    folder.mkdir(exist_ok=True)
    return RegistryTemplates(folder, migrated_database)


@pytest.fixture(scope="session")
def filled_home(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Path:
    """Return the folder of a registry with a model that has organs in files and in rows; tests copy it."""
    home = tmp_path_factory.mktemp("filled") / "home"
    home.mkdir()
    shutil.copy(migrated_database, home)
    with LocalRegistry.open(home) as registry:
        ingest_path(registry, write_model(home.parent / "little.gguf"))
    return home


@pytest.fixture
def filled(filled_home: Path, tmp_path: Path) -> Iterator[LocalRegistry]:
    """Return a registry with that model, in the folder `home` of the test's own folder."""
    shutil.copytree(filled_home, tmp_path / "home")
    with LocalRegistry.open(tmp_path / "home") as opened:
        yield opened


@pytest.fixture
def registry(tmp_path: Path, migrated_database: Path) -> Iterator[LocalRegistry]:
    """Return an empty registry in the folder `home` of the test's own folder."""
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(migrated_database, home)
    with LocalRegistry.open(home) as opened:
        yield opened
