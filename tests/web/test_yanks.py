"""Precedence of yanks: an administrator overrides an owner, and the local user can restore local yanks."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask.testing import FlaskClient

from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.settings import WebSettings
from tests.registry_templates import RegistryTemplates
from tests.small_models import ingest_file, small_model
from tests.web.accounts import authorization, new_token

API = "/api/v1/models"
MODEL = "ada/little"


def one_of_adas(registry: LocalRegistry, folder: Path) -> None:
    """A single model, in ada's namespace."""
    (folder / "little.gguf").write_bytes(small_model())
    ingest_file(registry, folder / "little.gguf", MODEL)


@pytest.fixture
def held(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    templates.fill(registry, one_of_adas)
    return registry


def yank(client: FlaskClient, headers: dict[str, str], reason: str = "Odd.") -> int:
    answer = client.post(f"{API}/{MODEL}/yank", json={"version": 1, "reason": reason}, headers=headers)
    return answer.status_code


def test_an_owner_cannot_take_over_the_yank_of_an_administrator(held: LocalRegistry) -> None:
    client = create_app(held).test_client()
    root, ada = (authorization(new_token(held, name, scope)) for name, scope in (("root", "admin"), ("ada", "upload")))
    assert yank(client, root, "It is not theirs.") == 200
    assert yank(client, ada, "Mine.") == 409
    answer = client.post(f"{API}/{MODEL}/restore", json={"version": 1}, headers=ada)
    assert answer.status_code == 409
    assert client.get(f"{API}/{MODEL}").get_json()["state_reason"] == "It is not theirs."


def test_the_local_user_restores_a_model_that_was_yanked_locally(held: LocalRegistry) -> None:
    client = create_app(held, WebSettings(personal=True)).test_client()
    assert yank(client, {}) == 200
    assert client.post(f"{API}/{MODEL}/restore", json={"version": 1}).get_json()["state"] == "visible"
