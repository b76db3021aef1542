"""A registry and the command that uses it."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.registry import Registry
from tests.cli.running import Organ
from tests.trips import little_model


@pytest.fixture
def organ(registry: Registry) -> Organ:
    """The command with an empty registry."""
    return Organ(registry.settings.home)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The file of a little model, not ingested."""
    path = tmp_path / "little.gguf"
    path.write_bytes(little_model())
    return path


@pytest.fixture
def filled(organ: Organ, model: Path) -> Organ:
    """The command with a registry that holds `local/little@1`."""
    organ.done("ingest", model)
    return organ
