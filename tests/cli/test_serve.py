"""`organ serve` before it serves: what it listens on, and for whom. The server itself is tested in tests/web."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from organs.cli.serve import is_personal, served_hosts
from organs.web.server.gateway import (
    HttpRequest,
    environment,
)
from organs.web.settings import LOOPBACK_HOSTS
from tests.cli.in_process import OrganCommand


def test_a_port_in_use_gives_an_error_of_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = OrganCommand(tmp_path / "home")("serve", "--port", taken.getsockname()[1])
    assert ended.status == 1
    assert len(ended.err.splitlines()) == 1
    assert "choose another with --host and --port" in ended.err


@pytest.mark.parametrize(
    ("shown", "allowed", "more"),
    [
        ("127.0.0.1", (), set()),
        ("0.0.0.0", (), set()),
        ("[::]", ("Models.Example",), {"models.example"}),
        ("192.168.1.5", ("*",), {"192.168.1.5", "*"}),
        ("[fe80::1]", (), {"[fe80::1]"}),
    ],
)
def test_requests_may_name_the_loopback_the_own_address_and_allowed_hosts(
    shown: str, allowed: tuple[str, ...], more: set[str]
) -> None:
    assert served_hosts(shown, allowed) == LOOPBACK_HOSTS | more


def test_clients_behind_a_proxy_are_never_local_users() -> None:
    assert is_personal("127.0.0.1", (), 0)
    assert not is_personal("127.0.0.1", (), 1)


def test_the_server_ignores_proxy_headers_of_clients() -> None:
    names = ("x-forwarded-proto", "x-forwarded-ssl", "x_forwarded_for", "script_name", "remote_addr", "forwarded")
    environ = environment(HttpRequest("GET", "/", headers=[(name, "https") for name in names], peer=("192.0.2.1", 9)))
    assert (environ["wsgi.url_scheme"], environ["REMOTE_ADDR"], environ["SCRIPT_NAME"]) == ("http", "192.0.2.1", "")
    assert "HTTP_X_FORWARDED_FOR" not in environ, "a name with an underscore is not the one with a hyphen"
