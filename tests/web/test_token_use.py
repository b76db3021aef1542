"""The use of a token is recorded without delay: a request never waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import select

from organs.registry.catalog import engine
from organs.registry.catalog.tables import Token
from organs.registry.errors import Busy
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.settings import THREADS
from tests import postgres
from tests.clocks import local_clock
from tests.registry_templates import DATABASE
from tests.web.accounts import authorization, new_token

HOUR_MS = 3_600_000
PATIENCE_SECONDS = 60
"""Only a request that waits takes so long."""


@pytest.fixture
def patient(tmp_path: Path, migrated_database: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalRegistry]:
    """A registry in which who writes waits for an hour."""
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_MS", HOUR_MS)
    home = tmp_path / "home"
    home.mkdir()
    (home / DATABASE).write_bytes(migrated_database.read_bytes())
    with LocalRegistry.open(home) as registry:
        yield registry


def uses(registry: LocalRegistry) -> list[bool]:
    """Of each token, whether it is noted that it was used."""
    with registry.catalog.reading() as session:
        return [moment is not None for moment in session.scalars(select(Token.last_used_at))]


def test_a_request_does_not_wait_for_the_database_to_note_that_its_token_was_used(patient: LocalRegistry) -> None:
    sent = authorization(new_token(patient, "ada"))
    client = create_app(patient).test_client()
    with ThreadPoolExecutor(1) as pool, postgres.locked_database(patient.settings.home):
        answer = pool.submit(client.get, "/api/v1/account", headers=sent)
        assert answer.result(PATIENCE_SECONDS).status_code == 200
    assert uses(patient) == [False]
    assert client.get("/api/v1/account", headers=sent).status_code == 200
    assert uses(patient) == [True], "the next request notes it"
    with patient.catalog.writing() as session:
        question = "SHOW lock_timeout" if postgres.is_used() else "PRAGMA busy_timeout"
        timeout = session.connection().exec_driver_sql(question).scalar()
    assert timeout == ("1h" if postgres.is_used() else HOUR_MS), "the connection that did not wait is patient again"


def test_uses_within_ten_minutes_are_noted_once_whatever_the_clock_of_the_server(registry: LocalRegistry) -> None:
    sent = authorization(new_token(registry, "ada"))
    client, noted = create_app(registry).test_client(), set()
    with local_clock(10):
        for _ in range(3):
            assert client.get("/api/v1/account", headers=sent).status_code == 200
            with registry.catalog.reading() as session:
                noted.add(session.scalar(select(Token.last_used_at)))
    assert len(noted - {None}) == len(noted) == 1


def test_too_many_connections_raise_busy(patient: LocalRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patient.catalog.reader.pool, "_timeout", 0.01)
    with ExitStack() as opened:
        for _ in range(engine.POOL_SIZE + engine.POOL_OVERFLOW):
            opened.enter_context(patient.catalog.reading()).connection()
        with pytest.raises(Busy, match="too many queries at once"), patient.catalog.reading() as session:
            session.scalars(select(Token)).all()
    assert uses(patient) == []
    assert engine.POOL_SIZE + engine.POOL_OVERFLOW >= 2 * THREADS, "and the threads beside them"
