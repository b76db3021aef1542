"""The mark of all tests in this folder, and the command on the registry of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.in_process import OrganCommand

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests in this folder as long."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.long)


@pytest.fixture
def organ(tmp_path: Path) -> OrganCommand:
    """Return the command with the registry in the folder `home` of the test's own folder."""
    return OrganCommand(tmp_path / "home")
