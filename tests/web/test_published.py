"""After publishing, by page and by API: edited, yanked, restored; versions; who grafted; and who may."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from organs.registry.catalog.register.model_changes import hide_model
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from tests.catalog.counts import model_named
from tests.registry_templates import RegistryTemplates
from tests.related_models import model_file, related_tensors
from tests.small_models import ingest_file
from tests.web.accounts import authorization, log_in, new_token, send_form
from tests.web.page_parser import parse_page

API = "/api/v1/models"
MODEL = "ada/weaver"
HOSTILE = "# Big\n\n<script>alert(1)</script> [a](javascript:x) [b](https://example.org/)"


def weavers(registry: LocalRegistry, folder: Path) -> None:
    """Two versions of ada's weaver, and a base with a graft of the first."""
    for name, full, alike in (("first", MODEL, 1.0), ("second", MODEL, 0.9), ("base", "local/base", 0.8)):
        path = folder / f"{name}.gguf"
        path.write_bytes(model_file("Weaver", related_tensors(correlation=alike)))
        ingest_file(registry, path, full)
    recipe = registry.compose("local/base").graft(f"{MODEL}@1", type="organ", blocks=1)
    recipe.accept("unrelated-lineage").named("local/mixed").plan().register()


@pytest.fixture
def app(registry: LocalRegistry, templates: RegistryTemplates) -> Flask:
    templates.fill(registry, weavers)
    return create_app(registry)


@pytest.fixture
def ada(app: Flask, registry: LocalRegistry) -> Iterator[FlaskClient]:
    """A client of the API with ada's token."""
    token = new_token(registry, "ada", "upload")
    with app.test_client() as client:
        client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {token}"
        yield client


@pytest.fixture
def anybody(app: Flask) -> FlaskClient:
    return app.test_client()


def found(client: FlaskClient, query: str) -> list[str]:
    return [one["name"] for one in client.get(API, query_string={"q": query}).get_json()["items"]]


def test_an_owner_edits_and_searches_follow(ada: FlaskClient, anybody: FlaskClient) -> None:
    edits = {"title": "Spinner", "tags": ["wool"], "license": "mit", "base": "local/base"}
    answer = ada.patch(f"{API}/{MODEL}", json=edits)
    assert (answer.status_code, answer.get_json()["base"]) == (200, "local/base")
    assert found(anybody, "spinner wool license:mit") == ["ada/weaver@2"]
    model = anybody.get(f"{API}/{MODEL}").get_json()
    assert (model["title"], model["tags"], model["state"]) == ("Spinner", ["wool"], "visible")
    assert [one["model"] for one in model["lineage"] if one["evidence"] == "declared"] == ["local/base@1"]
    assert ada.patch(f"{API}/{MODEL}", json={"version": 1, "title": None}).get_json()["name"] == "ada/weaver@1"


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"title": "a\nb", "license": "nothing known", "tags": "x"}, ["title", "license", "tags"]),
        ({"version": 0}, ["version"]),
        ({"version": True}, ["version"]),
        ({"name": "other"}, ["name"]),
    ],
)
def test_all_errors_are_reported_by_field(ada: FlaskClient, body: dict[str, Any], fields: list[str]) -> None:
    answer = ada.patch(f"{API}/{MODEL}", json=body)
    assert (answer.status_code, [one["field"] for one in answer.get_json()["errors"]]) == (400, fields)


def test_a_yanked_version_is_reached_by_its_name_only(ada: FlaskClient, anybody: FlaskClient) -> None:
    answer = ada.post(f"{API}/{MODEL}/yank", json={"version": 1, "reason": "Trained on <the> test set."})
    assert (answer.status_code, answer.get_json()["state"]) == (200, "yanked")
    assert found(anybody, "model:ada/weaver") == ["ada/weaver@2"]
    page = anybody.get("/models/ada/weaver@1")
    assert page.status_code == 200
    assert "Trained on <the> test set." in parse_page(page.text).text
    assert "Yanked" not in anybody.get("/models/ada/weaver").text.partition("Versions")[0]
    assert anybody.get("/api/v1/organs?q=model:ada/weaver@1").get_json()["items"] == []
    answer = ada.post(f"{API}/{MODEL}/restore", json={})
    assert (answer.get_json()["name"], answer.get_json()["state"]) == ("ada/weaver@1", "visible")
    assert found(anybody, "model:ada/weaver sort:-created") == ["ada/weaver@2", "ada/weaver@1"]


@pytest.mark.parametrize("body", [{}, {"reason": 7}, {"reason": " "}, {"reason": "x" * 1001}, {"reason": "a\0b"}])
def test_a_yank_without_a_good_reason_is_refused(ada: FlaskClient, body: dict[str, Any]) -> None:
    assert ada.post(f"{API}/{MODEL}/yank", json=body).status_code == 400


