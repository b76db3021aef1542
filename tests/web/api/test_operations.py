"""Planning, composing and everything else that is asked for: over the API, from the request to what came of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from organs.ingest.jobs.runner import Runner
from organs.registry.compose.recipe import read_recipe
from organs.registry.entities.problem import ERRORS_MAX
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.settings import WebSettings
from tests.compose.bad_recipes import BAD
from tests.registry_templates import RegistryTemplates, add_three_models
from tests.small_models import row_counts
from tests.web.api.document_checks import assert_as_described, assert_refused, faults
from tests.web.conftest import HOSTILE

ROOT = "/api/v1"
GRAFT = {"base": "local/base", "grafts": [{"from": "local/tuned", "type": "organ"}]}
STRANGE = {"base": "local/base", "grafts": [{"from": "local/stranger", "type": "organ"}]}
BODY_MAX_CHARACTERS = 200_000


@pytest.fixture
def kin(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    """A base, a fine-tune of it, and a stranger."""
    templates.fill(registry, add_three_models)
    return registry


@pytest.fixture
def reader(kin: LocalRegistry) -> Iterator[FlaskClient]:
    """A client of a server that only reads."""
    with create_app(kin).test_client() as client:
        yield client


@pytest.fixture
def writer(kin: LocalRegistry) -> FlaskClient:
    """A client of a server that writes, on the same registry."""
    return create_app(kin, WebSettings(personal=True)).test_client()


def post(client: FlaskClient, path: str, body: Any, **headers: str) -> TestResponse:
    return client.post(ROOT + path, data=json.dumps(body), content_type="application/json", headers=headers)


def planned(client: FlaskClient, body: Any) -> Any:
    """The answer to a plan, held against its schema."""
    answer = post(client, "/plans", body)
    assert answer.status_code == 200, answer.text[:300]
    return assert_as_described("plan", answer)


def test_a_read_only_server_makes_a_plan_and_writes_nothing(reader: FlaskClient, kin: LocalRegistry) -> None:
    before = row_counts(kin) | {"rate_counts": 0}
    found = planned(reader, GRAFT)
    assert found["can_be_made"] is True
    assert found["plan"]["lock_id"] == kin.compose(read_recipe(json.dumps(GRAFT))).plan().plan.lock().id
    assert found["plan"]["changed"] == len(found["plan"]["parts"]) == 4
    assert planned(reader, {"yaml": "base: local/base\ngrafts:\n- {from: local/tuned, type: organ}\n"}) == found
    assert row_counts(kin) | {"rate_counts": 0} == before


TEXTS = [
    (name, text, fields)
    for name, text, fields in BAD
    if isinstance(text, str) and len(json.dumps(text)) < BODY_MAX_CHARACTERS
]
"""Those whose bodies are taken at all."""


@pytest.mark.parametrize(("name", "text", "fields"), TEXTS, ids=[name for name, _, _ in TEXTS])
def test_a_bad_recipe_is_reported_by_field_by_plans_and_refused_by_chimeras(
    name: str, text: str, fields: list[str], empty_writer: FlaskClient
) -> None:
    answer = post(empty_writer, "/plans", {"yaml": text})
    if not text:
        assert_refused(answer, 400, "yaml")
        return
    found = assert_as_described("plan", answer)
    assert [one["field"] for one in found["findings"]] == fields, name
    assert found["plan"] is None
    refused = post(empty_writer, "/chimeras", {"yaml": text})
    assert_refused(refused, 400, fields[0] or None)
    assert [one["field"] or "" for one in refused.get_json()["errors"]] == fields[:ERRORS_MAX], name


@pytest.fixture(scope="module")
def empty_writer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlaskClient]:
    """A client of a server that writes, with nothing registered."""
    with LocalRegistry.open(tmp_path_factory.mktemp("empty")) as registry:
        yield create_app(registry, WebSettings(personal=True)).test_client()


@pytest.mark.parametrize("path", ["/plans", "/chimeras"])
def test_bodies_without_a_recipe_are_refused(path: str, empty_writer: FlaskClient) -> None:
    deep = {"base": "a", "metadata": {"k": [[[[[[[[[["x"]]]]]]]]]]}}
    two = {"yaml": "base: a", "base": "a"}
    for body, field in (([], None), ("base: a", None), (deep, None), (two, "yaml"), ({"yaml": None}, "yaml")):
        assert_refused(post(empty_writer, path, body), 400, field)
    assert empty_writer.post(ROOT + path, data={"yaml": "base: a"}).status_code == 415
    assert post(empty_writer, path, {"yaml": "#" * 300_000}).status_code == 413


def test_a_refused_recipe_and_an_unaccepted_warning_give_409_and_no_job(writer: FlaskClient) -> None:
    answer = post(writer, "/chimeras", STRANGE)
    assert "unrelated-lineage" in assert_refused(answer, 409, "accept")
    nobody = {"base": "local/base", "donor": "local/nobody", "type": "organ"}
    assert "local/nobody" in assert_refused(post(writer, "/grafts", nobody), 409, "recipe")
    assert_refused(post(writer, "/chimeras", {"base": "local/nobody"}), 404, None)
    assert writer.get(f"{ROOT}/jobs").get_json()["items"] == []


ASKED = [
    ("graft", "/grafts", {"base": "local/base", "donor": "local/tuned", "type": ["organ"], "blocks": [0]}),
    (
        "purify",
        "/purifications",
        {"model": "local/base", "method": "fractal", "type": "organ", "accept": ["lineage-unknown"]},
    ),
    ("measure", "/measurements", {"model": "local/base"}),
    ("extract", "/extractions", {"model": "local/base"}),
    ("report", "/reports", {"model": "local/base", "limit": 3}),
    ("report", "/reports", {}),
]


@pytest.mark.parametrize(("kind", "path", "body"), ASKED)
def test_each_operation_creates_a_job_of_its_kind_that_succeeds(
    kind: str, path: str, body: Any, writer: FlaskClient, kin: LocalRegistry
) -> None:
    answer = post(writer, path, body)
    assert answer.status_code == 202, answer.text
    assert answer.get_json()["kind"] == kind
    assert answer.headers["Location"] == f"{ROOT}/jobs/1"
    Runner(kin, Event()).run(once=True)
    done = writer.get(f"{ROOT}/jobs/1").get_json()
    assert (done["state"], done["note"]) == ("finished", "")


ODD: list[Any] = [
    None,
    [],
    {"command": "sh -c 'rm -rf /'"},
    {"model": None},
    {"model": ["local/base"]},
    {"model": HOSTILE},
    {"model": "../../etc/passwd"},
    {"model": "\ud800"},
    {"model": "\0"},
    {"model": "local/base", "runtime": "x {model}"},
    {"chimera": HOSTILE},
    {"base": HOSTILE, "donor": HOSTILE},
    {"lock": "0" * 99},
    {"lock": "01234567", "model": "local/base"},
    {"limit": -1},
]


@pytest.mark.parametrize(
    "path",
    [
        "/grafts",
        "/purifications",
        "/validations",
        "/measurements",
        "/extractions",
        "/reports",
        "/assemblies",
        "/chimeras",
    ],
)
def test_hostile_bodies_are_refused_in_one_sentence_each(path: str, empty_writer: FlaskClient) -> None:
    for body in ODD:
        if path == "/reports" and body == {"model": None}:
            continue  # the same as no model
        answer = post(empty_writer, path, body)
        assert answer.status_code in (400, 404, 409), (path, body, answer.text)
        value = answer.get_json()
        assert faults("Problem", value) == []
        assert len(value["detail"]) < 1000
        assert "Traceback" not in value["detail"]
