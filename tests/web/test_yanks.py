"""Precedence of yanks: an administrator overrides an owner, and the local user can restore local yanks."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask.testing import FlaskClient

from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.tables import OtherName
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
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


def test_another_name_in_the_namespace_of_a_contributor_gives_no_rights_over_the_model(held: LocalRegistry) -> None:
    with held.catalog.writing() as session:
        model = model_by_name(session, parse_model_name(MODEL))
        session.add(OtherName(namespace="bob", name="alias", version=1, model_id=model.id, stem="alias"))
    client = create_app(held).test_client()
    bob, root = (authorization(new_token(held, name, scope)) for name, scope in (("bob", "upload"), ("root", "admin")))
    alias = f"{API}/bob/alias"
    assert client.get(alias).get_json()["name"] == "ada/little@1"
    for change in (
        client.patch(alias, json={"version": 1, "title": "Mine"}, headers=bob),
        client.post(f"{alias}/yank", json={"version": 1, "reason": "Mine."}, headers=bob),
        client.post(f"{alias}/restore", json={"version": 1}, headers=bob),
    ):
        assert change.status_code == 403
    answer = client.post(
        "/api/v1/admin/models/bob/alias/remove", json={"version": 1, "reason": "The wrong one."}, headers=root
    )
    assert answer.status_code == 404
    assert "bob/alias@1 is another name of ada/little@1; use that name" in answer.get_json()["detail"]
    values = client.get(f"{API}/{MODEL}").get_json()
    assert (values["state"], values["title"]) == ("visible", "Little")
