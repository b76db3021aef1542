"""After publishing, by page and by API: edited, yanked, restored; versions; who grafted; and who may."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from organs.registry.catalog.queries.accounts import contributor_by_name
from organs.registry.catalog.records import Edits
from organs.registry.catalog.register.accounts import set_quota
from organs.registry.catalog.register.model_changes import hide_model
from organs.registry.catalog.tables import OtherName
from organs.registry.local import LocalRegistry
from organs.registry.names import ModelName
from organs.registry.upload_limits import CARD_IMAGE_MAX_BYTES
from organs.web.api import models as api
from organs.web.app import create_app
from organs.web.settings import WebSettings
from tests.card_images import CARD, NAME, POINTS, image_bytes, put_card
from tests.catalog.counts import model_named
from tests.registry_templates import RegistryTemplates
from tests.related_models import model_file, related_tensors
from tests.small_models import ingest_file, row_counts
from tests.web.accounts import authorization, log_in, new_token, send_form
from tests.web.page_parser import found_at, page_at, parse_page

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
    assert "Trained on <the> test set." in page_at(anybody, f"/models/{MODEL}@1").text
    answer = ada.post(f"{API}/{MODEL}/restore", json={})
    assert (answer.get_json()["name"], answer.get_json()["state"]) == ("ada/weaver@1", "visible")
    assert found(anybody, "model:ada/weaver sort:-created") == ["ada/weaver@2", "ada/weaver@1"]


def test_an_administrator_overrides_the_owner_who_cannot_take_over_or_undo_the_yank(
    app: Flask, registry: LocalRegistry
) -> None:
    client = app.test_client()
    root, ada = (
        authorization(new_token(registry, name, scope)) for name, scope in (("root", "admin"), ("ada", "upload"))
    )

    def change(verb: str, headers: dict[str, str], **body: str) -> int:
        return client.post(f"{API}/{MODEL}/{verb}", json={"version": 1, **body}, headers=headers).status_code

    assert change("yank", root, reason="It is not theirs.") == 200
    assert change("yank", ada, reason="Mine.") == 409
    assert change("restore", ada) == 409
    assert found_at(client, f"{API}/{MODEL}@1")["state_reason"] == "It is not theirs."
    assert change("restore", root) == 200
    assert found_at(client, f"{API}/{MODEL}@1")["state"] == "visible"


def test_the_local_user_restores_a_model_that_was_yanked_locally(app: Flask, registry: LocalRegistry) -> None:
    client = create_app(registry, WebSettings(personal=True)).test_client()
    assert client.post(f"{API}/{MODEL}/yank", json={"version": 1, "reason": "Odd."}).status_code == 200
    assert client.post(f"{API}/{MODEL}/restore", json={"version": 1}).get_json()["state"] == "visible"


def test_another_name_in_the_namespace_of_a_contributor_gives_no_rights_over_the_model(
    app: Flask, registry: LocalRegistry
) -> None:
    with registry.catalog.writing() as session:
        model = model_named(session, f"{MODEL}@1")
        session.add(OtherName(namespace="bob", name="alias", version=1, model_id=model.id, stem="alias"))
    client, alias = app.test_client(), f"{API}/bob/alias"
    bob, root = (
        authorization(new_token(registry, name, scope)) for name, scope in (("bob", "upload"), ("root", "admin"))
    )
    before = found_at(client, alias)
    assert before["name"] == "ada/weaver@1"
    for change in (
        client.patch(alias, json={"version": 1, "title": "Mine"}, headers=bob),
        client.post(f"{alias}/yank", json={"version": 1, "reason": "Mine."}, headers=bob),
        client.post(f"{alias}/restore", json={"version": 1}, headers=bob),
    ):
        assert change.status_code == 403
    wrong = {"version": 1, "reason": "The wrong one."}
    answer = client.post("/api/v1/admin/models/bob/alias/remove", json=wrong, headers=root)
    assert answer.status_code == 404
    assert "bob/alias@1 is another name of ada/weaver@1; use that name" in answer.get_json()["detail"]
    assert found_at(client, alias) == before


def test_descendants_state_their_role_and_the_grafted_organs(anybody: FlaskClient) -> None:
    (one,) = found_at(anybody, f"{API}/{MODEL}@1/descendants")["items"]
    assert (one["name"], one["contributor"], one["role"]) == ("local/mixed@1", "local", "donor")
    assert (one["acts"], one["organs"]) == (["grafted"], 2)
    (base,) = found_at(anybody, f"{API}/local/base/descendants")["items"]
    assert (base["role"], base["organs"]) == ("base", 8)


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


def test_images_are_sent_to_the_card_that_shows_them_and_leave_with_it(
    ada: FlaskClient, anybody: FlaskClient, registry: LocalRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(name: str, data: bytes = POINTS, **options: Any) -> tuple[int, Any]:
        options = {"content_type": "application/octet-stream", "query_string": {"image": name}, **options}
        answer = ada.put(f"{API}/{MODEL}/images", data=data, **options)
        return answer.status_code, answer.get_json()

    assert send(NAME)[0] == 400, "no card shows it"
    card = f"{CARD}\n![Not sent](b.png) ![elsewhere](https://example.org/c.png)"
    assert ada.patch(f"{API}/{MODEL}", json={"description": card}).status_code == 200
    status, image = send(NAME)
    assert (status, image["name"], image["format"], image["width"], image["height"]) == (200, NAME, "png", 3, 2)
    assert found_at(anybody, f"{API}/{MODEL}")["images"] == [image]
    status, refused = send("b.png", b"<svg/>")
    assert (status, refused["detail"]) == (400, "b.png is no PNG, JPEG, WebP or GIF image")
    assert send("b.png", bytes(CARD_IMAGE_MAX_BYTES + 1))[0] == 413
    assert send("b.png", content_type="image/png")[0] == 415
    address = f"/models/{MODEL}@2/images/{image['digest']}.png"
    page = page_at(anybody, f"/models/{MODEL}")
    (shown,) = [one.attributes for one in page.named("img") if one.attributes.get("loading")]
    assert shown == {
        "src": address,
        "alt": "A plot",
        "width": "3",
        "height": "2",
        "loading": "lazy",
        "class": "alone",
    }
    assert "Not sent (an image that is not here)" in page.text
    answer = anybody.get(address)
    assert answer.data.startswith(b"\x89PNG")
    assert (answer.headers["Content-Type"], answer.headers["X-Content-Type-Options"]) == ("image/png", "nosniff")
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
    assert "immutable" in answer.headers["Cache-Control"]
    assert anybody.get(address.replace(".png", ".jpeg")).status_code == 404
    with registry.catalog.writing() as session:
        model_named(session, f"{MODEL}@2").contributor_id = contributor_by_name(session, "ada").id
        set_quota(session, "ada", 1)
    before = row_counts(registry), len(list(registry.blobs.backend.walk()))
    assert send("b.png", image_bytes("GIF"))[0] == 413
    assert (row_counts(registry), len(list(registry.blobs.backend.walk()))) == before, "nothing is kept of it"
    assert ada.patch(f"{API}/{MODEL}", json={"description": f"![a](./{NAME})"}).status_code == 200
    assert found_at(anybody, f"{API}/{MODEL}")["images"] == [image]
    change_card = api.change_card

    def change_card_before_an_edit(name: ModelName, *changes: Any) -> Any:
        change_card(name, *changes)
        return change_card(name, Edits(description=f"`![a]({NAME})`"), {})

    monkeypatch.setattr(api, "change_card", change_card_before_an_edit)
    assert send(NAME) == (200, image), "it replaces as many bytes as it adds"
    assert anybody.get(address).status_code == 404


def test_a_hidden_image_is_shown_to_whoever_may_see_the_model(
    app: Flask, anybody: FlaskClient, registry: LocalRegistry
) -> None:
    ada = log_in(app, new_token(registry, "ada", "upload"))
    digest = put_card(registry, f"{MODEL}@2")
    address = f"/models/{MODEL}@2/images/{digest}.png"
    with registry.catalog.writing() as session:
        hide_model(session, model_named(session, f"{MODEL}@2"), "quarantined", "It waits.", "root")
    assert ada.get(address).headers["Cache-Control"] == "private, no-cache"
    missing = anybody.get(f"/models/{MODEL}@3/images/{digest}.png")
    assert anybody.get(address).text.replace("@2", "@3") == missing.text
    assert missing.status_code == 404


def test_the_form_sends_images_by_the_names_of_their_files(app: Flask, registry: LocalRegistry) -> None:
    browser = log_in(app, new_token(registry, "ada", "upload"))
    edit = f"/models/{MODEL}/edit"

    def send(*files: tuple[bytes, str]) -> str:
        images = [(BytesIO(data), name) for data, name in files]
        return send_form(browser, edit, edit, description=f"{CARD} ![b](b.gif)", images=images).text

    padding = bytes(300_000)
    assert "The description shows no image &#39;c.png&#39;" in send((POINTS, "c.png"))
    assert "B.gif is no PNG, JPEG, WebP or GIF image" in send((POINTS, "plot.png"), (b"rubbish", "b.gif"))
    assert "Nothing was saved" in send(*[(POINTS, "plot.png")] * 17)
    assert found_at(browser, f"{API}/{MODEL}")["images"] == []
    send((POINTS + padding, "plot.png"), (image_bytes("GIF"), "my/b.gif"))
    assert [one["name"] for one in found_at(browser, f"{API}/{MODEL}")["images"]] == ["b.gif", NAME]
    assert "Stored now: b.gif, images/plot.png" in page_at(browser, edit).text


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
    page = f"/models/{MODEL}@2"
    for name, scope in (("ada", "upload"), ("root", "admin")):
        browser = log_in(app, new_token(registry, name, scope))
        assert send_form(browser, f"{page}/yank", page, reason="Wrong.").headers["Location"] == page
        assert "Wrong." in browser.get(page).text
        assert send_form(browser, f"{page}/restore", page).headers["Location"] == page
        assert "Wrong." not in browser.get(page).text
    bob = log_in(app, new_token(registry, "bob", "upload"))
    assert "/yank" not in bob.get(page).text


@pytest.mark.parametrize(("license", "is_said"), [("mit", True), ("apache-2.0", False)])
def test_an_edited_license_that_differs_from_the_header_is_noted_wherever_the_model_is_shown(
    ada: FlaskClient, anybody: FlaskClient, license: str, is_said: bool
) -> None:
    assert ada.patch(f"{API}/{MODEL}", json={"license": license}).status_code == 200
    plan = anybody.post("/api/v1/plans", json={"base": MODEL, "purify": {"method": "fractal", "blocks": 0}}).get_json()
    for findings in (found_at(anybody, f"{API}/{MODEL}")["findings"], plan["findings"]):
        assert ("license-differs" in [one["code"] for one in findings]) is is_said
    page = page_at(anybody, f"/models/{MODEL}").text
    assert ("The stated license is 'mit', but the header" in page) is is_said
    card = anybody.get(f"/{MODEL}/resolve/main/README.md").text
    assert "\n# weaver\n\nWeaver\n" in card, "the name that was given, then the title in the header"
    assert ("| license in the file | apache-2.0 |" in card) is is_said
    assert ("- info, license-differs: The stated license is 'mit', but the header" in card) is is_said


def test_an_edited_base_is_recorded_with_the_measured_relation(
    ada: FlaskClient, registry: LocalRegistry, tmp_path: Path
) -> None:
    path = tmp_path / "coarse.gguf"
    path.write_bytes(model_file("Coarse", related_tensors(correlation=0.8, dtype="Q8_0")))
    ingest_file(registry, path, "ada/coarse")
    assert ada.patch(f"{API}/ada/coarse", json={"base": "local/base"}).status_code == 200
    (edge,) = (one for one in found_at(ada, f"{API}/ada/coarse")["lineage"] if one["direction"] == "parent")
    assert (edge["model"], edge["relation"], edge["evidence"]) == ("local/base@1", "quantized", "declared")
