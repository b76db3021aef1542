"""The first page, the list of models and a model's page."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from flask.testing import FlaskClient

from organs.ingest.service import ingest_model
from organs.ingest.tools import find_tool_models, sources_of
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from tests.ingest.tool_layouts import machine, ollama_layer, ollama_manifest
from tests.related_models import ingest_bytes
from tests.small_models import ingest_file, small_model
from tests.web.conftest import LOOP_BOMB
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


def test_a_slash_at_the_end_of_an_address_is_ignored(family_client: FlaskClient) -> None:
    answer = family_client.get("/models/local/tuned/?by=theta")
    assert (answer.status_code, answer.headers["Location"]) == (302, "/models/local/tuned?by=theta")
    for path in ("/nothing/at/all/", "//evil.example/", "/models/local/tuned/x/", "/api/v1/models/"):
        assert "Location" not in family_client.get(path).headers
