"""Logging in and out: the cookie, the way back, and that a session ends where it is kept."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask import Flask
from flask.testing import FlaskClient

from organs.registry.catalog.register.accounts import open_page_token, revoke_token, set_contributor_state
from organs.registry.local import LocalRegistry
from organs.registry.tokens import new_token as unknown_token
from organs.web.app import create_app
from organs.web.auth import (
    COOKIE,
    SECURE_COOKIE,
)
from organs.web.pages.account import checked_next
from organs.web.settings import WebSettings
from tests.clocks import local_clock
from tests.web.accounts import log_in, new_token, send_form, session_of
from tests.web.page_parser import parse_page


@pytest.fixture
def app(registry: LocalRegistry) -> Iterator[Flask]:
    """The catalog as others reach it."""
    return create_app(registry)


@pytest.fixture
def token(registry: LocalRegistry) -> str:
    return new_token(registry, "ada")


def cookie_of(client: FlaskClient) -> str:
    """The secret of the session of a browser."""
    cookie = client.get_cookie(COOKIE)
    assert cookie is not None
    return cookie.value


def is_logged_out(app: Flask, secret: str) -> bool:
    """Whether a browser with that secret is sent to the page on which one logs in."""
    client = app.test_client()
    client.set_cookie(COOKIE, secret)
    answer = client.get("/account")
    return (answer.status_code, answer.headers.get("Location")) == (303, "/login?next=/account")


def test_log_in_shows_the_name_and_returns_to_the_previous_page(app: Flask, token: str) -> None:
    client = app.test_client()
    assert "/login" in parse_page(client.get("/models").text).links()
    page = client.get("/login", headers={"Referer": "http://localhost/models?q=kind:model"})
    assert '<input type="hidden" name="next" value="/models?q=kind:model">' in page.text
    answer = send_form(client, "/login", "/login", token=f" {token}\n", next="/models?q=kind:model")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/models?q=kind:model")
    assert answer.headers["Cache-Control"] == "no-store"
    head = parse_page(client.get("/models").text)
    assert {"/account", "/logout"} <= head.links()
    assert "/login" not in head.links()
    assert "ada" in head.text


def test_a_wrong_token_gets_the_page_again_with_one_sentence(app: Flask, token: str) -> None:
    client = app.test_client()
    for wrong in ("", unknown_token().text):
        answer = send_form(client, "/login", "/login", token=wrong, next="/models")
        assert answer.status_code == 401
        assert [one.attributes.get("role") for one in parse_page(answer.text).elements].count("alert") == 1
        assert "WWW-Authenticate" not in answer.headers, "browsers would ask for a password of their own"
        assert not wrong or wrong not in answer.text
        assert COOKIE not in str(answer.headers.getlist("Set-Cookie"))


@pytest.mark.parametrize(
    ("proxies", "address", "is_secure"),
    [(0, "http://localhost", False), (0, "https://localhost", True), (1, "http://localhost", True)],
)
def test_the_cookie_is_hidden_from_scripts_and_over_tls_bound_to_this_host(
    proxies: int, address: str, is_secure: bool, registry: LocalRegistry, token: str
) -> None:
    """TLS is believed only from the configured number of proxies."""
    client = create_app(registry, WebSettings(proxies=proxies)).test_client()
    headers = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.7"}
    page = client.get("/login", base_url=address, headers=headers)
    field = page.text.partition('name="form_token" value="')[2].partition('"')[0]
    answer = client.post(
        "/login",
        base_url=address,
        data={"form_token": field, "token": token},
        headers={**headers, "Cookie": page.headers["Set-Cookie"].partition(";")[0]},
    )
    name, *flags = str(answer.headers["Set-Cookie"]).split("; ")
    assert name.partition("=")[0] == (SECURE_COOKIE if is_secure else COOKIE)
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(flags)
    assert not [one for one in flags if one.startswith("Domain")]
    assert ("Secure" in flags) is is_secure


def test_each_log_in_starts_a_new_session_and_ends_the_previous_one(app: Flask, token: str) -> None:
    client, old = app.test_client(), ["chosen-by-somebody-else"]
    client.set_cookie(COOKIE, old[0])
    for _ in range(2):
        assert send_form(client, "/login", "/login", token=token).status_code == 303
        old.append(cookie_of(client))
    assert client.get("/account").status_code == 200
    assert old.pop() not in old
    for secret in old:
        assert is_logged_out(app, secret)


def test_log_out_ends_the_session_on_the_server(app: Flask, token: str) -> None:
    client = log_in(app, token)
    secret = cookie_of(client)
    answer = send_form(client, "/logout")
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    assert client.get_cookie(COOKIE) is None
    assert is_logged_out(app, secret)


def test_a_browser_is_logged_out_when_its_token_ends(app: Flask, registry: LocalRegistry, token: str) -> None:
    client = log_in(app, token)
    with local_clock(10_000):
        assert client.get("/account").status_code == 200, "only the clock of the database counts"
    for state, status in (("suspended", 303), ("active", 200)):
        with registry.catalog.writing() as session:
            set_contributor_state(session, "ada", state)
        assert client.get("/account").status_code == status
    with registry.catalog.writing() as session:
        revoke_token(session, token[5:14])
    assert client.get("/account").status_code == 303
    assert "Log in" in client.get("/").text


ELSEWHERE = [
    "//elsewhere.example",
    "/\\elsewhere.example",
    "\\/elsewhere.example",
    "https://elsewhere.example/",
    "javascript:alert(1)",
    "/\t/elsewhere.example",
    "/\n",
    " /",
    "",
    "models",
    "/" + "a" * 2000,
    "/ü",
    "/a b",
    "/a\\b",
]


def test_the_return_address_is_never_on_another_site(app: Flask, token: str) -> None:
    client = app.test_client()
    for address in ELSEWHERE:
        assert checked_next(address) is None, address
        assert 'name="next"' not in client.get("/login", query_string={"next": address}).text, address
    for address in ("//elsewhere.example", "/\\elsewhere.example"):
        answer = send_form(client, "/login", "/login", token=token, next=address)
        assert (answer.status_code, answer.headers["Location"]) == (303, "/account")


def test_a_referrer_from_another_site_or_from_the_login_page_is_not_a_return_address(app: Flask) -> None:
    for came in ("http://elsewhere.example/models", "http://localhost/login", "http://[", "nonsense"):
        assert 'name="next"' not in app.test_client().get("/login", headers={"Referer": came}).text, came


def test_the_token_of_a_page_cannot_log_in(app: Flask, registry: LocalRegistry, token: str) -> None:
    session_of(registry, token)
    with registry.catalog.writing() as session:
        page = open_page_token(session, 1, ["upload"])
    answer = send_form(app.test_client(), "/login", "/login", token=page.text)
    assert answer.status_code == 401
    assert "token of a page" in parse_page(answer.text).text
