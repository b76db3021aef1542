"""A token creates and revokes only what it holds itself: by every route, for every combination of scopes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from organs.registry.catalog.queries.accounts import descendants_of, token_by_public_id
from organs.registry.catalog.register.accounts import create_child_token, revoke_by_token, revoke_token
from organs.registry.catalog.tables import EventRow, now
from organs.registry.catalog.vocabulary import SCOPES
from organs.registry.errors import BadToken, NotAllowed
from organs.registry.local import LocalRegistry
from organs.registry.tokens import parse_token
from organs.web.app import create_app
from organs.web.auth import COOKIE
from tests.registry_templates import valid_account
from tests.web.accounts import child_token, form_token, new_token, program, session_of
from tests.web.page_parser import parse_page

API = "/api/v1/account/tokens"
HELD: tuple[tuple[str, ...], ...] = (*((scope,) for scope in SCOPES), ("upload", "tokens"), SCOPES[:3], SCOPES)
"""Scopes of the token that is used."""
_numbers = count(1)


@dataclass(frozen=True)
class Family:
    """Tokens of a contributor around `own`, which is the one that is used. The parent has every scope."""

    parent: str
    own: str
    sibling: str
    """Created by the same parent, with one scope."""
    unrelated: str
    """Created by an administrator, with one scope."""
    child: str
    grandchild: str
    stranger: str
    """Of another contributor."""


@pytest.fixture(scope="module")
def app(registry: LocalRegistry) -> Flask:
    return create_app(registry)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRegistry]:
    with LocalRegistry.open(tmp_path_factory.mktemp("rights") / "home") as opened:
        yield opened


def family(registry: LocalRegistry, scopes: tuple[str, ...], days: int = 30) -> Family:
    """Tokens of a contributor of their own. Children are written as rows: their parent may lack the scope `tokens`."""
    name = f"user{next(_numbers)}"
    parent = new_token(registry, name, *SCOPES, days=60)
    own = child_token(registry, parent, *scopes, days=days)
    child, grandchild = (new_token(registry, name, scopes[0]) for _ in range(2))
    with registry.catalog.writing() as session:
        rows = [token_by_public_id(session, text[5:14]) for text in (own, child, grandchild)]
        rows[1].parent_id, rows[2].parent_id = rows[0].id, rows[1].id
    unrelated, stranger = new_token(registry, name, "read"), new_token(registry, f"{name}x", "read")
    return Family(parent, own, child_token(registry, parent, "read"), unrelated, child, grandchild, stranger)


def is_valid(registry: LocalRegistry, text: str) -> bool:
    with registry.catalog.reading() as session:
        return valid_account(session, parse_token(text), now()) is not None


class Program:
    """Uses the API with a token."""

    def __init__(self, app: Flask, registry: LocalRegistry, token: str) -> None:
        self._client = program(app, token)

    def create(self, scopes: Collection[str], days: int | None) -> TestResponse:
        body = {"label": "more", "scopes": list(scopes), "days": days}
        return self._client.post(API, json=body)

    def revoke(self, token: str) -> TestResponse:
        return self._client.delete(f"{API}/{token[5:14]}")


class Browser:
    """Uses the pages, logged in by a token."""

    def __init__(self, app: Flask, registry: LocalRegistry, token: str) -> None:
        self._client = app.test_client()
        self._client.set_cookie(COOKIE, session_of(registry, token))
        self._field = form_token(self._client)

    def create(self, scopes: Collection[str], days: int | None) -> TestResponse:
        fields = {"form_token": self._field, "label": "more", "scope": list(scopes), "days": days or ""}
        return self._client.post("/account/tokens", data=fields)

    def revoke(self, token: str) -> TestResponse:
        return self._client.post(f"/account/tokens/{token[5:14]}/revoke", data={"form_token": self._field})


FACES: list[Callable[[Flask, LocalRegistry, str], Any]] = [Program, Browser]


@pytest.mark.parametrize("face", FACES)
def test_a_token_with_the_scope_tokens_creates_tokens_with_its_own_scopes_only(
    face: Callable[[Flask, LocalRegistry, str], Any], app: Flask, registry: LocalRegistry
) -> None:
    for scopes in HELD:
        asker = face(app, registry, family(registry, scopes).own)
        for wanted in (scopes, scopes[:1], SCOPES, ("admin",)):
            status = asker.create(wanted, 1).status_code
            may = "tokens" in scopes and set(wanted) <= set(scopes)
            assert (status < 400, status in (200, 201, 403)) == (may, True), (scopes, wanted, status)


@pytest.mark.parametrize("face", FACES)
def test_a_token_revokes_only_itself_and_with_the_scope_tokens_its_descendants(
    face: Callable[[Flask, LocalRegistry, str], Any], app: Flask, registry: LocalRegistry
) -> None:
    for scopes in HELD:
        manages = "tokens" in scopes
        known = family(registry, scopes)
        asker = face(app, registry, known.own)
        for kept in (known.parent, known.sibling, known.unrelated):
            assert asker.revoke(kept).status_code == 403, scopes
        assert asker.revoke(known.stranger).status_code == (404 if manages else 403), scopes
        assert all(is_valid(registry, text) for text in vars(known).values()), scopes
        for revoked in (known.grandchild, known.child):
            assert (asker.revoke(revoked).status_code < 400) is manages, scopes
            assert is_valid(registry, revoked) is not manages, scopes
        assert asker.revoke(known.own).status_code < 400, scopes
        good = {name for name, text in vars(known).items() if is_valid(registry, text)}
        assert good == {"parent", "sibling", "unrelated", "stranger"}, scopes


@pytest.mark.parametrize("face", FACES)
def test_a_child_token_expires_no_later_than_its_parent(
    face: Callable[[Flask, LocalRegistry, str], Any], app: Flask, registry: LocalRegistry
) -> None:
    known = family(registry, ("read", "tokens"), days=30)
    asker = face(app, registry, known.own)
    expected = {1: 1, 29: 29, 31: 30, 3650: 30, None: 30}
    for days in expected:
        assert asker.create(("read",), days).status_code < 400, days
    with registry.catalog.reading() as session:
        own = token_by_public_id(session, known.own[5:14])
        created = [one for one in descendants_of(session, own.id) if one.label == "more"]
        limits = [one.expires_at for one in created if one.expires_at is not None]
        assert [round((limit - now()) / timedelta(days=1)) for limit in limits] == list(expected.values())
        assert max(limits) == own.expires_at


def test_a_token_without_expiry_can_create_a_token_without_expiry(app: Flask, registry: LocalRegistry) -> None:
    token = new_token(registry, "forever", "read", "tokens", days=None)
    assert Program(app, registry, token).create(("read",), None).get_json()["expires_at"] is None


def test_an_administrator_who_revokes_a_token_revokes_its_children_and_the_log_says_so(
    registry: LocalRegistry,
) -> None:
    known = family(registry, ("read", "tokens"))
    with registry.catalog.writing() as session:
        before = session.query(EventRow).count()
        revoke_token(session, known.parent[5:14])
        revoked = [event.text.split()[0] for event in session.query(EventRow).order_by(EventRow.id).offset(before)]
    gone = (known.parent, known.own, known.child, known.grandchild, known.sibling)
    assert sorted(revoked) == sorted(text[5:14] for text in gone)
    assert [is_valid(registry, text) for text in gone] == [False] * 5
    assert is_valid(registry, known.unrelated)


def test_a_token_that_was_revoked_in_the_meantime_cannot_create_tokens(registry: LocalRegistry) -> None:
    """The request was admitted before the token was revoked, and writes after that."""
    known = family(registry, ("read", "tokens"))
    with registry.catalog.writing() as session:
        own = token_by_public_id(session, known.own[5:14])
        revoke_by_token(session, own.id, own.public_id)
        with pytest.raises(BadToken, match="revoked"):
            create_child_token(session, own.id, ["read"], "")


def test_the_account_page_follows_the_scopes_of_its_token(app: Flask, registry: LocalRegistry) -> None:
    for scopes, listed, revocable in ((("read",), 1, 1), (("read", "tokens"), 6, 3)):
        known = family(registry, scopes)
        browser = Browser(app, registry, known.own)._client
        values, page = browser.get("/account.json").get_json(), parse_page(browser.get("/account").text)
        assert len(values["tokens"]) == listed, scopes
        actions = [one.attributes["action"] for one in page.named("form")]
        assert sum((action or "").endswith("/revoke") for action in actions) == revocable, scopes
        assert ("/account/tokens" in actions) is ("tokens" in scopes)
    assert {one["id"]: one["created_by"] for one in values["tokens"]}[known.child[5:14]] == known.own[5:14]
    choices = [one.attributes["value"] for one in page.named("option")]
    assert choices == [""], "its token has less than 30 days left"


def test_no_rule_depends_on_the_route(registry: LocalRegistry) -> None:
    known = family(registry, ("read",))
    with registry.catalog.writing() as session:
        own, parent = (token_by_public_id(session, text[5:14]) for text in (known.own, known.parent))
        with pytest.raises(NotAllowed, match="scope tokens"):
            create_child_token(session, own.id, ["read"], "")
        with pytest.raises(NotAllowed, match="scope tokens"):
            revoke_by_token(session, own.id, parent.public_id)
