"""The first page, the list of models and a model's page."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from flask.testing import FlaskClient

from organs.ingest.service import ingest_model
from organs.ingest.tools import find_tool_models, sources_of
from organs.registry.catalog.register.accounts import SAVED_QUERIES_MAX
from organs.registry.errors import NotAllowed
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from tests.ingest.tool_layouts import machine, ollama_layer, ollama_manifest
from tests.registry_templates import RegistryTemplates
from tests.related_models import ingest_bytes
from tests.small_models import ingest_file, small_model
from tests.web.accounts import log_in, new_token, send_form
from tests.web.conftest import LOOP_BOMB, add_family
from tests.web.page_parser import found_at, page_at


def test_the_page_of_a_model_without_its_quantisation_leads_to_its_quantisations(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    for seed, name in enumerate(("tiny-F16", "tiny-Q8_0", "other-Q8_0")):
        ingest_bytes(registry, tmp_path, name, small_model(seed=seed))
    with create_app(registry).test_client() as client:
        answer = client.get("/models/local/other")
        assert (answer.status_code, answer.headers["Location"]) == (302, "/models/local/other-Q8_0@1")
        assert found_at(client, "/api/v1/models/local/other")["name"] == "local/other-Q8_0@1"
        answer = client.get("/models/local/tiny")
        query = parse_qs(urlsplit(answer.headers["Location"]).query)["q"]
        assert (answer.status_code, query) == (302, ["model:local/tiny-F16,local/tiny-Q8_0"])
        links = page_at(client, "/models/local/tiny").links()
        assert {"/models/local/tiny-F16@1", "/models/local/tiny-Q8_0@1"} <= links
        problem = client.get("/api/v1/models/local/tiny")
        assert (problem.status_code, problem.get_json()["code"]) == (404, "several-models")
        assert problem.get_json()["names"] == ["local/tiny-F16", "local/tiny-Q8_0"]


def test_a_renamed_model_is_found_at_its_old_address_and_its_texts_are_inert(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    models = tmp_path / ".ollama" / "models"
    texts = {"model": small_model(), "template": LOOP_BOMB.encode(), "license": b"<script>x</script>"}
    layers = [ollama_layer(models, kind, data) for kind, data in texts.items()]
    old = ingest_file(registry, models / "blobs" / str(layers[0]["digest"]).replace(":", "-")).model
    ollama_manifest(models, "registry.ollama.ai/library/tiny/latest", *layers)
    (source,) = sources_of(find_tool_models(machine(tmp_path), ["ollama"]))
    assert ingest_model(registry, source).model == "library/tiny@1"
    plain = old.partition("@")[0]
    with create_app(registry).test_client() as client:
        for address in (f"/models/{old}", f"/models/{plain}"):
            answer = client.get(f"{address}?by=theta")
            assert (answer.status_code, answer.headers["Location"]) == (302, "/models/library/tiny@1?by=theta")
        page = client.get("/models/library/tiny").text
        assert "<script>x" not in page
        assert "&lt;script&gt;x&lt;/script&gt;" in page
        assert found_at(client, f"/api/v1/models/{old}")["name"] == "library/tiny@1"
        assert client.get(f"/{plain}/resolve/main/x").status_code == 404
        assert client.get(f"/api/models/{plain}").status_code == 200


def test_a_name_without_its_namespace_leads_to_the_page_of_the_model(family_client: FlaskClient) -> None:
    for name in ("tuned", "tuned@1"):
        answer = family_client.get(f"/models/{name}?by=theta")
        assert (answer.status_code, answer.headers["Location"]) == (302, f"/models/local/{name}?by=theta")
    assert family_client.get("/models/nothing:8b").status_code == 404


def test_a_chat_template_is_shown_and_never_rendered(hostile_client: FlaskClient) -> None:
    page = page_at(hostile_client, "/models/local/hostile")
    assert LOOP_BOMB in page.text
    assert "{{ 7*7 }}" in page.text


def test_the_search_page_has_the_best_models_and_tensors_with_an_exact_name_first(
    registry: LocalRegistry, templates: RegistryTemplates
) -> None:
    templates.fill(registry, add_family)
    with create_app(registry).test_client() as client:
        found = client.get("/search.json?q=tuned").get_json()
        assert found["models"][0]["name"] == "local/tuned@1"
        assert {organ["model"] for organ in found["organs"]} == {"local/tuned@1"}
        signals = [organ["spectral_signal"] or 0.0 for organ in found["organs"]]
        assert signals == sorted(signals, reverse=True)
        assert {"/models?q=tuned", "/organs?q=tuned"} <= page_at(client, "/search?q=tuned").links()
        page = client.get("/search?q=block:1+slot:attn_q")
        assert page.status_code == 200, "a query for one of the lists is enough"
        assert "block is a field of tensors" in page.text
        assert client.get("/search?q=theta>=much").status_code == 400
        assert client.get("/search?q=tuned&save=models").text.count("<form") == 2, "nobody can save"


def test_a_saved_query_belongs_to_its_account_and_is_offered_beside_the_lists(
    registry: LocalRegistry, templates: RegistryTemplates
) -> None:
    templates.fill(registry, add_family)
    app = create_app(registry)
    ada, bob = (log_in(app, new_token(registry, name)) for name in ("ada", "bob"))
    fields = {"kind": "models", "name": "small", "q": "params<1G"}
    answer = send_form(ada, "/search/saved", **fields)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/search#saved")
    for page, is_offered in (("/models", True), ("/search", True), ("/organs", False)):
        assert ("@small" in ada.get(page).text) is is_offered
        assert "@small" not in bob.get(page).text + app.test_client().get(page).text
    for wrong, sentence in (({"q": "params<much"}, "is not a number"), ({"name": "a b"}, "is not a name of a query")):
        answer = send_form(ada, "/search/saved", **{**fields, **wrong})
        assert answer.status_code == 400
        assert sentence in answer.text
        assert 'name="name"' in answer.text, "the form is shown again"
    assert send_form(bob, "/search/saved/models/small/delete").status_code == 404
    assert send_form(ada, "/search/saved/nothing/small/delete").status_code == 404
    assert send_form(ada, "/search/saved/models/small/delete").status_code == 303
    assert "@small" not in ada.get("/search").text
    for number in range(SAVED_QUERIES_MAX):
        registry.save_query("organs", f"q{number}", "")
    with pytest.raises(NotAllowed, match="as many as an account can have"):
        registry.save_query("models", "more", "")


def test_a_slash_at_the_end_of_an_address_is_ignored(family_client: FlaskClient) -> None:
    answer = family_client.get("/models/local/tuned/?by=theta")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/models/local/tuned?by=theta")
    for path in ("/nothing/at/all/", "//evil.example/", "/models/local/tuned/x/", "/api/v1/models/"):
        assert "Location" not in family_client.get(path).headers