def test_only_an_administrator_restores_a_model_yanked_by_an_administrator(app: Flask, registry: LocalRegistry) -> None:
    client = app.test_client()
    root = {"headers": authorization(new_token(registry, "root", "admin"))}
    ada = {"headers": authorization(new_token(registry, "ada", "upload"))}
    assert client.post(f"{API}/{MODEL}/yank", json={"version": 1, "reason": "not theirs"}, **root).status_code == 200
    assert client.post(f"{API}/{MODEL}/restore", json={"version": 1}, **ada).status_code == 409
    assert client.post(f"{API}/{MODEL}/restore", json={"version": 1}, **root).get_json()["state"] == "visible"


def test_each_account_has_its_permissions(app: Flask, registry: LocalRegistry, anybody: FlaskClient) -> None:
    tokens = {
        "anybody": {},
        "reader": authorization(new_token(registry, "ada", "read")),
        "other": authorization(new_token(registry, "bob", "upload")),
        "admin": authorization(new_token(registry, "root", "admin")),
        "owner": authorization(new_token(registry, "ada", "upload")),
    }
    deeds = (("patch", "", {"title": "x"}), ("post", "/yank", {"reason": "why"}), ("post", "/restore", {}))
    expected = {
        "anybody": [401, 401, 401],
        "reader": [403, 403, 403],
        "other": [403, 403, 403],
        "admin": [403, 200, 200],
        "owner": [200, 200, 200],
    }
    for who, statuses in expected.items():
        got = [
            anybody.open(f"{API}/{MODEL}{at}", method=how, json=body, headers=tokens[who]).status_code
            for how, at, body in deeds
        ]
        assert got == statuses, who


def test_a_quarantined_model_is_visible_only_to_its_owner(
    ada: FlaskClient, anybody: FlaskClient, registry: LocalRegistry
) -> None:
    with registry.catalog.writing() as session:
        for _ in range(2):
            hide_model(session, model_named(session, MODEL), "quarantined", "to be looked at", "root")
    bob = authorization(new_token(registry, "bob", "upload"))
    absent = anybody.get(f"{API}/ada/nothing").get_json()["detail"]
    for at in ("", "/versions", "/descendants"):
        answer = anybody.get(f"{API}/{MODEL}{at}", headers=bob)
        assert (answer.status_code, answer.get_json()["detail"]) == (404, absent.replace("nothing", "weaver"))
    assert anybody.patch(f"{API}/{MODEL}", json={"title": "x"}, headers=bob).status_code == 404
    assert anybody.post(f"{API}/{MODEL}/yank", json={"reason": "x"}, headers=bob).status_code == 404
    assert [one["state"] for one in ada.get(f"{API}/{MODEL}/versions").get_json()["items"]] == ["quarantined"] * 2
    assert ada.patch(f"{API}/{MODEL}", json={"title": "x"}).status_code == 200
    assert ada.post(f"{API}/{MODEL}/restore", json={}).status_code == 409
    for address in (
        "/api/v1/families?model=local/base",
        f"{API}/local/base/lineage",
        "/api/v1/models",
        "/api/v1/organs",
    ):
        assert "weaver" not in anybody.get(address).text, address


def test_versions_list_their_changes(anybody: FlaskClient) -> None:
    second, first = anybody.get(f"{API}/{MODEL}/versions").get_json()["items"]
    changes = second["changes"]
    assert (second["version"], changes["since"], first["changes"]) == (2, "ada/weaver@1", None)
    assert (changes["added"], changes["gone"], changes["size_bytes"]) == (0, 0, 0)
    assert 0 < changes["changed"] <= second["tensors"]
    assert f"{changes['changed']} organs differ" in anybody.get(f"/models/{MODEL}").text


def test_descendants_state_their_role_and_the_grafted_organs(anybody: FlaskClient) -> None:
    (one,) = anybody.get(f"{API}/{MODEL}@1/descendants").get_json()["items"]
    assert (one["name"], one["contributor"], one["role"]) == ("local/mixed@1", "local", "donor")
    assert (one["acts"], one["organs"]) == (["grafted"], 2)
    (base,) = anybody.get(f"{API}/local/base/descendants").get_json()["items"]
    assert (base["role"], base["organs"]) == ("base", 8)
    assert found(anybody, "grafts>=1 sort:-grafts") == ["ada/weaver@1"]
    page = parse_page(anybody.get(f"/models/{MODEL}@1").text)
    assert "Used in" in page.text
    assert "/models/local/mixed@1" in page.links()


