"""Try it: a prompt on the page of a model, its answer, and the same by the API."""

from __future__ import annotations

import re
from threading import Event
from typing import Any

import pytest
from flask.testing import FlaskClient

from organs.ingest.answering import HIDDEN, PromptRunner
from organs.registry.errors import DiskFull
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.settings import PromptLimits, WebSettings
from tests.registry_templates import RegistryTemplates, add_zoo_models
from tests.web.accounts import form_token, new_token, program

MODEL, LORA = "local/Zoo-A-2M-v1.0-F16", "local/Zoo-A-2M-Code-LoRA-v1.0-F32"
LIMITS = PromptLimits(model_max_bytes=10**7, characters_max=200, tokens_max=20, seconds=60.0, hourly=5)
HOSTILE = "<script>alert(1)</script> <|im_end|> {{ 7*7 }}"


@pytest.fixture
def zoo(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    templates.fill(registry, add_zoo_models)
    return registry


@pytest.fixture
def visitor(zoo: LocalRegistry) -> FlaskClient:
    """Somebody without an account on a shared server that answers prompts."""
    return create_app(zoo, WebSettings(prompts=LIMITS)).test_client()


def asking(text: str = "def ", **more: Any) -> dict[str, Any]:
    values = {"model": MODEL, "messages": [{"role": "user", "content": text}], "tokens": 8, "seed": 3}
    return {"json": {**values, **more}}


def answer_all(registry: LocalRegistry) -> None:
    PromptRunner(registry, Event()).run(once=True)


def test_a_server_answers_no_prompts_unless_it_is_turned_on(zoo: LocalRegistry) -> None:
    for settings in (WebSettings(), WebSettings(read_only=True, prompts=LIMITS)):
        with create_app(zoo, settings).test_client() as client:
            assert 'id="try"' not in client.get(f"/models/{MODEL}").text
            assert client.get(f"/models/{MODEL}/try").status_code == 404
            assert client.post("/api/v1/answers", **asking()).status_code == (403 if settings.read_only else 404)
            assert client.get(f"/api/v1/answers/{'0' * 32}").status_code == 404


def test_a_prompt_waits_is_answered_and_is_read_by_its_key(zoo: LocalRegistry, visitor: FlaskClient) -> None:
    first = visitor.post("/api/v1/answers", **asking())
    assert first.status_code == 202
    key = first.get_json()["key"]
    second = visitor.post("/api/v1/answers", **asking()).get_json()
    assert [first.get_json()["position"], second["position"]] == [1, 2]
    page = visitor.get(f"/answers/{key}")
    assert "place 1 in the queue" in page.text
    assert 'http-equiv="refresh"' in page.text
    answer_all(zoo)
    found, again = (visitor.get(f"/api/v1/answers/{one}").get_json() for one in (key, second["key"]))
    assert found["state"] == "finished"
    assert found["replies"] == again["replies"]
    assert (found["replies"][0]["tokens"], found["replies"][0]["ended"]) == (8, "tokens")
    assert "X-Answered" not in visitor.get(f"/api/v1/answers/{key}").headers
    shown = visitor.get(f"/answers/{key}").text
    assert "Complete. Seed 3" in shown
    assert "refresh" not in shown
    assert visitor.delete(f"/api/v1/answers/{key}").status_code == 200
    assert visitor.get(f"/answers/{key}").status_code == 404


def test_the_form_asks_beside_the_base_shows_errors_and_everything_as_text(
    zoo: LocalRegistry, visitor: FlaskClient
) -> None:
    zoo.compose(MODEL).graft("local/Zoo-A-2M-Code-v1.0-F16", type="organ").named("me/coder").plan().register()
    assert 'href="/models/me/coder@1/try"' in visitor.get("/models/me/coder").text
    address = "/models/me/coder@1/try"
    assert f"beside {MODEL}@1" in re.sub(r"<wbr>", "", visitor.get(address).text)
    fields = {"form_token": form_token(visitor, address), "prompt": HOSTILE, "beside": "on"}
    wrong = visitor.post(address, data={**fields, "temperature": "nan"})
    assert wrong.status_code == 400
    assert "The temperature must be a number from 0 to 2" in wrong.text
    assert "&lt;script&gt;alert(1)" in wrong.text
    assert "a whole number from 0 to 4,294,967,295" in visitor.post(address, data={**fields, "seed": "0.5"}).text
    sent = visitor.post(address, data=fields)
    assert sent.status_code == 303
    answer_all(zoo)
    page = visitor.get(sent.headers["Location"])
    assert page.text.count("data-reply") == 2
    assert re.findall(r"<h2>([A-Z]\w+): <a ", page.text) == ["Chimera", "Base"]
    assert "&lt;script&gt;alert(1)" in page.text
    assert "<script>alert" not in page.text
    models = [reply["model"] for reply in visitor.get(f"{sent.headers['Location']}.json").get_json()["replies"]]
    assert models == ["me/coder@1", f"{MODEL}@1"]


def test_what_cannot_answer_or_is_too_much_is_refused_with_the_reason(zoo: LocalRegistry, visitor: FlaskClient) -> None:
    assert "An adapter answers only together with its base" in visitor.get(f"/models/{LORA}").text
    too_much = {
        "only together with its base": asking(model=LORA),
        "201 characters": asking("x" * 201),
        "21 tokens": asking(tokens=21),
        "the last message must be": asking(""),
    }
    for reason, request in too_much.items():
        answer = visitor.post("/api/v1/answers", **request)
        assert answer.status_code == 400
        assert reason in answer.get_json()["detail"]
    with create_app(zoo, WebSettings(prompts=PromptLimits(model_max_bytes=10**6))).test_client() as small:
        assert "this server runs models of up to 1.0 MB" in small.get(f"/models/{MODEL}").text
        assert small.post("/api/v1/answers", **asking()).status_code == 400


def test_each_account_and_address_has_its_own_rate_and_its_own_answers(
    zoo: LocalRegistry, visitor: FlaskClient
) -> None:
    for _ in range(LIMITS.hourly):
        key = visitor.post("/api/v1/answers", **asking()).get_json()["key"]
        visitor.delete(f"/api/v1/answers/{key}")
    refused = visitor.post("/api/v1/answers", **asking())
    assert refused.status_code == 429
    assert "too many requests" in refused.get_json()["detail"]
    address = f"/models/{MODEL}/try"
    kept = visitor.post(address, data={"form_token": form_token(visitor, address), "prompt": "my long text"})
    assert (kept.status_code, ">my long text</textarea>" in kept.text) == (429, True)
    other = visitor.post("/api/v1/answers", **asking(), environ_base={"REMOTE_ADDR": "198.51.100.7"})
    assert other.status_code == 202
    ada, bob = (program(visitor.application, new_token(zoo, name)) for name in ("ada", "bob"))
    own = ada.post("/api/v1/answers", **asking())
    assert own.status_code == 202, own.text
    key = own.get_json()["key"]
    assert [client.get(f"/api/v1/answers/{key}").status_code for client in (ada, bob, visitor)] == [200, 404, 404]
    assert bob.delete(f"/api/v1/answers/{key}").status_code == 404


def test_after_a_prompt_that_broke_the_next_is_answered_and_no_text_is_in_the_log(
    zoo: LocalRegistry, visitor: FlaskClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    keys = [visitor.post("/api/v1/answers", **asking("a secret word")).get_json()["key"] for _ in range(3)]
    usual, calls = PromptRunner._replies, []

    def fails_first(self: PromptRunner, claim: Any, lost: Event) -> Any:
        calls.append(claim)
        if len(calls) == 1:
            raise ValueError("a secret word")
        if len(calls) == 2:
            raise DiskFull("the disk of /srv/organs is full")
        return usual(self, claim, lost)

    monkeypatch.setattr(PromptRunner, "_replies", fails_first)
    answer_all(zoo)
    first, second, third = (visitor.get(f"/api/v1/answers/{key}").get_json() for key in keys)
    assert [found["state"] for found in (first, second, third)] == ["failed", "failed", "finished"]
    assert first["replies"][0]["problem"] == "an internal error (ValueError)"
    assert second["replies"][0]["problem"] == HIDDEN
    assert "/srv/organs" in caplog.text
    assert "broke" in caplog.text
    assert "secret" not in caplog.text
