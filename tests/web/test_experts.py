"""Pages of single experts: search with counts, the page of an expert, and two models that differ in experts."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask.testing import FlaskClient

from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.settings import WebSettings
from tests.registry_templates import RegistryTemplates
from tests.small_models import expert_model, ingest_file
from tests.web.page_parser import found_at, page_at


def add_mixtures(registry: LocalRegistry, folder: Path) -> None:
    for name, changed in (("Mixture", {}), ("Edited", {2: 50, 5: 51})):
        (folder / f"{name}.gguf").write_bytes(expert_model(name, changed=changed))
        ingest_file(registry, folder / f"{name}.gguf")


@pytest.fixture
def client(registry: LocalRegistry, templates: RegistryTemplates) -> FlaskClient:
    templates.fill(registry, add_mixtures)
    return create_app(registry, WebSettings(personal=True)).test_client()


def test_an_expert_is_downloaded_as_its_own_bytes(client: FlaskClient) -> None:
    organ = found_at(client, "/api/v1/organs?q=expert:5&limit=1")["items"][0]
    assert len(client.get(f"/organs/{organ['digest']}.raw").data) == organ["size_bytes"] == 64 * 48 * 2
    assert client.get(f"/organs/{organ['digest']}.npy").data.startswith(b"\x93NUMPY")


def test_an_expert_is_grafted_by_the_form(client: FlaskClient) -> None:
    form = {"base": "local/Mixture", "add": "graft", "from": "local/Edited", "type": "organ", "experts": "2,5"}
    page = page_at(client, "/compose", **form)
    assert "8 experts in 4 stacks of local/Mixture@1 will be replaced" in page.text
    assert "grafted (experts 2 and 5)" in page.text
    assert 'name="experts"' in client.get("/compose?base=local/Mixture").text


def test_a_recipe_that_leaves_experts_out_is_shown(client: FlaskClient) -> None:
    page = page_at(client, "/compose", base="local/Mixture", expert="drop:0-1,6-7 blocks:0-1")
    assert "pruned to 4 of 8 experts" in page.text
    assert "4 of 8 experts stay in 2 blocks, in 6 tensors" in page.text
    address = "/api/v1/composition?base=local/Mixture&expert=drop:0-1,6-7"
    state = found_at(client, address)
    assert state["recipe"]["experts"] == {"drop": ["0-1", "6-7"]}
    assert {tuple(part["pruned"]) for part in state["plan"]["parts"]} == {(4, 8)}
    refused = client.post(
        "/api/v1/plans", json={"base": "local/Mixture", "experts": {"count": 4, "saliency": "/etc/passwd"}}
    )
    assert "Only organ compose and Python choose experts by a file" in refused.text
