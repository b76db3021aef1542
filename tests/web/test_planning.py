"""Planning over HTTP: too much work is refused on every face, planning is counted by address, long lists are cut."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import update
from werkzeug.test import TestResponse

from organs.registry.catalog.queries.accounts import contributor_by_name
from organs.registry.catalog.tables import ModelRow
from organs.registry.entities.finding import Finding, Severity
from organs.registry.entities.plan import Compatibility, TypeCompatibility
from organs.registry.local import LocalRegistry
from organs.web.api import plans as planning
from organs.web.api.plans import (
    ANONYMOUS_PLANNING,
    NAMES_MAX,
    PLANNING,
    cut_pair,
)
from organs.web.app import create_app
from organs.web.rate_limits import rates
from tests.registry_templates import RegistryTemplates
from tests.web.accounts import authorization, form_token, log_in, new_token
from tests.web.conftest import add_family

RECIPE = {"base": "local/base", "grafts": [{"from": "local/tuned", "type": "organ"}]}
FORM = {"base": "local/base", "graft": "from:local/tuned type:organ", "name": "ada/chimera"}
PAGE = "base=local/base&graft=from:local/tuned%20type:organ"
FACES = {
    "the API": lambda client: client.post("/api/v1/plans", json=RECIPE),
    "the API with YAML": lambda client: client.post("/api/v1/plans", json={"yaml": json.dumps(RECIPE)}),
    "two models": lambda client: client.get("/api/v1/compatibility?base=local/base&donor=local/tuned"),
    "the page": lambda client: client.get(f"/compose?{PAGE}"),
    "the page as JSON": lambda client: client.get(f"/compose.json?{PAGE}", follow_redirects=True),
    "the page of two models": lambda client: client.get("/compose/fits?base=local/base&donor=local/tuned"),
}
"""All ways for anybody to plan."""
Ask = Callable[[FlaskClient], TestResponse]


@pytest.fixture
def app(registry: LocalRegistry, templates: RegistryTemplates) -> Flask:
    templates.fill(registry, add_family)
    return create_app(registry)


def make_large(registry: LocalRegistry, tensors: int) -> None:
    """Let the catalog say that the models have so many tensors."""
    with registry.catalog.writing() as session:
        session.execute(update(ModelRow).values(tensors=tensors))


@pytest.mark.parametrize("face", FACES)
def test_too_much_work_is_refused_by_the_pages_and_by_the_api(app: Flask, registry: LocalRegistry, face: str) -> None:
    client, ask = app.test_client(), FACES[face]
    assert ask(client).status_code == 200
    make_large(registry, 65_536)
    answer = ask(client)
    assert answer.status_code == 413
    assert "more than 2 s of processor time" in answer.text
    assert len(answer.data) < 3000
    if answer.is_json:
        assert answer.get_json()["code"] == "too-costly"


def test_an_account_has_a_higher_planning_limit(app: Flask, registry: LocalRegistry) -> None:
    token = authorization(new_token(registry, "ada"))
    client = app.test_client()
    make_large(registry, 15_000)
    assert client.post("/api/v1/plans", json=RECIPE).status_code == 413
    assert client.post("/api/v1/plans", json=RECIPE, headers=token).status_code == 200
    make_large(registry, 100_000)
    for path in ("/api/v1/plans", "/api/v1/chimeras"):
        answer = client.post(path, json=RECIPE, headers=token)
        assert (answer.status_code, answer.get_json()["code"]) == (413, "too-costly")
        assert "more than 10 s" in answer.get_json()["detail"]
    browser = log_in(app, new_token(registry, "bob"))
    field = form_token(browser, "/account")
    assert browser.post("/compose", data=FORM | {"form_token": field}).status_code == 413


@pytest.mark.parametrize("face", FACES)
def test_plans_of_one_address_are_counted_across_pages_and_api(app: Flask, face: str) -> None:
    client, ask = app.test_client(), FACES[face]
    with app.app_context():
        rates().hit(ANONYMOUS_PLANNING, "127.0.0.1", cost=ANONYMOUS_PLANNING.amount - 1)
    answer = ask(client)
    assert answer.status_code == 429
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    client.environ_base["REMOTE_ADDR"] = "192.0.2.2"
    assert ask(client).status_code == 200


def test_planning_with_an_account_is_counted_by_contributor(app: Flask, registry: LocalRegistry) -> None:
    ada, bob = (authorization(new_token(registry, name)) for name in ("ada", "bob"))
    with app.app_context(), registry.catalog.reading() as session:
        rates().hit(PLANNING, str(contributor_by_name(session, "ada").id), cost=PLANNING.amount)
        rates().hit(ANONYMOUS_PLANNING, "127.0.0.1", cost=ANONYMOUS_PLANNING.amount)
    client = app.test_client()
    statuses = [client.post("/api/v1/plans", json=RECIPE, headers=token).status_code for token in (ada, bob)]
    assert statuses == [429, 200], "neither the address nor another contributor counts"


def test_long_lists_are_truncated_and_state_the_number_left_out(app: Flask, monkeypatch: pytest.MonkeyPatch) -> None:
    client = app.test_client()
    whole = client.post("/api/v1/plans?every_part=1", json=RECIPE).get_json()
    assert whole["left_out"] == {}
    monkeypatch.setattr(planning, "ROWS_MAX", 2)
    monkeypatch.setattr(planning, "NAMES_MAX", 1)
    cut = client.post("/api/v1/plans?every_part=1", json=RECIPE).get_json()
    names = sum(len(one["organs"]) - 1 for one in whole["findings"][:2] if len(one["organs"]) > 1)
    assert cut["left_out"]["parts"] == len(whole["plan"]["parts"]) - 2
    assert cut["left_out"]["findings"] == len(whole["findings"]) - 2
    assert cut["left_out"]["organs"] == names
    assert cut["plan"]["parts"] == whole["plan"]["parts"][:2]
    assert (cut["plan"]["organs"], cut["plan"]["changed"]) == (whole["plan"]["organs"], whole["plan"]["changed"])


def test_findings_of_types_are_truncated_too() -> None:
    finding = Finding(Severity.INFO, "theta-changes", "Some.", organs=("x",) * (NAMES_MAX + 5))
    one = TypeCompatibility(type="organ", fitting=0, total=1, refused=True, findings=(finding,))
    found = cut_pair(Compatibility(base="a", donor="b", types=(one,), findings=(finding,)))
    assert found.left_out == {"organs": 10}
    assert len(found.types[0].findings[0].organs) == NAMES_MAX
