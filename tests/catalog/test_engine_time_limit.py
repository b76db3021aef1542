"""Tests of the time limit of statements: a slow statement is stopped and the connection stays usable."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from organs.registry.catalog.engine import limited
from organs.registry.errors import TooSlow
from organs.registry.local import LocalRegistry
from tests.search.catalogs import random_models, write_models

ENDLESS = text("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")
LONG = text("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000) SELECT count(*) FROM n")


def test_an_endless_statement_is_stopped_and_the_connection_stays_usable(registry: LocalRegistry) -> None:
    with (
        pytest.raises(TooSlow, match=r"longer than 0\.05 s and was stopped; narrow it") as caught,
        registry.catalog.reading(0.05) as session,
    ):
        session.execute(ENDLESS)
    assert caught.value.seconds == 0.05
    for seconds in (None, 60):
        with registry.catalog.reading(seconds) as session:
            assert session.scalar(LONG) == 300_000


def test_a_part_of_a_session_has_a_limit_of_its_own_and_the_earlier_one_applies(registry: LocalRegistry) -> None:
    with registry.catalog.reading(60) as session:
        with pytest.raises(TooSlow) as caught, limited(session, 0.01):
            session.execute(ENDLESS)
        assert caught.value.seconds == 0.01
        assert session.scalar(LONG) == 300_000
    with pytest.raises(TooSlow) as caught, registry.catalog.reading(0.02) as session, limited(session, 60):
        session.execute(ENDLESS)
    assert caught.value.seconds == 0.02


def test_the_limit_of_the_session_applies_again_after_the_limited_part(registry: LocalRegistry) -> None:
    def ask_for_ever() -> None:
        with registry.catalog.reading(0.05) as session:
            with limited(session, 0.01):
                session.scalar(text("SELECT 1"))
            session.execute(ENDLESS)

    with pytest.raises(TooSlow) as caught:
        ask_for_ever()
    assert caught.value.seconds == 0.05


@pytest.fixture
def many(registry: LocalRegistry) -> LocalRegistry:
    write_models(registry, random_models(30, seed=2))
    return registry


def test_counts_over_the_time_limit_are_left_out_and_not_cached(
    many: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = "spectral>=0.1 type:organ"
    with monkeypatch.context() as patched:
        patched.setattr("organs.registry.catalog.engine.STEPS", 1)
        page, counts = many.search_page(query, counts_seconds=0.0)
        with pytest.raises(TooSlow):
            many.search_page("type:organ", search_seconds=0.0)
    assert page == many.search(query)
    assert counts is not None
    assert (counts.hurried, counts.total, counts.exact) == (True, None, False)
    assert counts.uncounted == ("spectral>=0.1",)
    assert counts.fields == many.count("type:organ").fields
    whole = many.search_page(query)[1]
    assert whole == many.count(query)
    assert whole is not None
    assert (whole.hurried, whole.uncounted, whole.total) == (False, (), len(page) + _behind(many, query, page.next))


def _behind(registry: LocalRegistry, asked: str, after: str | None) -> int:
    return 0 if after is None else len(registry.search(asked, limit=1000, after=after))
