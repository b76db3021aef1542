"""What the tests of pushing share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from organs.ingest.pushing import submitting, waiting
from tests.ingest.pushed_to import FakeRegistry, fake_registry


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    """A registry in memory, with pushes that wait for next to nothing."""
    monkeypatch.setattr(waiting, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(submitting, "POLL_SECONDS", 0.001)
    with fake_registry() as running:
        yield running
