"""The command and its registry."""

from __future__ import annotations

import pytest

from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand


@pytest.fixture
def organ(registry: LocalRegistry) -> OrganCommand:
    """The command with an empty registry."""
    return OrganCommand(registry.settings.home)
