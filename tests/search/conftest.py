"""A catalog of random models for the tests of searches that change nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from organs.registry.local import LocalRegistry
from tests.search.catalogs import Many, write_random_catalog


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Many]:
    """Return a registry with some hundred placements of random models, and the written rows."""
    with LocalRegistry.open(tmp_path_factory.mktemp("many")) as registry:
        yield registry, write_random_catalog(registry, 60, seed=7)
