"""Registries that the tests of the API ask."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.settings import PromptLimits, WebSettings
from tests.registry_templates import DATABASE, RegistryTemplates, add_zoo_models
from tests.web.api.admin_registry import administrator, put_waiting
from tests.web.api.zoo import fill_zoo

WRITING = WebSettings(personal=True, prompts=PromptLimits())


@pytest.fixture(scope="session")
def zoo_home(tmp_path_factory: pytest.TempPathFactory, templates: RegistryTemplates) -> Path:
    """The home of a registry with the shipped models, for tests that only read."""

    def filled_zoo(registry: LocalRegistry, _folder: Path) -> None:
        templates.fill(registry, add_zoo_models)
        fill_zoo(registry)

    return templates.copy(filled_zoo, tmp_path_factory.mktemp("zoo") / "home")


@pytest.fixture(scope="session")
def zoo_app(zoo_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flask]:
    """The application over a copy of that registry, which stays open."""
    with LocalRegistry.open(shutil.copytree(zoo_home, tmp_path_factory.mktemp("read") / "home")) as registry:
        yield create_app(registry, WebSettings(prompts=PromptLimits()))


@pytest.fixture
def zoo(zoo_app: Flask) -> Iterator[FlaskClient]:
    """A client of the shipped models' catalog."""
    with zoo_app.test_client() as client:
        yield client


@pytest.fixture
def writing_zoo(zoo_home: Path) -> Iterator[FlaskClient]:
    """A client of the same catalog that may ask for jobs, and cancel them; nothing works at them."""
    with LocalRegistry.open(zoo_home) as registry:
        yield create_app(registry, WRITING).test_client()


@pytest.fixture
def administered_zoo(zoo_home: Path, tmp_path: Path) -> Iterator[FlaskClient]:
    """An administrator's client of a copy of the catalog, without the blobs, in which some models wait."""
    shutil.copy(zoo_home / DATABASE, tmp_path)
    with LocalRegistry.open(tmp_path) as registry:
        put_waiting(registry)
        yield administrator(registry)


@pytest.fixture
def document(zoo: FlaskClient) -> dict[str, Any]:
    """The OpenAPI document as it is served."""
    found: dict[str, Any] = zoo.get("/api/v1/openapi.json").get_json()
    return found
