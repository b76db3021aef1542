"""One's own account, in the browser and over the API; and contributors as everybody sees them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from organs.registry.catalog.queries.accounts import contributor_by_name
from organs.registry.catalog.register.submissions import add_submission, add_upload
from organs.registry.catalog.tables import ModelRow
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.settings import WebSettings
from tests.small_models import ingest_file, small_model
from tests.web.accounts import log_in, new_token, program, send_form
from tests.web.page_parser import parse_page

ACCOUNT, TOKENS = "/api/v1/account", "/api/v1/account/tokens"
TOKEN = re.compile(r"orgp_[0-9A-Za-z]{58}")


@pytest.fixture
def app(registry: LocalRegistry) -> Flask:
    return create_app(registry)


@pytest.fixture
def token(registry: LocalRegistry) -> str:
    return new_token(registry, "ada", "upload", "read", "tokens")


@pytest.fixture
def busy(registry: LocalRegistry, token: str, tmp_path: Path) -> None:
    """Ada has a model that is visible, a submission that waits, and an upload on its way."""
    (tmp_path / "little.gguf").write_bytes(small_model())
    ingest_file(registry, tmp_path / "little.gguf", "ada/little")
    with registry.catalog.writing() as session:
        ada, model = contributor_by_name(session, "ada").id, session.query(ModelRow).one()
        model.contributor_id, model.downloads, model.grafts = ada, 7, 2
        add_upload(session, ada, "u" * 22, kind="file", size_bytes=70, digest=None, name="a.gguf").received_bytes = 10
        sent = add_submission(session, ada, "ada", "next", manifest="{}", description="{}", size_bytes=3)
        sent.state = "quarantined"


def set_state(registry: LocalRegistry, state: str, reason: str | None = None) -> None:
    with registry.catalog.writing() as session:
        model = session.query(ModelRow).one()
        model.state, model.state_reason = state, reason


@pytest.mark.usefixtures("busy")
def test_the_account_page_shows_all_data_of_the_account_and_no_secret(
    app: Flask, registry: LocalRegistry, token: str
) -> None:
    client = log_in(app, token)
    text = client.get("/account").text
    page = parse_page(text).text.replace("/​", "/")
    for shown in ("ada/little@1", "visible", "ada/next", "held for review", "10 bytes of 70 bytes", "a label"):
        assert shown in page, shown
    values = client.get("/account.json").get_json()
    assert values["quota"] == {
        "limit_bytes": registry.settings.quota_bytes,
        "used_bytes": values["models"][0]["size_bytes"] + 70,
        "uploads_bytes": 70,
        "submitted_bytes": 0,
        "upload_max_bytes": registry.settings.upload_max_bytes,
    }
    assert values["token"]["id"] == token[5:14]
    assert not TOKEN.search(text + client.get("/account.json").text)
    set_state(registry, "yanked", "it was trained on the wrong texts")
    page = client.get("/account").text
    assert "it was trained on the wrong texts" in page
    assert "/models/ada/little@1" in parse_page(page).links()
    set_state(registry, "quarantined")
    assert client.get("/account.json").get_json()["models"][0]["state"] == "quarantined"
    assert "/models/ada/little@1" not in parse_page(client.get("/account").text).links(), "it would lead nowhere"


@pytest.mark.usefixtures("busy")
def test_another_account_does_not_see_it(app: Flask, registry: LocalRegistry, token: str) -> None:
    other = log_in(app, new_token(registry, "bob"))
    values = other.get("/account.json").get_json()
    assert [values[key] for key in ("models", "uploads", "submissions")] == [[], [], []]
    assert (len(values["tokens"]), values["quota"]["used_bytes"]) == (1, 0)
    assert "ada/" not in other.get("/account").text


def test_a_token_made_on_the_page_is_shown_once_and_is_valid(app: Flask, token: str) -> None:
    client = log_in(app, token)
    answer = send_form(client, "/account/tokens", scope=["upload"], label="<b>box", days="30")
    (made,) = TOKEN.findall(answer.text)
    assert (answer.status_code, answer.headers["Cache-Control"]) == (200, "no-store")
    assert "<b>box" not in answer.text
    found = program(app, made).get(ACCOUNT).get_json()
    assert (found["contributor"], found["scopes"], found["token"]["label"]) == ("ada", ["upload"], "<b>box")
    assert made not in client.get("/account").text
    assert send_form(client, f"/account/tokens/{made[5:14]}/revoke").headers["Location"] == "/account"
    assert program(app, made).get(ACCOUNT).status_code == 401


ODD_TOKENS: list[tuple[dict[str, Any], int]] = [
    ({"scopes": ["upload", "admin"]}, 403),
    ({"scopes": []}, 400),
    *(({"scopes": ["upload"], "days": odd}, 400) for odd in ("0", "9" * 50, "\u0663")),
    *(({"scopes": ["upload"], "label": odd}, 400) for odd in ("a\0b", "a" * 97)),
]
NOT_IN_FORMS: list[tuple[dict[str, Any], int]] = [
    *(({"scopes": odd}, 400) for odd in (None, "upload", ["nonsense"], [["read"]])),
    ({}, 400),
    *(({"scopes": ["read"], "days": odd}, 400) for odd in (True, 1.5, 3651)),
    ({"scopes": ["read"], "label": "\ud800"}, 400),
    ({"scopes": ["read"], "more": 1}, 400),
]


@pytest.mark.parametrize(("values", "status"), [*ODD_TOKENS, *NOT_IN_FORMS], ids=repr)
def test_a_token_with_more_scopes_than_its_creator_or_odd_values_is_refused(
    values: dict[str, Any], status: int, app: Flask, token: str
) -> None:
    client = program(app, token)
    assert client.post(TOKENS, json=values).status_code == status
    if (values, status) in ODD_TOKENS:
        fields = {"scope" if name == "scopes" else name: value for name, value in values.items()}
        assert send_form(log_in(app, token), "/account/tokens", **fields).status_code == status
    assert len(client.get(TOKENS).get_json()["items"]) == 1


def test_a_token_of_another_account_is_answered_like_an_unknown_token(
    app: Flask, registry: LocalRegistry, token: str
) -> None:
    other = program(app, new_token(registry, "bob", "tokens"))
    answers = [other.delete(f"{TOKENS}/{one}") for one in (token[5:14], "aaaaaaaaa", "%00")]
    assert [one.status_code for one in answers] == [404] * 3
    said = [one.get_json()["detail"] for one in answers]
    assert said[0].replace(token[5:14], "aaaaaaaaa") == said[1]
    assert program(app, token).get(ACCOUNT).status_code == 200


def test_a_page_gets_a_narrow_token_that_ends_with_its_session(app: Flask, token: str) -> None:
    client = log_in(app, token)
    answer = send_form(client, "/account/page-token")
    values = answer.get_json()
    assert (answer.mimetype, answer.headers["Cache-Control"]) == ("application/json", "no-store")
    assert (set(values), values["scopes"]) == ({"token", "expires_at", "scopes"}, ["upload"])
    script = program(app, values["token"])
    assert script.get(ACCOUNT).get_json()["scopes"] == ["upload"]
    assert send_form(client, "/logout").status_code == 303
    assert script.get(ACCOUNT).status_code == 401


def test_a_personal_server_needs_no_token(registry: LocalRegistry) -> None:
    own = create_app(registry, WebSettings(personal=True)).test_client()
    answer = send_form(own, "/account/page-token", "/upload")
    assert answer.get_json() == {"token": None, "expires_at": None, "scopes": ["upload"]}
    assert own.get(ACCOUNT).get_json()["contributor"] == "local"
    assert "/logout" not in parse_page(own.get("/").text).links()


@pytest.mark.usefixtures("busy")
def test_the_page_of_a_contributor_is_public_and_shows_the_uses_of_the_models(app: Flask) -> None:
    client = app.test_client()
    found = client.get("/api/v1/contributors/ADA").get_json()
    assert found.pop("since")
    assert found == {"name": "ada", "models": 1, "chimeras": 0, "downloads": 7, "grafts": 2}
    assert [one["name"] for one in client.get("/api/v1/contributors").get_json()["items"]] == ["ada"]
    assert "/models/ada/little@1" in parse_page(client.get("/contributors/ada").text).links()
    assert "/contributors/ada" in parse_page(client.get("/contributors").text).links()


@pytest.mark.usefixtures("busy")
def test_a_contributor_without_visible_models_is_404(app: Flask, registry: LocalRegistry) -> None:
    client = app.test_client()
    set_state(registry, "quarantined")
    known, unknown = (client.get(f"/api/v1/contributors/{name}") for name in ("ada", "eve"))
    assert known.status_code == unknown.status_code == 404
    assert known.get_json()["detail"].replace("ada", "eve") == unknown.get_json()["detail"]
    assert client.get("/api/v1/contributors").get_json()["items"] == []
    assert client.get("/contributors/%00").status_code == 404
