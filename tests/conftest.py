"""What several folders of tests share."""

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
from tests.compiled_cache import compile_once
from tests.faults.failing import ingest_path, write_model
from tests.registry_templates import DATABASE, RegistryTemplates
from tests.token_leaks import current_watch, watch_everything

# The same examples in every run: what fails, fails for everybody. `--hypothesis-profile=default` looks for new ones.
# No example has to be quick: the machine may stand still for seconds.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Look for tokens from now on, compile nothing twice, and collect garbage less often, which is a tenth faster."""
    gc.set_threshold(50_000, 20, 100)
    meanwhile = ExitStack()
    meanwhile.enter_context(watch_everything())
    meanwhile.enter_context(compile_once())
    config.add_cleanup(meanwhile.close)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Let a test fail in which a token got out, its fixtures and servers among it; and let nothing fire in the next."""
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.cancel()
    current_watch().check()


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of an empty database, migrated once; tests take copies of it, which is ten times as fast."""
    home = tmp_path_factory.mktemp("migrated")
    LocalRegistry.open(home).close()
    return home / DATABASE


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> RegistryTemplates:
    """Registries that were furnished once, to be copied."""
    shared = tmp_path_factory.getbasetemp()
    folder = (shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared) / "homes"
    folder.mkdir(exist_ok=True)
    return RegistryTemplates(folder, migrated_database)


@pytest.fixture(scope="session")
def filled_home(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Path:
    """A registry's folder with a model that has organs in files and organs in rows; tests take copies of it."""
    home = tmp_path_factory.mktemp("filled") / "home"
    home.mkdir()
    shutil.copy(migrated_database, home)
    with LocalRegistry.open(home) as registry:
        ingest_path(registry, write_model(home.parent / "little.gguf"))
    return home


@pytest.fixture
def filled(filled_home: Path, tmp_path: Path) -> Iterator[LocalRegistry]:
    """A registry with that model, in the folder `home` of the test's own folder."""
    shutil.copytree(filled_home, tmp_path / "home")
    with LocalRegistry.open(tmp_path / "home") as opened:
        yield opened


@pytest.fixture
def registry(tmp_path: Path, migrated_database: Path) -> Iterator[LocalRegistry]:
    """An empty registry in the folder `home` of the test's own folder."""
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(migrated_database, home)
    with LocalRegistry.open(home) as opened:
        yield opened
