"""Registries that the tests of the API ask."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from registry.registry import Registry
from tests.web.api.zoo import compose_chimeras, ingest_zoo, put_jobs
from web.app import create_app
from web.settings import WebSettings

WRITING = WebSettings(personal=True)


@pytest.fixture(scope="session")
def zoo_home(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> Path:
    """The home of a registry with the shipped models, for tests that only read."""
    home = tmp_path_factory.mktemp("zoo") / "home"
    home.mkdir()
    shutil.copy(migrated_database, home)
    with Registry.open(home) as registry:
        ingest_zoo(registry)
        compose_chimeras(registry)
        put_jobs(registry)
    return home


@pytest.fixture
def zoo(zoo_home: Path) -> Iterator[FlaskClient]:
    """A client of the shipped models' catalog."""
    with Registry.open(zoo_home) as registry, create_app(registry).test_client() as client:
        yield client


@pytest.fixture
def writing_zoo(zoo_home: Path) -> Iterator[FlaskClient]:
    """A client of the same catalog that may ask for jobs, and cancel them; nothing works at them."""
    with Registry.open(zoo_home) as registry:
        yield create_app(registry, WRITING).test_client()


@pytest.fixture
def document(zoo: FlaskClient) -> dict[str, Any]:
    """The OpenAPI document as it is served."""
    found: dict[str, Any] = zoo.get("/api/v1/openapi.json").get_json()
    return found
