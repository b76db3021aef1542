"""Answers from memory: the same bytes, never older than the catalog, never what must not be kept."""

from __future__ import annotations

from pathlib import Path

from flask.testing import FlaskClient

from registry.registry import Registry
from tests.trips import ingest_file, little_model
from web.answers import REGISTRY_KEY
from web.app import create_app
from web.memory import ROW_BYTES, AnswerMemory, _Kept
from web.settings import WebSettings


def test_the_second_answer_comes_from_memory_and_is_the_same(little: FlaskClient) -> None:
    for address in ("/", "/organs?q=type:organ", "/organs.json", "/models/local/tuned", "/organs.csv"):
        first, second = little.get(address), little.get(address)
        assert "X-Answered" not in first.headers
        assert second.headers["X-Answered"] == "memory", address
        assert second.data == first.data
        for name in ("Content-Type", "ETag", "Cache-Control", "Content-Security-Policy"):
            assert second.headers[name] == first.headers[name], (address, name)


def test_nothing_is_answered_from_before_a_commit(registry: Registry, tmp_path: Path) -> None:
    with create_app(registry).test_client() as client:
        for number in range(3):
            before = client.get("/models.json").get_json()["items"]
            assert len(before) == number
            path = tmp_path / f"model-{number}.gguf"
            path.write_bytes(little_model(f"Model {number}", seed=number))
            with Registry.open(registry.settings.home) as another:
                ingest_file(another, path)


def test_who_has_an_answer_already_gets_304(little: FlaskClient) -> None:
    for _ in range(2):
        tag = little.get("/organs").headers["ETag"]
        answer = little.get("/organs", headers={"If-None-Match": tag})
        assert (answer.status_code, answer.data) == (304, b"")
        assert little.get("/organs", headers={"If-None-Match": '"other"'}).status_code == 200


def test_addresses_that_differ_in_anything_are_different(little: FlaskClient) -> None:
    assert little.get("/organs.json?limit=1").data != little.get("/organs.json?limit=2").data
    assert little.get("/organs.json?limit=1").data != little.get("/models.json?limit=1").data


def test_nobody_is_answered_with_the_links_of_who_asked_by_another_name(little: FlaskClient) -> None:
    with create_app(little.application.extensions[REGISTRY_KEY], WebSettings(frozenset({"*"}))).test_client() as client:
        for others in (
            {"headers": {"Host": "evil.example"}},
            {"environ_overrides": {"SCRIPT_NAME": "//evil.example"}},
            {"environ_overrides": {"wsgi.url_scheme": "evil"}},
        ):
            assert "evil" in client.get("/models/local/tuned", **others).text
            own = client.get("/models/local/tuned")
            assert "evil" not in own.text
            assert "http://localhost/models/local/tuned@1.gguf" in own.text


def test_an_address_with_a_question_mark_in_its_path_is_another(little: FlaskClient) -> None:
    assert little.get("/organs.json?limit=1&").status_code == 200
    assert little.get("/organs.json%3Flimit=1&").status_code == 404


def test_errors_and_health_are_not_kept(little: FlaskClient) -> None:
    for address in ("/organs?q=thta:1", "/nowhere", "/healthz"):
        assert "X-Answered" not in little.get(address).headers
        assert "X-Answered" not in little.get(address).headers, address


def test_memory_is_bounded_and_forgets_the_longest_unused() -> None:
    memory = AnswerMemory(3 * (100 + 1 + ROW_BYTES))
    assert memory.get(1, "a") is None
    for address in "abc":
        memory.put(1, address, _Kept(bytes(100), ()))
    assert memory.get(1, "a") is not None
    memory.put(1, "d", _Kept(bytes(100), ()))
    assert [address for address in "abcd" if memory.get(1, address) is None] == ["b"]
    assert memory.get(2, "a") is None
    assert memory.get(1, "a") is None, "nothing of an older version is left"


def test_long_addresses_and_headers_count_too() -> None:
    memory = AnswerMemory(20_000)
    memory.get(1, "a")
    for number in range(100):
        memory.put(1, f"{number:04}" + "x" * 4000, _Kept(b"", (("Link", "y" * 4000),)))
    assert len(memory) == 2


def test_an_answer_of_an_older_version_is_not_kept() -> None:
    memory = AnswerMemory(10_000)
    memory.get(2, "a")
    memory.put(1, "a", _Kept(b"old", ()))
    assert memory.get(2, "a") is None


def test_memory_can_be_turned_off(registry: Registry) -> None:
    with create_app(registry, WebSettings(remembered_bytes=0)).test_client() as client:
        client.get("/")
        assert "X-Answered" not in client.get("/").headers
