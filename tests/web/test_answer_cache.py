"""Answers from memory: the same bytes, never older than the catalog, never what must not be kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from flask import Flask, request
from flask.testing import FlaskClient

from organs.registry.local import LocalRegistry
from organs.web.answer_cache import (
    ANSWERED_HEADER,
    ROW_BYTES,
    AnswerCache,
    _CachedAnswer,
    reveal_headers,
)
from organs.web.app import create_app
from organs.web.responses import REGISTRY_KEY
from organs.web.settings import WebSettings
from tests.small_models import ingest_file, small_model
from tests.web.test_every_route import addresses

HOSTILE_HEADERS = {
    "Accept": "application/vnd.docker.distribution.manifest.v2+json",
    "Accept-Encoding": "gzip",
    "Accept-Language": "x-hostile",
    "Content-Type": "text/hostile",
    "Cookie": "other=hostile; organ_form=" + "h" * 43,
    "Forwarded": "for=192.0.2.66;host=hostile.example",
    "If-Match": '"hostile"',
    "If-Modified-Since": "Sun, 06 Nov 2044 08:49:37 GMT",
    "If-None-Match": "*",
    "If-Range": '"hostile"',
    "Origin": "http://hostile.example",
    "Referer": "http://localhost/organs?hostile",
    "Sec-Fetch-Site": "cross-site",
    "User-Agent": "hostile",
    "X-Forwarded-For": "192.0.2.66",
    "X-Forwarded-Host": "hostile.example",
    "X-Forwarded-Prefix": "/hostile",
    "X-Forwarded-Proto": "hostile",
    "X-Hostile": "hostile",
}
NEVER_KEPT_HEADERS = {"Range": "bytes=0-3", "Authorization": "Bearer hostile", "Cookie": "organ_session=hostile"}


def test_the_second_answer_comes_from_memory_and_is_the_same(family_client: FlaskClient) -> None:
    for address in ("/", "/organs?q=type:organ", "/api/v1/organs", "/models/local/tuned", "/organs.csv"):
        first, second = family_client.get(address), family_client.get(address)
        assert "X-Answered" not in first.headers
        assert second.headers["X-Answered"] == "memory", address
        assert second.data == first.data
        for name in ("Content-Type", "ETag", "Cache-Control", "Content-Security-Policy"):
            assert second.headers[name] == first.headers[name], (address, name)


def test_nothing_is_answered_from_before_a_commit(registry: LocalRegistry, tmp_path: Path) -> None:
    with create_app(registry).test_client() as client:
        for number in range(3):
            before = client.get("/api/v1/models").get_json()["items"]
            assert len(before) == number
            path = tmp_path / f"model-{number}.gguf"
            path.write_bytes(small_model(f"Model {number}", seed=number))
            with LocalRegistry.open(registry.settings.home) as another:
                ingest_file(another, path)


def test_who_has_an_answer_already_gets_304(family_client: FlaskClient) -> None:
    for _ in range(2):
        tag = family_client.get("/organs").headers["ETag"]
        answer = family_client.get("/organs", headers={"If-None-Match": tag})
        assert (answer.status_code, answer.data) == (304, b"")
        assert family_client.get("/organs", headers={"If-None-Match": '"other"'}).status_code == 200


def test_addresses_that_differ_in_anything_are_different(family_client: FlaskClient) -> None:
    answers = [
        family_client.get(f"/api/v1/{asked}").data for asked in ("organs?limit=1", "organs?limit=2", "models?limit=1")
    ]
    assert len(set(answers)) == 3
    assert family_client.get("/api/v1/organs%3Flimit=1").status_code == 404


def test_nobody_is_answered_with_the_links_of_who_asked_by_another_name(family_client: FlaskClient) -> None:
    with create_app(
        family_client.application.extensions[REGISTRY_KEY], WebSettings(frozenset({"*"}))
    ).test_client() as client:
        for others in (
            {"headers": {"Host": "evil.example"}},
            {"environ_overrides": {"SCRIPT_NAME": "//evil.example"}},
            {"environ_overrides": {"wsgi.url_scheme": "evil"}},
        ):
            assert "evil" in client.get("/models/local/tuned", **others).text
            own = client.get("/models/local/tuned")
            assert "evil" not in own.text
            assert "http://localhost/models/local/tuned@1.gguf" in own.text


def test_errors_and_health_are_not_kept(family_client: FlaskClient) -> None:
    for address in ("/organs?q=thta:1", "/nowhere", "/healthz"):
        assert "X-Answered" not in family_client.get(address).headers
        assert "X-Answered" not in family_client.get(address).headers, address


def test_memory_is_bounded_and_forgets_the_longest_unused() -> None:
    memory = AnswerCache(3 * (100 + 1 + ROW_BYTES))
    assert memory.get(1, "a") is None
    for address in "abc":
        memory.put(1, address, _CachedAnswer(bytes(100), ()))
    assert memory.get(1, "a") is not None
    memory.put(1, "d", _CachedAnswer(bytes(100), ()))
    assert [address for address in "abcd" if memory.get(1, address) is None] == ["b"]
    assert memory.get(2, "a") is None
    assert memory.get(1, "a") is None, "nothing of an older version is left"


def test_long_addresses_and_headers_count_too() -> None:
    memory = AnswerCache(20_000)
    memory.get(1, "a")
    for number in range(100):
        memory.put(1, f"{number:04}" + "x" * 4000, _CachedAnswer(b"", (("Link", "y" * 4000),)))
    assert len(memory) == 2


def test_an_answer_of_an_older_version_is_not_kept() -> None:
    memory = AnswerCache(10_000)
    memory.get(2, "a")
    memory.put(1, "a", _CachedAnswer(b"old", ()))
    assert memory.get(2, "a") is None


def test_memory_can_be_turned_off(registry: LocalRegistry) -> None:
    with create_app(registry, WebSettings(cache_bytes=0)).test_client() as client:
        client.get("/")
        assert "X-Answered" not in client.get("/").headers


@pytest.mark.long
def test_no_header_that_one_client_sends_is_in_the_answer_of_another(hostile_client: FlaskClient) -> None:
    registry = hostile_client.application.extensions[REGISTRY_KEY]
    asked = [address for address in addresses(hostile_client) if "?" not in address]
    fresh, shared = (create_app(registry).test_client(use_cookies=False) for _ in range(2))
    kept = shown = 0
    for address in asked:
        address = shared.get(address).headers.get("Location", address)  # of a JSON twin: the resource of the API
        shared.get(address, headers=HOSTILE_HEADERS, environ_base={"REMOTE_ADDR": "192.0.2.66"}).close()
        with shared.get(address, headers={"Via": "1.1 proxy"}) as answer:  # the same key: a proxy sent both
            shown += answer.status_code == 200
            if ANSWERED_HEADER in answer.headers:
                kept += 1
                plain = fresh.get(address)
                assert (answer.data, answer.headers["ETag"]) == (plain.data, plain.headers["ETag"]), address
    assert kept > 2 * shown // 3


def test_the_page_for_logging_in_leads_nobody_where_another_came_from(registry: LocalRegistry) -> None:
    client = create_app(registry).test_client()
    for referrer, following in (("http://localhost/organs?q=secret", "/organs?q=secret"), (None, None)):
        headers = {} if referrer is None else {"Referer": referrer}
        assert client.get("/login.json", headers=headers).get_json()["next"] == following


@pytest.mark.parametrize("name", NEVER_KEPT_HEADERS)
def test_an_answer_to_a_part_or_to_somebody_is_neither_kept_nor_given_from_memory(
    family_client: FlaskClient, name: str
) -> None:
    client = family_client.application.test_client(use_cookies=False)
    for _ in range(2):
        assert ANSWERED_HEADER not in client.get("/api/v1/models", headers={name: NEVER_KEPT_HEADERS[name]}).headers
    assert ANSWERED_HEADER not in client.get("/api/v1/models").headers
    assert ANSWERED_HEADER in client.get("/api/v1/models").headers
    assert ANSWERED_HEADER not in client.get("/api/v1/models", headers={name: NEVER_KEPT_HEADERS[name]}).headers


def test_a_view_sees_only_what_is_part_of_the_key_or_its_answer_is_not_kept(registry: LocalRegistry) -> None:
    app = create_app(registry)
    seen_by_view: list[object] = []

    def look() -> str:
        if "reveal" in request.args:
            reveal_headers()
        seen_by_view[:] = [*request.headers.items(), request.remote_addr, request.referrer, dict(request.cookies)]
        return "answer"

    app.view_functions["pages.home"] = lambda: with_tag(app, look())
    client = app.test_client(use_cookies=False)
    client.get("/", headers=HOSTILE_HEADERS)
    assert seen_by_view == [("Host", "localhost"), None, None, {}]
    assert ANSWERED_HEADER in client.get("/", headers={"Via": "1.1 proxy"}).headers
    for _ in range(2):
        assert ANSWERED_HEADER not in client.get("/?reveal", headers=HOSTILE_HEADERS).headers
    assert ("Referer", HOSTILE_HEADERS["Referer"]) in seen_by_view
    assert seen_by_view[-1] == {"other": "hostile", "organ_form": "h" * 43}


def test_a_page_that_a_proxy_asks_for_is_not_that_of_who_works_at_this_machine(registry: LocalRegistry) -> None:
    with create_app(registry, WebSettings(personal=True)).test_client() as client:
        assert client.get("/api/v1/account").status_code == 200
        for _ in range(2):
            assert client.get("/api/v1/account", headers={"Via": "1.1 proxy"}).status_code == 401


def with_tag(app: Flask, text: str) -> object:
    answer = app.response_class(text)
    answer.add_etag()
    return answer
