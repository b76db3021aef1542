"""Writing without an account: the address of the server, the origin of the page and the token of the form decide."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from organs.cli.serve import is_personal
from organs.registry.catalog.queries.jobs import job_by_id
from organs.registry.catalog.register.jobs import enqueue_job
from organs.registry.entities.problem import Problem
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.pages.routes import COOKIE
from organs.web.settings import LOOPBACK_HOSTS, WebSettings
from tests.web.page_parser import parse_page

FORM, API = "/jobs/1/cancel", "/api/v1/jobs/1"
OWN = "http://localhost"
JOB_ADDRESSES = (
    "/jobs",
    "/jobs.json",
    "/jobs/1",
    "/jobs/1.json",
    "/api/v1/jobs",
    "/api/v1/jobs/1",
    "/jobs/1/files/a.tar",
)

HEADERS: list[tuple[dict[str, str], bool]] = [
    ({}, True),
    ({"Origin": OWN}, True),
    ({"Origin": "HTTP://LOCALHOST"}, True),
    ({"Origin": OWN, "Referer": f"{OWN}/jobs/1", "Sec-Fetch-Site": "same-origin"}, True),
    ({"Referer": f"{OWN}/jobs/1"}, True),
    ({"Sec-Fetch-Site": "same-origin"}, True),
    ({"Sec-Fetch-Site": "none"}, True),
    ({"Origin": "null"}, False),
    ({"Origin": ""}, False),
    ({"Origin": "https://elsewhere.example"}, False),
    ({"Origin": "http://localhost:3000"}, False),
    ({"Origin": "http://localhost.elsewhere.example"}, False),
    ({"Origin": "http://localhost@elsewhere.example"}, False),
    ({"Origin": "http://[::1"}, False),
    ({"Origin": "file://localhost"}, False),
    ({"Referer": "https://elsewhere.example/localhost"}, False),
    ({"Referer": "http://localhost:3000/"}, False),
    ({"Referer": "about:blank"}, False),
    ({"Sec-Fetch-Site": "cross-site"}, False),
    ({"Sec-Fetch-Site": "same-site"}, False),
    ({"Sec-Fetch-Site": "Same-Origin, cross-site"}, False),
    ({"Sec-Fetch-Site": ""}, False),
    ({"Origin": OWN, "Sec-Fetch-Site": "cross-site"}, False),
    ({"Forwarded": "for=192.0.2.1"}, False),
    ({"X-Forwarded-For": ""}, False),
    ({"X-Forwarded-Anything": "x"}, False),
    ({"X-Real-IP": "192.0.2.1"}, False),
    ({"Via": "1.1 proxy", "Origin": OWN}, False),
    ({"Origin": OWN, "Referer": "https://elsewhere.example/"}, False),
    ({"Origin": "https://elsewhere.example", "Sec-Fetch-Site": "same-origin"}, False),
]
"""What a request says of where it comes from, and whether it may write then."""
PROXIED = {"Forwarded", "X-Forwarded-For", "X-Forwarded-Anything", "X-Real-IP", "Via"}
"""Who comes through a proxy is nobody in particular, also where this machine needs no account."""


@pytest.fixture
def writing(registry: LocalRegistry) -> Iterator[FlaskClient]:
    """A client of a catalog that may be written, with a job that waits."""
    with registry.catalog.writing() as session:
        enqueue_job(session, "report", {})
    with create_app(registry, WebSettings(personal=True)).test_client() as client:
        yield client


@pytest.fixture
def only_reading(writing: FlaskClient, registry: LocalRegistry) -> Iterator[FlaskClient]:
    """A client of the same catalog behind a server that only reads."""
    with create_app(registry, WebSettings(personal=True, read_only=True)).test_client() as client:
        yield client


def token_of(client: FlaskClient, address: str = "/jobs/1") -> str:
    """The token in the form of a page; the client has its cookie from there on."""
    found = re.search(r'name="form_token" value="([^"]+)"', client.get(address).text)
    assert found is not None
    return found[1]


def sent(client: FlaskClient, token: str | None, headers: dict[str, str] | None = None) -> TestResponse:
    return client.post(FORM, data={"other": "x"} if token is None else {"form_token": token}, headers=headers)


def state(client: FlaskClient) -> str:
    return str(client.get("/jobs/1.json").get_json()["state"])


@pytest.mark.parametrize(("headers", "may"), HEADERS, ids=str)
def test_the_api_accepts_writes_only_from_programs_and_its_own_pages(
    headers: dict[str, str], may: bool, writing: FlaskClient
) -> None:
    answer = writing.delete(API, headers=headers)
    wanted = 200 if may else 401 if headers.keys() & PROXIED else 403
    assert answer.status_code == wanted
    assert state(writing) == ("cancelled" if may else "queued")
    if not may:
        refused = answer.get_json()
        assert (refused["status"], set(refused)) == (wanted, set(Problem.__struct_fields__))
        assert "other sites" in refused["detail"] or "account" in refused["detail"]


@pytest.mark.parametrize(("headers", "may"), HEADERS, ids=str)
def test_a_form_is_accepted_only_from_own_pages_even_with_its_token(
    headers: dict[str, str], may: bool, writing: FlaskClient
) -> None:
    answer = sent(writing, token_of(writing), headers)
    assert answer.status_code == (303 if may else 401 if headers.keys() & PROXIED else 403)
    assert state(writing) == ("cancelled" if may else "queued")
    if may:
        assert answer.headers["Location"] == "/jobs/1"
        assert writing.get(answer.headers["Location"]).status_code == 200
    else:
        assert answer.mimetype == "text/html"


@pytest.mark.parametrize("token", [None, "", "x", "A" * 43, "ü" * 43, "A" * 100_000])
def test_a_form_without_its_token_is_refused(token: str | None, writing: FlaskClient) -> None:
    token_of(writing)
    answer = sent(writing, token)
    assert answer.status_code == 403
    assert "Load the page again" in answer.text
    assert state(writing) == "queued"


def test_a_form_without_its_cookie_is_refused(writing: FlaskClient) -> None:
    token = token_of(writing)
    writing.delete_cookie(COOKIE)
    assert sent(writing, token).status_code == 403
    for odd in ("", "x", "a" * 42 + "!"):
        writing.set_cookie(COOKIE, odd)
        assert sent(writing, odd).status_code == 403
    assert state(writing) == "queued"


@pytest.mark.parametrize("kind", ["application/json", "text/plain", ""])
def test_a_body_that_is_not_a_form_is_refused(kind: str, writing: FlaskClient) -> None:
    token = token_of(writing)
    answer = writing.post(FORM, data=f"form_token={token}", content_type=kind)
    assert answer.status_code == 415
    assert state(writing) == "queued"


def test_the_cookie_of_forms_is_bound_to_this_site_and_hidden_from_scripts(writing: FlaskClient) -> None:
    cookie = writing.get("/jobs/1").headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" in writing.get("/jobs/1", base_url="https://localhost").headers["Set-Cookie"]


def test_each_browser_keeps_its_own_form_token(writing: FlaskClient) -> None:
    app = writing.application
    one, other = app.test_client(), app.test_client()
    first = token_of(one)
    assert token_of(one) == first
    assert token_of(other) != first
    answer = other.get("/jobs/1")
    assert answer.headers["Cache-Control"] == "private, no-cache"
    assert "Cookie" in answer.headers["Vary"]
    assert sent(other, first).status_code == 403


def test_a_page_without_a_form_sets_no_cookie(writing: FlaskClient) -> None:
    for address in ("/", "/jobs", "/jobs/1.json", "/api/v1/jobs/1"):
        assert "Set-Cookie" not in writing.get(address).headers, address
    assert "Set-Cookie" not in writing.delete(API).headers


def test_a_read_only_server_has_no_forms_and_refuses_writes(only_reading: FlaskClient, registry: LocalRegistry) -> None:
    for address in ("/", "/compose", "/chimeras", "/jobs"):
        page = only_reading.get(address)
        assert 'method="post"' not in page.text
        assert "Set-Cookie" not in page.headers
    for answer in (only_reading.delete(API), sent(only_reading, "A" * 43)):
        assert answer.status_code == 403
        assert "read-only" in answer.text
        assert answer.headers["Cache-Control"] == "no-store"
    with registry.catalog.reading() as session:
        assert job_by_id(session, 1).state == "queued"


@pytest.mark.parametrize("host", ["elsewhere.example", "localhost.elsewhere.example"])
def test_a_foreign_name_that_resolves_to_this_machine_cannot_write(host: str, writing: FlaskClient) -> None:
    headers = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
    assert writing.delete(API, headers=headers).status_code == 421
    assert writing.post(FORM, headers=headers).status_code == 421
    assert state(writing) == "queued"


def test_a_form_address_refuses_get_and_head(writing: FlaskClient) -> None:
    answer = writing.get(FORM)
    assert answer.status_code == 405
    assert "POST" in answer.headers["Allow"]
    assert writing.head(FORM).status_code == 405
    options = writing.options(API)
    assert set(options.headers["Allow"].split(", ")) == {"GET", "HEAD", "OPTIONS", "DELETE"}
    assert not [name for name, _ in options.headers if name.lower().startswith("access-control")]
    assert state(writing) == "queued"


def test_own_pages_get_a_referrer_and_other_sites_get_none(writing: FlaskClient) -> None:
    assert writing.get("/jobs/1").headers["Referrer-Policy"] == "same-origin"


@pytest.mark.parametrize(
    ("host", "allowed", "may"),
    [
        ("127.0.0.1", (), True),
        ("127.8.9.1", (), True),
        ("::1", (), True),
        ("localhost", (), True),
        ("127.0.0.1", ("atlas.example",), False),
        ("127.0.0.1", ("*",), False),
        ("0.0.0.0", (), False),
        ("::", (), False),
        ("", (), False),
        ("192.168.1.5", (), False),
        ("localhost.elsewhere.example", (), False),
        ("::ffff:192.168.1.5", (), False),
    ],
)
def test_a_server_accepts_writes_if_only_its_machine_can_reach_it(
    host: str, allowed: tuple[str, ...], may: bool
) -> None:
    assert is_personal(host, allowed) is may


def test_a_server_is_read_only_by_default() -> None:
    assert WebSettings() == WebSettings(hosts=LOOPBACK_HOSTS, personal=False, read_only=False, proxies=0)


def test_clients_behind_a_proxy_get_pages_without_forms_and_no_jobs(writing: FlaskClient) -> None:
    """Also where the same page was kept for somebody of this machine, and the other way round."""
    proxied = {"X-Forwarded-For": "192.0.2.1"}
    for _ in range(2):
        assert writing.get("/jobs").status_code == writing.get("/api/v1/jobs").status_code == 200
        assert "/jobs" in parse_page(writing.get("/").text).links()
        for address in (*JOB_ADDRESSES, "/jobs.csv"):
            assert writing.get(address, headers=proxied).status_code == 404, address
        assert "/jobs" not in parse_page(writing.get("/", headers=proxied).text).links()


def test_a_read_only_server_shows_no_jobs(only_reading: FlaskClient) -> None:
    for address in JOB_ADDRESSES:
        assert only_reading.get(address).status_code == 404, address
    assert "/jobs" not in parse_page(only_reading.get("/").text).links()
