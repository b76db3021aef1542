"""Revoked tokens, sessions and page tokens are refused immediately by every process of a server."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path

import pytest

from organs.registry.catalog.queries.accounts import account_by_session
from organs.registry.catalog.register.accounts import open_page_token, open_session
from organs.registry.catalog.tables import now
from organs.registry.local import LocalRegistry
from organs.registry.tokens import parse_token, secret_sha256
from organs.web.auth import COOKIE
from tests import postgres
from tests.registry_templates import valid_account
from tests.web.accounts import authorization, new_token
from tests.web.live_server import PATIENCE_SECONDS, ROOT, LiveServer, running_server

WORKERS, CONNECTIONS, CONNECTIONS_MAX = 3, 12, 120
PACE_SECONDS = 0.1
SCRIPT = f"""
import os, sys
from organs.registry.local import LocalRegistry
from organs.web.server.processes import Server, prepare_metrics
from organs.web.settings import ServerSettings

class Telling(Server):
    def load(self):
        app = super().load()
        @app.after_request
        def tell(answer):
            answer.headers["X-Worker"] = str(os.getpid())
            return answer
        return app

registry = LocalRegistry.open()
registry.catalog.close()
prepare_metrics()
Telling(registry, ServerSettings(port=int(sys.argv[2]), workers={WORKERS}, threads=8)).run()
"""
"""A server with as many processes on every machine, each of which tells who answers."""
REFUSED = {401, 429}
"""The second for a token that was refused there ten times already; no address was."""
API, PAGE = "/api/v1/account", "/account.json"


class Visitor:
    """A client that keeps its connection, from an address of its own: nobody is taken for one who guesses tokens."""

    def __init__(self, live: LiveServer, number: int, path: str, headers: dict[str, str]) -> None:
        source = (f"127.0.{number // 200 + 1}.{number % 200 + 1}", 0)
        self._connection = HTTPConnection("127.0.0.1", live.port, timeout=30, source_address=source)
        self._path, self._headers = path, headers
        self.worker = ""
        """Who answered last."""

    def status(self) -> int:
        """Of the next answer; by a new connection only if the server has closed the one before."""
        self._connection.request("GET", self._path, headers=self._headers)
        answer = self._connection.getresponse()
        answer.read()
        self.worker = answer.headers["X-Worker"]
        return answer.status

    def close(self) -> None:
        self._connection.close()


def await_workers(live: LiveServer) -> None:
    """Until every process has answered: they begin one after another."""
    seen: set[str] = set()
    until = time.monotonic() + PATIENCE_SECONDS
    while len(seen) < WORKERS:
        assert time.monotonic() < until, "a process does not answer"
        visitor = Visitor(live, 2 * CONNECTIONS_MAX + 1, "/healthz", {})
        visitor.status()
        visitor.close()
        seen.add(visitor.worker)


def visitors(live: LiveServer, registry: LocalRegistry, token: str, first: int) -> list[Visitor]:
    """Programs with a token, at least one at each worker, a browser that is logged in by it, and the script of a page
    of that browser."""
    with registry.catalog.writing() as session:
        account = valid_account(session, parse_token(token), now())
        assert account is not None
        secret = open_session(session, account)
        opened = account_by_session(session, secret_sha256(secret), now())
        assert opened is not None
        assert opened.session_id is not None
        page_token = open_page_token(session, opened.session_id, ["upload"]).text
    found = [
        Visitor(live, first, PAGE, {"Cookie": f"{COOKIE}={secret}"}),
        Visitor(live, first + 1, API, authorization(page_token)),
    ]
    for number in range(2, CONNECTIONS_MAX):
        found.append(Visitor(live, first + number, API, authorization(token)))
        assert {one.status() for one in found} == {200}
        if number > CONNECTIONS and len({one.worker for one in found}) == WORKERS:
            return found
    raise AssertionError("a worker has got no connection")


def ended(clients: Sequence[Visitor], home: Path, *arguments: str) -> list[int]:
    """Let another process do that while the clients go on asking; what each gets that is refused first, or next."""
    command = [sys.executable, "-m", "organs.cli", "--home", str(home), *arguments]
    environment = {**os.environ, **postgres.environment(home)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    refused: dict[Visitor, int] = {}
    is_going_on = True
    while is_going_on:
        is_going_on = process.poll() is None
        statuses = {one: one.status() for one in clients if one not in refused}
        refused |= {one: status for one, status in statuses.items() if status != 200 or not is_going_on}
        time.sleep(PACE_SECONDS)
    assert process.returncode == 0, process.communicate()
    process.communicate()
    return list(refused.values())


@pytest.fixture
def home(registry: LocalRegistry) -> Path:
    return registry.settings.home


@pytest.fixture
def live(home: Path, tmp_path: Path) -> Iterator[LiveServer]:
    with running_server(home, tmp_path / "log", SCRIPT) as server:
        await_workers(server)
        yield server


@pytest.mark.long
def test_a_revocation_or_suspension_takes_effect_at_the_next_request_to_every_worker(
    registry: LocalRegistry, home: Path, live: LiveServer
) -> None:
    token, other, suspended = (new_token(registry, name, "upload") for name in ("ada", "ada", "bob"))
    revoked = visitors(live, registry, token, 0)
    assert set(ended(revoked, home, "token", "revoke", token[5:14])) <= REFUSED
    theirs = visitors(live, registry, suspended, CONNECTIONS_MAX)
    assert set(ended(theirs, home, "contributor", "suspend", "bob")) <= REFUSED
    untouched = Visitor(live, 2 * CONNECTIONS_MAX, API, authorization(other))
    assert untouched.status() == 200, "nobody else is touched"
    for one in (*revoked, *theirs, untouched):
        one.close()
