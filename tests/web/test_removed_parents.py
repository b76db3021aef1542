"""A chimera, a plan and an organ say that a model behind them was yanked or removed: on every page, in the API and the
command, whether that was before the chimera was made or after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import event

from organs.cli.show import print_chimera, print_lineage
from organs.ingest.service import publish_model
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.model_changes import hide_model, remove_model
from organs.registry.catalog.tables import ModelRow
from organs.registry.compose.chimeras import chimera_page
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.web.app import create_app
from organs.web.settings import WebSettings
from tests.registry_templates import RegistryTemplates
from tests.related_models import ingest_all, related_tensors
from tests.web.page_parser import found_at, page_at

BASE, DONOR, CHIMERA = "local/base", "local/donor", "local/mixed"
REASON = "It was trained on the wrong texts."


def with_a_chimera(registry: LocalRegistry, folder: Path) -> None:
    """A base, a donor, and a chimera of the two."""
    ingest_all(registry, folder, base=related_tensors(), donor=related_tensors(correlation=0.995))
    registry.compose(BASE).graft(DONOR, blocks=0).named(CHIMERA).plan().register()


@pytest.fixture
def held(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    templates.fill(registry, with_a_chimera)
    return registry


@pytest.fixture
def client(held: LocalRegistry) -> Iterator[FlaskClient]:
    with create_app(held, WebSettings(personal=True)).test_client() as client:
        yield client


def change(registry: LocalRegistry, name: str, state: str) -> None:
    with registry.catalog.writing() as session:
        model = model_by_name(session, parse_model_name(name))
        if state == "removed":
            remove_model(session, model, REASON, "local")
        elif state in ("yanked", "quarantined"):
            hide_model(session, model, state, REASON, "local")
        else:
            publish_model(session, model, "local")


def warnings(values: Any) -> list[tuple[str, str]]:
    """Code and first model of each finding about a parent."""
    return [
        (one["code"], one["models"][0])
        for one in values["findings"]
        if one["code"].startswith("parent-") and one["severity"] == "warn"
    ]


def warnings_of(client: FlaskClient, name: str) -> list[tuple[str, str]]:
    """The warnings about parents that the API has on a chimera: the same of the model and of its lock."""
    model = found_at(client, f"/api/v1/models/{name}")
    chimera = found_at(client, f"/api/v1/chimeras/{model['composed']['lock_id']}")
    assert warnings(model) == warnings(chimera)
    return warnings(chimera)


def planned(client: FlaskClient, base: str, donor: str, *accept: str) -> tuple[list[tuple[str, str]], bool]:
    """The warnings of a plan, and whether it can be made."""
    recipe: dict[str, Any] = {"base": base, "grafts": [{"from": donor, "blocks": 1}], "accept": accept}
    plan = client.post("/api/v1/plans", json=recipe).get_json()
    return warnings(plan), plan["can_be_made"]


@pytest.mark.parametrize("parent", [BASE, DONOR])
@pytest.mark.parametrize("state", ["yanked", "removed"])
def test_the_page_of_a_chimera_says_that_a_parent_was_yanked_later(
    client: FlaskClient, held: LocalRegistry, capsys: pytest.CaptureFixture[str], parent: str, state: str
) -> None:
    assert warnings_of(client, CHIMERA) == []
    change(held, parent, state)
    assert warnings_of(client, CHIMERA) == [(f"parent-{state}", f"{parent}@1")]
    text = page_at(client, f"/models/{CHIMERA}").text
    assert f"The parent {parent}@1 was {state} on " in text
    assert REASON[:-1] in text
    (listed,) = found_at(client, "/api/v1/chimeras")["items"]
    assert listed["withdrawn_parents"] == [f"{parent}@1"]
    assert "(yanked or removed)" in page_at(client, "/chimeras").text
    model = held.model(CHIMERA)
    assert model.composed is not None
    print_chimera(held.chimera(model.composed.lock_id))
    print_lineage(model)
    assert capsys.readouterr().out.replace("\n", " ").count(f"was {state} on") == 2


def test_a_restored_parent_causes_no_warning(client: FlaskClient, held: LocalRegistry) -> None:
    change(held, DONOR, "yanked")
    composition = held.compose(BASE).graft(f"{DONOR}@1", blocks=1).accept("parent-yanked").named("local/second")
    composition.plan().register()
    change(held, f"{DONOR}@1", "visible")
    assert warnings_of(client, CHIMERA) == warnings_of(client, "local/second") == []


@pytest.mark.parametrize("state", ["yanked", "removed"])
def test_a_chimera_of_a_chimera_says_that_a_model_behind_its_parent_was_yanked(
    client: FlaskClient, held: LocalRegistry, state: str
) -> None:
    held.compose(BASE).graft(CHIMERA, blocks=0).purify("spectral", blocks=1).named("local/deep").plan().register()
    held.compose("local/deep").purify("fractal", blocks=0).named("local/deeper").plan().register()
    change(held, DONOR, state)
    expected = [(f"parent-{state}", f"{DONOR}@1")]
    sentence = f"{DONOR}@1, from which {CHIMERA}@1 was made, was {state} on "
    for name in ("local/deep", "local/deeper"):
        assert warnings_of(client, name) == expected
        assert sentence in page_at(client, f"/models/{name}").text
        card = client.get(f"/{name}/resolve/main/README.md").text
        assert f"- warn, parent-{state}: {sentence.replace('@', chr(92) + '@')}" in card
    listed = {one["name"]: one for one in found_at(client, "/api/v1/chimeras")["items"]}
    gone = {name: (one["withdrawn_parents"], one["withdrawn_ancestors"]) for name, one in listed.items()}
    assert gone == {
        f"{CHIMERA}@1": ([f"{DONOR}@1"], []),
        "local/deep@1": ([], [f"{DONOR}@1"]),
        "local/deeper@1": ([], [f"{DONOR}@1"]),
    }
    assert "made before from local/" in page_at(client, "/chimeras").text
    assert planned(client, BASE, "local/deeper") == (expected, False)
    assert planned(client, BASE, "local/deeper", f"parent-{state}") == (expected, True)
    assert sentence in page_at(client, "/compose", base=BASE, graft="from:local/deeper blocks:1").text


def test_a_hidden_chimera_between_two_models_is_not_named(client: FlaskClient, held: LocalRegistry) -> None:
    held.compose(BASE).graft(CHIMERA, blocks=0).named("local/deep").plan().register()
    change(held, DONOR, "yanked")
    change(held, CHIMERA, "quarantined")
    assert warnings_of(client, "local/deep") == []


def test_a_list_of_chimeras_takes_as_many_statements_as_one_chimera(client: FlaskClient, held: LocalRegistry) -> None:
    def statements() -> int:
        executed: list[str] = []

        def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
            executed.append(statement)

        event.listen(held.catalog.reader, "before_cursor_execute", note)
        with held.catalog.reading() as session:
            page = chimera_page(session, 100)
        event.remove(held.catalog.reader, "before_cursor_execute", note)
        assert all(item.withdrawn_parents for item in page.items)
        return len(executed)

    change(held, DONOR, "yanked")
    before = statements()
    for number in range(4):
        step = held.compose(BASE).graft(f"{DONOR}@1", blocks=0).purify("spectral", keep=0.9 - number / 10, blocks=1)
        step.accept("parent-yanked").named(f"local/more-{number}").plan().register()
    assert statements() == before <= 8


def test_a_parent_removed_before_publication_is_not_mentioned(client: FlaskClient, held: LocalRegistry) -> None:
    with held.catalog.writing() as session:
        model = session.query(ModelRow).filter_by(name="donor").one()
        model.state = "quarantined"
    assert warnings_of(client, CHIMERA) == []
    assert found_at(client, "/api/v1/chimeras")["items"][0]["withdrawn_parents"] == []


def test_the_warning_of_a_yanked_model_must_be_accepted_and_is_shown_on_the_chimera(
    client: FlaskClient, held: LocalRegistry
) -> None:
    change(held, DONOR, "yanked")
    expected = [("parent-yanked", f"{DONOR}@1")]
    assert planned(client, BASE, f"{DONOR}@1") == (expected, False)
    assert planned(client, BASE, f"{DONOR}@1", "parent-yanked") == (expected, True)
    composition = held.compose(BASE).graft(f"{DONOR}@1", blocks=1).accept("parent-yanked").named("local/second")
    composition.plan().register()
    assert warnings_of(client, "local/second") == expected, "once"


def test_a_yanked_base_and_compatibility_with_a_yanked_model_give_a_warning(
    client: FlaskClient, held: LocalRegistry
) -> None:
    change(held, BASE, "yanked")
    expected = [("parent-yanked", f"{BASE}@1")]
    assert planned(client, f"{BASE}@1", DONOR) == (expected, False)
    assert warnings(found_at(client, f"/api/v1/compatibility?base={DONOR}&donor={BASE}@1")) == expected


def test_the_page_of_an_organ_says_that_only_a_yanked_model_has_it(client: FlaskClient, held: LocalRegistry) -> None:
    base, donor, chimera = ({one.digest for one in held.organs_of(name)} for name in (BASE, DONOR, CHIMERA))
    digest = min(donor - base - chimera)
    change(held, DONOR, "yanked")
    (place,) = found_at(client, f"/api/v1/organs/{digest}")["places"]
    assert (place["model"], place["model_state"]) == (f"{DONOR}@1", "yanked")
    assert "<strong>yanked</strong>" in client.get(f"/organs/{digest}").text
