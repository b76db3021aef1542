"""Pages, API and hub routes of a split model of which some shards are missing: it is named, and offered nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask.testing import FlaskClient

from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.settings import WebSettings
from tests.registry_templates import RegistryTemplates
from tests.small_models import ingest_file, small_shards

SENTENCE = "local/m@1 is incomplete: 1 of 4 shards; missing 1, 3, 4"


def with_one_shard(registry: LocalRegistry, folder: Path) -> None:
    name, data = list(small_shards().items())[1]
    (folder / name).write_bytes(data)
    ingest_file(registry, folder / name)


@pytest.fixture
def client(registry: LocalRegistry, templates: RegistryTemplates) -> FlaskClient:
    templates.fill(registry, with_one_shard)
    return create_app(registry, WebSettings(personal=True)).test_client()


def test_the_api_answers_with_the_numbers_of_the_missing_shards(client: FlaskClient) -> None:
    problem = client.get("/api/v1/models/local/m").get_json()
    assert (problem["code"], problem["detail"]) == ("incomplete-model", SENTENCE)
    assert (problem["shards"], problem["missing"]) == (4, [1, 3, 4])
    assert client.get("/models/local/m.json", follow_redirects=True).status_code == 404
    assert client.get("/api/v1/models").get_json() == {"items": [], "next": None, "notes": [SENTENCE]}


@pytest.mark.parametrize(
    "address",
    [
        "/models/local/m.gguf",
        "/models/local/m@1.gguf",
        "/models/local/m.csv",
        "/api/models/local/m",
        "/local/m/resolve/main/m-00002-of-00004.gguf",
        "/api/v1/models/local/m/organs",
    ],
)
def test_nothing_of_an_incomplete_model_is_downloaded(client: FlaskClient, address: str) -> None:
    assert client.get(address).status_code == 404
    assert client.get("/api/v1/organs").get_json()["items"] == []
