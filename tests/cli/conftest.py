"""A registry and the command that uses it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from organs.registry.local import LocalRegistry
from organs.registry.validation.llama import LlamaCpp
from tests.cli.crowded import make_crowded
from tests.cli.in_process import OrganCommand
from tests.cli.parents import Parents, ingest_parents
from tests.registry_templates import RegistryTemplates
from tests.small_models import ingest_file, small_model


@pytest.fixture
def organ(registry: LocalRegistry) -> OrganCommand:
    """The command with an empty registry."""
    return OrganCommand(registry.settings.home)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The file of a little model, not ingested."""
    path = tmp_path / "little.gguf"
    path.write_bytes(small_model())
    return path


@pytest.fixture
def filled(organ: OrganCommand, model: Path, registry: LocalRegistry, templates: RegistryTemplates) -> OrganCommand:
    """The command with a registry that holds `local/little@1`, of whose file there is still one."""
    assert model.is_file()
    templates.fill(registry, one_model)
    return organ


def one_model(registry: LocalRegistry, folder: Path) -> None:
    (folder / "little.gguf").write_bytes(small_model())
    ingest_file(registry, folder / "little.gguf")


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Path:
    """A folder with a registry in `home` and the files of its three models in `parents`; tests take copies of it."""
    folder = tmp_path_factory.mktemp("family")
    (folder / "home").mkdir()
    shutil.copy(migrated_database, folder / "home")
    ingest_parents(folder / "home", folder / "parents")
    return folder


@pytest.fixture(scope="session")
def crowded(family: Path, tmp_path_factory: pytest.TempPathFactory) -> OrganCommand:
    """The command with a registry that has a row in every list; no test changes it."""
    return OrganCommand(make_crowded(family, tmp_path_factory.mktemp("crowded") / "home"))


@pytest.fixture
def kept(family: Path, tmp_path: Path) -> Iterator[LocalRegistry]:
    """A registry that holds a base, a fine-tune of it and a stranger."""
    shutil.copytree(family / "home", tmp_path / "kept")
    with LocalRegistry.open(tmp_path / "kept") as opened:
        yield opened


@pytest.fixture
def parents(family: Path, tmp_path: Path) -> Parents:
    """The files of the three models."""
    return Parents(Path(shutil.copytree(family / "parents", tmp_path / "parents")))


@pytest.fixture
def composer(kept: LocalRegistry, monkeypatch: pytest.MonkeyPatch) -> OrganCommand:
    """The command with the registry that holds the three, where llama.cpp is not installed for quick looks."""
    monkeypatch.setattr(LlamaCpp, "is_installed", lambda: False)
    return OrganCommand(kept.settings.home)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """An empty folder for what commands write."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder
