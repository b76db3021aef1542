"""Fixtures of the tests of pushing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from organs.ingest.contributions import push, sending
from tests.ingest.memory_registry import FakeRegistry, fake_registry


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    """Return a registry in memory; waits of a push are almost zero."""
    monkeypatch.setattr(sending, "PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(push, "POLL_SECONDS", 0.001)
    with fake_registry() as running:
        yield running
