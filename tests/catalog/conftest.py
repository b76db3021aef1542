"""One session for all steps of a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy.orm import Session

from organs.registry.local import LocalRegistry


@pytest.fixture
def session(registry: LocalRegistry) -> Iterator[Session]:
    """Yield a session that writes to an empty registry."""
    with registry.catalog.writing() as session:
        yield session
