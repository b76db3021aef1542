"""Names that are served, sizes, links from outside."""

from __future__ import annotations

import pytest
from flask.testing import FlaskClient

from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.responses import outside_link
from organs.web.security import ADDRESS_MAX_LENGTH
from organs.web.settings import WebSettings

SERVED = ("localhost", "127.0.0.1:1", "[::1]", "[::1]:8935", "LOCALHOST")
REFUSED = (
    "elsewhere.example",
    "127.0.0.1.elsewhere.example",
    "localhost:80:80",
    "",
    "::1",
    "localhost.",
    "x@localhost",
)
PROBES = ("10.0.0.7", "10.0.0.7:8935", "[fd00::7]:8935", "organs", "organs.default.svc:80")


def test_only_the_names_of_this_machine_are_served_and_probes_of_health_may_use_others(
    family_client: FlaskClient,
) -> None:
    def statuses(path: str, hosts: tuple[str, ...]) -> set[int]:
        return {family_client.get(path, headers={"Host": host}).status_code for host in hosts}

    assert statuses("/organs", SERVED) == statuses("/healthz", (*SERVED, *PROBES)) == {200}
    assert statuses("/organs", REFUSED) <= {400, 421}
    assert statuses("/organs", PROBES) == {421}


def test_an_allowed_host_name_is_served(registry: LocalRegistry) -> None:
    settings = WebSettings(hosts=frozenset({"atlas.example"}))
    with create_app(registry, settings).test_client() as client:
        assert client.get("/", headers={"Host": "atlas.example:443"}).status_code == 200
        assert client.get("/", headers={"Host": "localhost"}).status_code == 421
        assert client.get("/", headers={"Host": "localhost", "X-Forwarded-Host": "atlas.example"}).status_code == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE"])
def test_a_method_that_is_not_allowed_is_refused_first_also_with_a_long_address(
    family_client: FlaskClient, method: str
) -> None:
    address = "/organs?q=" + "a" * ADDRESS_MAX_LENGTH
    answer = family_client.open(address, method=method)
    assert (answer.status_code, "GET" in answer.headers["Allow"]) == (405, True)
    assert family_client.get(address).status_code == 414


@pytest.mark.parametrize("text", ["https://a.example/x?y=1#z", "http://a.example", "HTTPS://a.example:8080/%20"])
def test_plain_addresses_become_links(text: str) -> None:
    assert outside_link(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "javascript:alert(1)",
        "//a.example",
        "/organs",
        "ftp://a.example",
        "https://",
        "https://a.example/\n",
        'https://a.example/"x',
        "https://a.example/'x",
        "https://me:secret@a.example/",
        "https://a\u202e.example",
        "https://[::1",
        "x" * 3000,
    ],
)
def test_anything_else_is_not_linked(text: str) -> None:
    assert outside_link(text) is None


@pytest.mark.parametrize("parts", [101, 5_000])
def test_a_form_of_many_parts_is_refused(family_client: FlaskClient, parts: int) -> None:
    boundary = "part"
    body = f'--{boundary}\r\nContent-Disposition: form-data; name="paths"\r\n\r\nx\r\n' * parts
    answer = family_client.post(
        "/api/models/local/base/paths-info/main",
        data=f"{body}--{boundary}--\r\n".encode(),
        content_type=f"multipart/form-data; boundary={boundary}",
    )
    assert answer.status_code == 413
