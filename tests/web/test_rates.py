"""How often one may ask: guesses at tokens, log-ins, what is sent; told before anything of a body is read."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from flask import Flask
from sqlalchemy import event

from registry.catalog.clock import now
from registry.catalog.queries.accounts import contributor_by_name, token_by_public_id
from registry.catalog.register.accounts import revoke_token, set_contributor_state
from registry.registry import Registry
from registry.tokens import _checksum
from registry.tokens import new_token as unknown_token
from tests.web.accounts import bearing, form_token, logged_in, new_token
from web.app import create_app
from web.rates import FAILED_TOKENS, LOG_INS, PAGE_TOKENS, UPLOADS, WRITES, asker_address, rates
from web.settings import WebSettings

ACCOUNT = "/api/v1/account"


@pytest.fixture
def app(registry: Registry) -> Flask:
    return create_app(registry)


@pytest.fixture
def asked(registry: Registry) -> Callable[[], int]:
    """How many statements the catalog was asked so far."""
    count = [0]

    def counted(*_: object) -> None:
        count[0] += 1

    for engine in (registry.catalog.reader, registry.catalog.writer):
        event.listen(engine, "before_cursor_execute", counted)
    return lambda: count[0]


def ask(app: Flask, token: str, address: str = "192.0.2.1", path: str = ACCOUNT) -> int:
    return app.test_client().get(path, headers=bearing(token), environ_base={"REMOTE_ADDR": address}).status_code


def test_line_96_a_mistyped_token_never_reaches_the_database(
    app: Flask, registry: Registry, asked: Callable[[], int]
) -> None:
    good = new_token(registry, "ada")
    before = asked()
    for wrong in ("x", good[:-1] + ("0" if good[-1] != "0" else "1"), "orgp_" + "0" * 58):
        assert ask(app, wrong) == 401
    assert asked() == before
    assert ask(app, unknown_token().text) == 401
    assert asked() > before


def test_line_101_an_address_with_many_guesses_gets_no_answer_for_a_while(
    app: Flask, registry: Registry, asked: Callable[[], int]
) -> None:
    good = new_token(registry, "ada")
    statuses = [ask(app, unknown_token().text) for _ in range(FAILED_TOKENS.amount + 2)]
    assert statuses == [401] * FAILED_TOKENS.amount + [429] * 2
    before = asked()
    assert ask(app, good) == 429, "else the guess that is right would be found out all the same"
    assert asked() == before
    assert ask(app, good, "192.0.2.2") == 200
    answer = app.test_client().get(ACCOUNT, headers=bearing(good), environ_base={"REMOTE_ADDR": "192.0.2.1"})
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    assert answer.get_json()["status"] == 429
    assert app.test_client().get("/api/v1/models", environ_base={"REMOTE_ADDR": "192.0.2.1"}).status_code == 200


def test_line_101_a_token_guessed_at_from_many_places_is_counted_and_stays_its_owners(
    app: Flask, registry: Registry
) -> None:
    good = new_token(registry, "ada")
    guesses = []
    while len(guesses) < FAILED_TOKENS.amount + 2:
        body = good[:14] + unknown_token().text[14:-6]
        guesses.append(body + _checksum(body))
    statuses = [ask(app, guess, f"192.0.2.{place}") for place, guess in enumerate(guesses)]
    assert statuses == [401] * FAILED_TOKENS.amount + [429] * 2
    assert ask(app, good, "198.51.100.1") == 200


def test_line_101_a_token_that_was_good_once_is_no_guess_and_its_owner_alone_learns_what_became_of_it(
    app: Flask, registry: Registry, asked: Callable[[], int]
) -> None:
    revoked, expired, suspended = (new_token(registry, name) for name in ("ada", "ada", "eve"))
    good = new_token(registry, "bob")
    with registry.catalog.writing() as session:
        revoke_token(session, revoked[5:14])
        token_by_public_id(session, expired[5:14]).expires_at = now()
        set_contributor_state(session, "eve", "suspended")
    before = asked()
    unknown = app.test_client().get(ACCOUNT, headers=bearing(unknown_token().text))
    cost = asked() - before
    for token, why in ((revoked, "was revoked"), (expired, "has expired"), (suspended, "is suspended")):
        for _ in range(FAILED_TOKENS.amount):
            before = asked()
            answer = app.test_client().get(ACCOUNT, headers=bearing(token))
            assert (answer.status_code, asked() - before) == (401, cost), "no more is asked than for any other token"
            assert why in answer.get_json()["error"]
            assert "WWW-Authenticate" in answer.headers
    body = revoked[:14] + unknown_token().text[14:-6]
    guess = app.test_client().get(ACCOUNT, headers=bearing(body + _checksum(body)))
    assert guess.data == unknown.data, "who has not all of it learns nothing"
    assert ask(app, good, "127.0.0.1") == 200


def test_line_101_an_asker_is_an_address_or_a_network_of_ipv6(app: Flask) -> None:
    def known(address: str) -> str:
        with app.test_request_context(environ_base={"REMOTE_ADDR": address}):
            return asker_address()

    assert known("2001:db8:1:2::1") == known("2001:db8:1:2:ffff::9")
    assert known("2001:db8:1:2::1") != known("2001:db8:1:3::1")
    assert known("::ffff:192.0.2.1") == known("192.0.2.1") != known("192.0.2.2")
    assert known("") == known("nonsense") == "unknown"


def test_line_103_an_address_that_a_client_claims_is_not_believed(registry: Registry) -> None:
    def counted(proxies: int, chain: str) -> str:
        app = create_app(registry, WebSettings(proxies=proxies))
        found: list[str] = []
        app.after_request(lambda answer: found.append(asker_address()) or answer)  # type: ignore[func-returns-value]
        app.test_client().get("/healthz", headers={"X-Forwarded-For": chain}, environ_base={"REMOTE_ADDR": "10.0.0.1"})
        return found[0]

    assert counted(0, "192.0.2.1") == "10.0.0.1"
    assert counted(1, "203.0.113.9, 192.0.2.1") == "192.0.2.1", "what the client wrote stands before it"
    assert counted(2, "203.0.113.9, 192.0.2.1, 10.0.0.2") == "192.0.2.1"


def test_line_101_log_ins_are_counted_by_address_before_the_form_is_read(app: Flask, registry: Registry) -> None:
    token = new_token(registry, "ada")
    client = app.test_client()
    field = form_token(client)
    for _ in range(LOG_INS.amount):
        assert client.post("/login", data={"form_token": field, "token": token}).status_code == 303
        client.delete_cookie("organ_session")
    body = io.BytesIO(b"token=x")
    answer = client.post("/login", input_stream=body, content_type="application/x-www-form-urlencoded")
    assert (answer.status_code, body.tell()) == (429, 0)
    assert answer.mimetype == "text/html"
    assert "Retry-After" in answer.headers


def test_what_a_contributor_sends_is_counted_before_its_body_is_read(app: Flask, registry: Registry) -> None:
    token, other = new_token(registry, "ada"), new_token(registry, "bob")
    with registry.catalog.reading() as session:
        ada = contributor_by_name(session, "ada").id
    with app.app_context():
        for _ in range(WRITES.amount):
            rates().hit(WRITES, str(ada))
    body = io.BytesIO(b'{"digests": []}')
    headers = {**bearing(token), "Content-Type": "application/json"}
    answer = app.test_client().post("/api/v1/organs/lookup", headers=headers, input_stream=body)
    assert (answer.status_code, body.tell()) == (429, 0)
    other_one = app.test_client().post("/api/v1/organs/lookup", headers=bearing(other), json={"digests": ["0" * 64]})
    assert other_one.status_code == 200
    assert app.test_client().get(ACCOUNT, headers=bearing(token)).status_code == 200, "reading is not sending"
    assert UPLOADS.amount > WRITES.amount


def test_tokens_of_pages_are_counted(app: Flask, registry: Registry) -> None:
    client = logged_in(app, new_token(registry, "ada"))
    field = form_token(client, "/account")
    made = [client.post("/account/page-token", data={"form_token": field}) for _ in range(PAGE_TOKENS.amount + 1)]
    assert [one.status_code for one in made] == [200] * PAGE_TOKENS.amount + [429]
