"""Writing without an account: the address of the server, the origin of the page and the token of the form decide."""

from __future__ import annotations

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
from organs.web.settings import WebSettings
from tests.web.accounts import form_token
from tests.web.page_parser import parse_page

PAGE, FORM, API = "/jobs/1", "/jobs/1/cancel", "/api/v1/jobs/2"
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
    ({"Origin": OWN, "Referer": f"{OWN}/jobs/1", "Sec-Fetch-Site": "same-origin"}, True),
    ({"Referer": f"{OWN}/jobs/1"}, True),
    ({"Sec-Fetch-Site": "same-origin"}, True),
    ({"Origin": "null"}, False),
    ({"Origin": "https://elsewhere.example"}, False),
    ({"Origin": "http://localhost:3000"}, False),
    ({"Origin": "http://localhost.elsewhere.example"}, False),
    ({"Origin": "http://[::1"}, False),
    ({"Referer": "https://elsewhere.example/localhost"}, False),
    ({"Referer": "about:blank"}, False),
    ({"Sec-Fetch-Site": "cross-site"}, False),
    ({"Sec-Fetch-Site": "same-site"}, False),
    ({"Sec-Fetch-Site": ""}, False),
    ({"Origin": OWN, "Sec-Fetch-Site": "cross-site"}, False),
    ({"Forwarded": "for=192.0.2.1"}, False),
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
    """A client of a catalog that may be written, with two jobs that wait."""
    with registry.catalog.writing() as session:
        for _ in range(2):
            enqueue_job(session, "report", {})
    with create_app(registry, WebSettings(personal=True)).test_client() as client:
        yield client


@pytest.fixture
def only_reading(writing: FlaskClient, registry: LocalRegistry) -> Iterator[FlaskClient]:
    """A client of the same catalog behind a server that only reads."""
    with create_app(registry, WebSettings(personal=True, read_only=True)).test_client() as client:
        yield client


def sent(client: FlaskClient, token: str | None, headers: dict[str, str] | None = None) -> TestResponse:
    return client.post(FORM, data={"other": "x"} if token is None else {"form_token": token}, headers=headers)


def states(client: FlaskClient) -> set[str]:
    """The states of both jobs."""
    return {client.get(f"/jobs/{number}.json").get_json()["state"] for number in (1, 2)}


@pytest.mark.parametrize(("headers", "may"), HEADERS, ids=str)
def test_writes_are_accepted_only_from_programs_and_own_pages(
    headers: dict[str, str], may: bool, writing: FlaskClient
) -> None:
    """Also of a form with its token."""
    refusal = 401 if headers.keys() & PROXIED else 403
    form = sent(writing, form_token(writing, PAGE), headers)
    assert form.status_code == (303 if may else refusal)
    assert form.headers.get("Location") == (PAGE if may else None)
    answer = writing.delete(API, headers=headers)
    assert answer.status_code == (200 if may else refusal)
    assert may or set(answer.get_json()) == set(Problem.__struct_fields__)
    assert states(writing) == {"cancelled" if may else "queued"}


@pytest.mark.parametrize("token", [None, "", "x", "A" * 43, "ü" * 43, "A" * 100_000])
def test_a_form_without_its_token_is_refused(token: str | None, writing: FlaskClient) -> None:
    form_token(writing, PAGE)
    answer = sent(writing, token)
    assert answer.status_code == 403
    assert "Load the page again" in answer.text
    assert states(writing) == {"queued"}


@pytest.mark.parametrize("cookie", [None, "", "x", "a" * 42 + "!"])
def test_a_form_without_its_cookie_is_refused(cookie: str | None, writing: FlaskClient) -> None:
    token = form_token(writing, PAGE)
    writing.delete_cookie(COOKIE)
    if cookie is not None:
        writing.set_cookie(COOKIE, cookie)
    assert sent(writing, token if cookie is None else cookie).status_code == 403
    assert states(writing) == {"queued"}


@pytest.mark.parametrize("kind", ["application/json", "text/plain", ""])
def test_a_body_that_is_not_a_form_is_refused(kind: str, writing: FlaskClient) -> None:
    token = form_token(writing, PAGE)
    answer = writing.post(FORM, data=f"form_token={token}", content_type=kind)
    assert answer.status_code == 415
    assert states(writing) == {"queued"}


def test_the_cookie_of_forms_is_bound_to_this_site_and_hidden_from_scripts(writing: FlaskClient) -> None:
    page = writing.get("/jobs/1")
    assert page.headers["Referrer-Policy"] == "same-origin"
    cookie = page.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" in writing.get("/jobs/1", base_url="https://localhost").headers["Set-Cookie"]


def test_each_browser_keeps_its_own_form_token(writing: FlaskClient) -> None:
    app = writing.application
    one, other = app.test_client(), app.test_client()
    first = form_token(one, PAGE)
    assert form_token(one, PAGE) == first
    assert form_token(other, PAGE) != first
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
    for address in JOB_ADDRESSES:
        assert only_reading.get(address).status_code == 404, address
    assert only_reading.get("/login").status_code == 404
    assert not {"/jobs", "/login"} & parse_page(only_reading.get("/").text).links()
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
    assert states(writing) == {"queued"}


def test_a_form_address_refuses_get_and_other_sites_are_allowed_nothing(writing: FlaskClient) -> None:
    answer = writing.get(FORM)
    assert (answer.status_code, "POST" in answer.headers["Allow"]) == (405, True)
    assert not [name for name, _ in writing.options(API).headers if name.lower().startswith("access-control")]
    assert states(writing) == {"queued"}


@pytest.mark.parametrize(
    ("host", "allowed", "may"),
    [
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


def test_clients_behind_a_proxy_get_pages_without_forms_and_no_jobs(writing: FlaskClient) -> None:
    """Also where the same page was kept for somebody of this machine, and the other way round."""
    proxied = {"X-Forwarded-For": "192.0.2.1"}
    for _ in range(2):
        assert writing.get("/jobs").status_code == writing.get("/api/v1/jobs").status_code == 200
        assert "/jobs" in parse_page(writing.get("/").text).links()
        for address in (*JOB_ADDRESSES, "/jobs.csv"):
            expected = 303 if address in ("/jobs", "/jobs/1") else 404  # pages for people lead to the log-in
            assert writing.get(address, headers=proxied).status_code == expected, address
        assert "/jobs" not in parse_page(writing.get("/", headers=proxied).text).links()
