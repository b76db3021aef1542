"""Revoked tokens, sessions and page tokens are refused immediately by every process of a server."""

from __future__ import annotations

import time
from collections import defaultdict
from http.client import HTTPConnection
from pathlib import Path

import pytest

from organs.registry.catalog.queries.accounts import account_by_session
from organs.registry.catalog.register.accounts import (
    open_page_token,
    revoke_token,
    set_contributor_state,
)
from organs.registry.catalog.tables import now
from organs.registry.local import LocalRegistry
from organs.registry.tokens import secret_sha256
from organs.web.auth import COOKIE
from tests.web.accounts import authorization, new_token, session_of
from tests.web.live_server import PATIENCE_SECONDS, TELLING, LiveServer, running_server

WORKERS = 3
REFUSED = {401, 429}
"""The second for a token that was refused there ten times already."""
API, PAGE = "/api/v1/account", "/account.json"

Request = tuple[str, dict[str, str]]
"""An address, and the headers that are sent there."""


def requests_with(registry: LocalRegistry, token: str) -> list[Request]:
    """Requests of a program with a token, of a browser that is logged in by it, and of the script of its page."""
    secret = session_of(registry, token)
    with registry.catalog.writing() as session:
        opened = account_by_session(session, secret_sha256(secret), now())
        assert opened is not None
        assert opened.session_id is not None
        page_token = open_page_token(session, opened.session_id, ["upload"]).text
    return [
        (API, authorization(token)),
        (PAGE, {"Cookie": f"{COOKIE}={secret}"}),
        (API, authorization(page_token)),
    ]


def statuses(live: LiveServer, request: Request) -> set[int]:
    """The statuses of the answers, until every process has answered."""
    found: defaultdict[str, set[int]] = defaultdict(set)
    until = time.monotonic() + PATIENCE_SECONDS
    while len(found) < WORKERS:
        assert time.monotonic() < until, "a process does not answer"
        connection = HTTPConnection("127.0.0.1", live.port, timeout=30)
        connection.request("GET", request[0], headers=request[1])
        answer = connection.getresponse()
        found[answer.headers["X-Worker"]].add(answer.status)
        connection.close()
    return set.union(*found.values())


@pytest.mark.long
def test_a_revocation_or_suspension_takes_effect_at_the_next_request_to_every_worker(
    registry: LocalRegistry, tmp_path: Path
) -> None:
    token, other, suspended = (new_token(registry, name) for name in ("ada", "ada", "bob"))
    revoked, theirs = requests_with(registry, token), requests_with(registry, suspended)
    with running_server(registry.settings.home, tmp_path / "log", TELLING) as live:
        for request in (*revoked, *theirs):
            assert statuses(live, request) == {200}
        with registry.catalog.writing() as session:
            revoke_token(session, token[5:14])
        for request in revoked:
            assert statuses(live, request) <= REFUSED
        for request in (*theirs, (API, authorization(other))):
            assert statuses(live, request) == {200}, "nobody else is touched"
        with registry.catalog.writing() as session:
            set_contributor_state(session, "bob", "suspended")
        for request in theirs:
            assert statuses(live, request) <= REFUSED
