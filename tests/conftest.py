"""What several folders of tests share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from registry.registry import Registry

# The same examples in every run: what fails, fails for everybody. `--hypothesis-profile=default` looks for new ones.
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def migrated_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of an empty database, migrated once; tests take copies of it, which is ten times as fast."""
    home = tmp_path_factory.mktemp("migrated")
    Registry.open(home).close()
    return home / "registry.sqlite3"


@pytest.fixture
def registry(tmp_path: Path, migrated_database: Path) -> Iterator[Registry]:
    """An empty registry in the folder `home` of the test's own folder."""
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(migrated_database, home)
    with Registry.open(home) as opened:
        yield opened