def test_the_form_saves_and_the_description_is_shown_as_safe_markdown(app: Flask, registry: LocalRegistry) -> None:
    browser = log_in(app, new_token(registry, "ada", "upload"))
    edit = f"/models/{MODEL}/edit"
    assert f"{edit[:-5]}@2/edit" in parse_page(browser.get(f"/models/{MODEL}").text).links()
    fields = {"title": "Spinner", "description": HOSTILE, "license": "MIT", "tags": "wool, yarn", "base": ""}
    answer = send_form(browser, edit, edit, **fields)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/models/ada/weaver@2")
    html = browser.get(f"/models/{MODEL}").text
    assert "<h3>Big</h3>" in html
    assert '<a href="https://example.org/" rel="nofollow' in html
    assert "<script>alert" not in html
    assert browser.get(f"{edit}.json").get_json()["tags"] == ["wool", "yarn"]


def test_a_refused_form_keeps_the_typed_text(app: Flask, registry: LocalRegistry) -> None:
    browser = log_in(app, new_token(registry, "ada", "upload"))
    edit = f"/models/{MODEL}/edit"
    answer = send_form(browser, edit, edit, title="T" * 201, license="what <you> like", tags="a,b", base=MODEL)
    assert answer.status_code == 400
    page = parse_page(answer.text)
    values = {one.attributes.get("name"): one.attributes.get("value") for one in page.named("input")}
    assert (values["title"], values["license"], values["tags"]) == ("T" * 201, "what <you> like", "a,b")
    assert {"title", "license"} == {
        (one.attributes.get("name")) for one in page.named("input") if one.attributes.get("aria-invalid")
    }
    assert 'class="fault small" id="wrong-license"' in answer.text
    assert "Nothing was saved: 2 fields below are not valid." in page.text
    answer = send_form(browser, edit, edit, title="kept", base=f"{MODEL}@2")
    assert "cannot be its own base" in answer.text
    assert 'value="kept"' in answer.text


def test_only_owners_and_administrators_get_the_forms_that_yank_and_restore(
    app: Flask, registry: LocalRegistry
) -> None:
    for name, scope in (("ada", "upload"), ("root", "admin")):
        browser = log_in(app, new_token(registry, name, scope))
        page = f"/models/{MODEL}@2"
        assert send_form(browser, f"{page}/yank", page, reason="Wrong.").headers["Location"] == page
        assert "Wrong." in browser.get(page).text
        assert send_form(browser, f"{page}/restore", page).headers["Location"] == page
        assert "Wrong." not in browser.get(page).text
        assert browser.post(f"{page}/yank", data={"reason": "forged"}).status_code == 403
    bob = log_in(app, new_token(registry, "bob", "upload"))
    assert "/yank" not in bob.get(f"/models/{MODEL}").text
    for at in ("yank", "restore", "edit"):
        assert send_form(bob, f"/models/{MODEL}/{at}", reason="x").status_code == 403
    assert bob.get(f"/models/{MODEL}/edit").status_code == 403
    answer = app.test_client().get(f"/models/{MODEL}/edit")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/login?next=/models/ada/weaver/edit")


def test_an_edited_license_that_differs_from_the_header_is_noted_on_the_page_and_in_the_api(
    ada: FlaskClient, anybody: FlaskClient
) -> None:
    for license, is_said in (("mit", True), ("apache-2.0", False), ("", False)):
        edited = ada.patch(f"{API}/{MODEL}", json={"license": license})
        assert edited.status_code == 200
        findings = anybody.get(f"{API}/{MODEL}").get_json()["findings"]
        assert ("license-differs" in [one["code"] for one in findings]) is is_said, license
        page = anybody.get(f"/models/{MODEL}").text
        assert ("The stated license is &#39;mit&#39;, but the header" in page) is is_said, license
        card = anybody.get(f"/{MODEL}/resolve/main/README.md").text
        assert "\n# weaver\n\nWeaver\n" in card, "the name that was given, then the title in the header"
        assert ("| license in the file | apache-2.0 |" in card) is is_said, license
        assert ("- info, license-differs: The stated license is 'mit', but the header" in card) is is_said, license
        plan = anybody.post("/api/v1/plans", json={"base": MODEL, "purify": {"method": "fractal", "blocks": 0}})
        codes = [one["code"] for one in plan.get_json()["findings"]]
        assert ("license-differs" in codes) is is_said, license


def test_an_edited_base_is_recorded_with_the_measured_relation(
    ada: FlaskClient, registry: LocalRegistry, tmp_path: Path
) -> None:
    path = tmp_path / "coarse.gguf"
    path.write_bytes(model_file("Coarse", related_tensors(correlation=0.8, dtype="Q8_0")))
    ingest_file(registry, path, "ada/coarse")
    assert ada.patch(f"{API}/ada/coarse", json={"base": "local/base"}).status_code == 200
    edges = ada.get(f"{API}/ada/coarse").get_json()["lineage"]
    (edge,) = (one for one in edges if one["direction"] == "parent")
    assert (edge["model"], edge["relation"], edge["evidence"]) == ("local/base@1", "quantized", "declared")
