"""Accounts for tests of the pages and the API: a contributor with a token, and a browser that is logged in by it."""

from __future__ import annotations

import re
from typing import Any

from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from organs.registry.catalog.queries.accounts import contributor_by_name, token_by_public_id
from organs.registry.catalog.register.accounts import add_contributor, create_child_token, create_token, open_session
from organs.registry.catalog.tables import now
from organs.registry.errors import NotFound
from organs.registry.local import LocalRegistry
from organs.registry.tokens import parse_token
from tests.registry_templates import valid_account

_FORM_TOKEN = re.compile(r'name="form_token" value="([^"]+)"')


def new_token(registry: LocalRegistry, name: str, *scopes: str, days: int | None = 30) -> str:
    """A token of the contributor `name`, who is added if need be; for `upload` unless told otherwise."""
    with registry.catalog.writing() as session:
        try:
            owner = contributor_by_name(session, name)
        except NotFound:
            owner = add_contributor(session, name)
        return create_token(session, owner.id, scopes or ("upload",), "a label", days).text


def child_token(registry: LocalRegistry, parent: str, *scopes: str, days: int | None = 30) -> str:
    """A token that the token `parent` creates."""
    with registry.catalog.writing() as session:
        row = token_by_public_id(session, parent[5:14])
        return create_child_token(session, row.id, scopes, "a child", days).text


def session_of(registry: LocalRegistry, token: str) -> str:
    """The secret of a new session of a browser; it counts for no rate of log-ins."""
    with registry.catalog.writing() as session:
        account = valid_account(session, parse_token(token), now())
        assert account is not None
        return open_session(session, account)


def authorization(token: str) -> dict[str, str]:
    """The header by which the API knows who asks."""
    return {"Authorization": f"Bearer {token}"}


def program(app: Flask, token: str) -> FlaskClient:
    """A client that sends the token with every request."""
    client = app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {token}"
    return client


def form_token(client: FlaskClient, address: str = "/login", **options: Any) -> str:
    """The token in the forms of a page; the client has its cookie from there on."""
    found = _FORM_TOKEN.search(client.get(address, **options).text)
    assert found is not None, address
    return found[1]


def send_form(client: FlaskClient, address: str, page: str = "/account", **fields: object) -> TestResponse:
    """Send the form of `page` to `address` and return the answer."""
    return client.post(address, data={"form_token": form_token(client, page), **fields})


def log_in(app: Flask, token: str) -> FlaskClient:
    """A browser that is logged in."""
    client = app.test_client()
    answer = send_form(client, "/login", "/login", token=token)
    assert answer.status_code == 303, answer.text
    return client
