"""Tests of the cache of readers: never older than the last commit, computed once, limited in size."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from sqlalchemy import select, text

from organs.registry.catalog.cache import cached
from organs.registry.catalog.engine import Catalog
from organs.registry.catalog.register.events import contributor_id
from organs.registry.catalog.tables import ContributorRow
from organs.registry.local import LocalRegistry
from organs.registry.search import facets
from organs.registry.search.language import parse_query
from tests import postgres
from tests.search.catalogs import RandomModel, RandomPlacement, write_models

ADD_A_NAME = """
import sys
from organs.registry.local import LocalRegistry
from organs.registry.catalog.register.events import contributor_id
with LocalRegistry.open() as registry, registry.catalog.writing() as session:
    contributor_id(session, sys.argv[1])
"""


def version(registry: LocalRegistry) -> int:
    current = registry.catalog.version()
    assert current is not None
    return current


def add_name(registry: LocalRegistry, name: str) -> None:
    with registry.catalog.writing() as session:
        contributor_id(session, name)


def names(registry: LocalRegistry) -> list[str]:
    """Return the names of the contributors, cached."""
    with registry.catalog.reading() as session:
        ordered = select(ContributorRow.name).order_by(ContributorRow.id)
        return cached(session, "names", lambda: list(session.scalars(ordered)))


# Versions.


def test_without_a_commit_the_version_stays_the_same_and_nothing_is_stored(
    registry: LocalRegistry,
) -> None:
    before = version(registry)
    with registry.catalog.reading() as session:
        session.scalars(select(ContributorRow)).all()

    def fail_halfway() -> None:
        with registry.catalog.writing() as session:
            contributor_id(session, "ada")
            session.flush()
            raise KeyError

    with pytest.raises(KeyError):
        fail_halfway()
    assert (version(registry), names(registry)) == (before, [])


@pytest.mark.long
def test_the_version_grows_with_a_commit_of_another_process(registry: LocalRegistry) -> None:
    before = version(registry)
    home = registry.settings.home
    environment = {**os.environ, **postgres.environment(home)}
    command = [sys.executable, "-c", ADD_A_NAME, "ada"]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2], env=environment)
    assert version(registry) > before
    assert names(registry) == ["ada"]


def test_the_version_changes_when_the_catalog_was_closed_in_between(registry: LocalRegistry) -> None:
    before = version(registry)
    registry.catalog.close()
    with LocalRegistry.open(registry.settings.home) as other:
        add_name(other, "ada")
    assert version(registry) > before


def test_a_forked_process_has_its_own_connection(registry: LocalRegistry) -> None:
    before = version(registry)
    assert names(registry) == []
    registry.catalog.reader.dispose()
    registry.catalog.writer.dispose()
    end, begin = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the child does not use other threads of the test runner
        child = os.fork()
    if child == 0:
        try:
            add_name(registry, "ada")
            os.write(begin, f"{version(registry) > before} {names(registry)}".encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(begin)
    with os.fdopen(end) as pipe:
        assert pipe.read() == "True ['ada']"
    assert version(registry) > before
    assert names(registry) == ["ada"]


def test_a_writing_session_and_a_catalog_without_a_version_cache_nothing(registry: LocalRegistry) -> None:
    without = Catalog(registry.catalog.reader, registry.catalog.writer)
    assert postgres.is_used() or without.version() is None
    made: list[int] = []
    for catalog in (registry.catalog, without):
        with catalog.writing() as session:
            for _ in range(2):
                cached(session, "key", lambda: made.append(1))
    assert len(made) == 4


# Caching.


def test_a_commit_invalidates_every_cached_value(registry: LocalRegistry) -> None:
    expected: list[str] = []
    for number in range(20):
        assert names(registry) == expected
        assert names(registry) == expected
        expected.append(f"writer {number}")
        add_name(registry, expected[-1])
    assert names(registry) == expected


def test_a_session_with_an_older_state_neither_reads_nor_changes_newer_cached_values(
    registry: LocalRegistry,
) -> None:
    def read() -> list[str]:
        return list(session.scalars(select(ContributorRow.name)))

    with registry.catalog.reading() as session:
        assert session.scalars(select(ContributorRow.name)).all() == []
        add_name(registry, "ada")
        assert names(registry) == ["ada"]
        assert cached(session, "names", read) == []
    assert names(registry) == ["ada"]


def test_a_value_read_before_a_commit_is_not_cached_after_it(registry: LocalRegistry) -> None:
    with registry.catalog.reading() as session:

        def read_late() -> list[str]:
            contributors = list(session.scalars(select(ContributorRow.name)))
            add_name(registry, "ada")
            return contributors

        assert cached(session, "names", read_late) == []
    assert names(registry) == ["ada"]


# Searches from the cache.


@pytest.fixture
def few(registry: LocalRegistry) -> LocalRegistry:
    write_models(
        registry, [RandomModel((RandomPlacement(theta=40.0), RandomPlacement(theta=60.0, organ=2, slot="ffn_down")))]
    )
    return registry


def test_a_page_with_counts_equals_a_search_and_a_count(few: LocalRegistry) -> None:
    page, counts = few.search_page("theta>=50", limit=10)
    assert (page, counts) == (few.search("theta>=50", limit=10), few.count("theta>=50"))
    assert few.search_page(parse_query("theta>=50"), limit=10, counts=False) == (page, None)


@pytest.mark.parametrize("asked", ["", "type:organ", "slot:ffn_up theta>=40", "arch:nothing", "-slot:ffn_up", "zzz"])
def test_facets_beyond_the_cache_are_read_from_the_database_with_the_same_result(
    asked: str, few: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = few.search_page(asked)
    few.catalog.cache.clear()
    monkeypatch.setattr(facets, "FACETS_MAX", 0)
    assert few.search_page(asked) == held


def test_the_next_page_reuses_the_counts(few: LocalRegistry) -> None:
    first, counts = few.search_page("spectral>=0.1", limit=1)
    with few.catalog.reading() as session:
        session.execute(text("SELECT 1"))
    held = few.catalog.cache
    before = len(held)
    _, again = few.search_page("spectral>=0.1", limit=1, after=first.next)
    assert again is counts
    assert len(held) == before
