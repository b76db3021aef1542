"""Pages of single experts: search with counts, the page of an expert, and two models that differ in experts."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote_plus

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


def test_a_search_for_experts_counts_experts(client: FlaskClient) -> None:
    page = page_at(client, "/organs?q=expert:5+slot:ffn_up_exps")
    assert "4 results" in page.text
    assert "ffn_up_exps.weight[5]" in page.words
    assert "not counted" not in page.text


def test_the_page_of_an_expert_names_it_and_leads_to_similar_experts_and_to_a_graft(client: FlaskClient) -> None:
    organ = found_at(client, "/api/v1/organs?q=expert:5+model:local/Edited&limit=1")["items"][0]
    page = page_at(client, f"/organs/{organ['digest']}")
    assert f"{organ['name']}[5]" in page.words
    links = [unquote_plus(link) for link in page.links()]
    assert any("from:local/Edited@1 slot:ffn_" in link and "experts:5" in link for link in links)
    assert f"/organs?q=like:{organ['digest'][:16]} expert>=0" in links
    stack = found_at(client, "/api/v1/organs?q=slot:ffn_up_exps&limit=1")["items"][0]
    assert found_at(client, f"/api/v1/organs/{stack['digest']}")["experts"] == 8


def test_the_comparison_lists_the_experts_that_differ(client: FlaskClient) -> None:
    page = page_at(client, "/compare?first=local/Mixture&second=local/Edited")
    assert "2 of 8 experts differ in each of 4 stacks: 2 and 5." in page.text
    answer = found_at(client, "/api/v1/compare?first=local/Mixture&second=local/Edited")
    assert [[expert["expert"] for expert in stack["changed"]] for stack in answer["stacks"]] == [[2, 5]] * 4


def test_an_expert_is_downloaded_as_its_own_bytes(client: FlaskClient) -> None:
    organ = found_at(client, "/api/v1/organs?q=expert:5&limit=1")["items"][0]
    assert len(client.get(f"/organs/{organ['digest']}.raw").data) == organ["size_bytes"] == 64 * 48 * 2
    assert client.get(f"/organs/{organ['digest']}.npy").data.startswith(b"\x93NUMPY")


def test_the_page_of_a_model_leads_to_its_experts(client: FlaskClient) -> None:
    page = page_at(client, "/models/local/Mixture")
    assert "32 experts, each stored and measured by itself" in page.text
    assert "/organs?q=model:local/Mixture@1 expert>=0" in [unquote_plus(link) for link in page.links()]
    assert found_at(client, "/api/v1/models/local/Mixture")["experts"] == 32


def test_an_expert_is_grafted_by_the_form(client: FlaskClient) -> None:
    form = {"base": "local/Mixture", "add": "graft", "from": "local/Edited", "type": "organ", "experts": "2,5"}
    page = page_at(client, "/compose", **form)
    assert "8 experts in 4 stacks of local/Mixture@1 will be replaced" in page.text
    assert "grafted (experts 2 and 5)" in page.text
    assert 'name="experts"' in client.get("/compose?base=local/Mixture").text
