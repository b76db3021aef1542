"""Pages and answers of evolutions: what is shown of trials, the form, stopping and continuing, and charts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import pytest
from flask.testing import FlaskClient
from msgspec.structs import replace

from organs.registry.catalog.register.evolutions import claim_trial
from organs.registry.catalog.register.jobs import claim_job
from organs.registry.catalog.work import exclusive, fail, put_back
from organs.registry.compose.recipe import Recipe, recipe_of_values
from organs.registry.compose.steps import step_texts
from organs.registry.entities.evolution import CHOICES_MAX, Evolution, EvolutionTrial
from organs.registry.entities.job import EVOLUTION_REQUEST_MAX_BYTES
from organs.registry.evolving.search import result_lease
from organs.registry.local import LocalRegistry
from organs.web.app import create_app
from organs.web.charts.evolutions import POINTS_MAX, FrontPoint, TrialPoint, front_chart, trials_chart
from organs.web.pages.workbench import step_words
from organs.web.settings import WebSettings
from tests.evolutions import LINES, add_evolution
from tests.registry_templates import RegistryTemplates, add_three_models
from tests.web.accounts import form_token
from tests.web.page_parser import page_at

SVG = "{http://www.w3.org/2000/svg}"
SPACE = {"base": "base", "donors": ["tuned"]}


@pytest.fixture
def kin(registry: LocalRegistry, templates: RegistryTemplates) -> LocalRegistry:
    templates.fill(registry, add_three_models)
    return registry


@pytest.fixture
def client(kin: LocalRegistry) -> Iterator[FlaskClient]:
    with create_app(kin, WebSettings(personal=True)).test_client() as client:
        yield client


def test_a_finished_evolution_shows_its_best_trial_and_leads_to_the_chimera_and_back(
    client: FlaskClient, kin: LocalRegistry
) -> None:
    made = kin.compose("base").graft("tuned", type="organ").named("local/found").plan().register()
    number = add_evolution(kin, "base", ["tuned"], (0.02, -0.06, None, -0.03), winner=made.model)
    page = page_at(client, f"/evolutions/{number}")
    assert f"/models/{made.model}" in page.links()
    for words in ("Best trial: 2", "first", "second", "Which parts matter", "1 trial failed", "the file cannot be"):
        assert words in page.words, words
    assert f"Found by evolution {number}" in page_at(client, f"/models/{made.model}").words
    trial = page_at(client, f"/evolutions/{number}/trials/2")
    (compose,) = (link for link in trial.links() if link.startswith("/compose?base="))
    assert (
        "attention, feed-forward, embedding, norm blended (task_arithmetic): tuned × 1"
        in page_at(client, compose).words
    )
    assert client.get(f"/evolutions/{number}/trials/99").status_code == 404
    chart = client.get(f"/evolutions/{number}/trials.svg")
    dots = list(ElementTree.fromstring(chart.data).iter(f"{SVG}circle"))
    assert len(dots) == 3
    assert len(client.get(f"/evolutions/{number}.csv").text.splitlines()) > 4


def test_only_the_answer_about_an_evolution_that_is_over_is_kept(client: FlaskClient, kin: LocalRegistry) -> None:
    running, over = add_evolution(kin, "base", ["tuned"], state="running"), add_evolution(kin, "base", ["tuned"])
    for address in ("/api/v1/evolutions", "/evolutions"):
        for number, kept in ((running, None), (over, "memory")):
            answers = [client.get(f"{address}/{number}") for _ in range(2)]
            assert answers[1].headers.get("X-Answered") == kept, address
    assert client.get(f"/evolutions/{running}").text.count("No process works on it") == 1
    shares = [client.get(f"/evolutions/{number}/progress.json").get_json()["progress"] for number in (running, over)]
    assert shares == pytest.approx([0.7 * 0.75, 1.0]), "three of four trials are done, and the checks follow"


def test_an_evolution_is_begun_by_the_form_stopped_and_continued(client: FlaskClient, kin: LocalRegistry) -> None:
    token = {"form_token": form_token(client, "/evolutions")}
    sent: dict[str, Any] = {"base": "base", "donors": "local/tuned\n", "text": ["python"], "minutes": "5"}
    for wrong, says in (
        ({"minutes": "241"}, "from 1 to 240"),
        ({"text": []}, "choose a text"),
        ({"text": ["/etc/passwd"]}, "choose a text"),
        ({"base": "nobody"}, "no model is registered"),
        ({"donors": "local/stranger"}, "unrelated-lineage"),
        ({"donors": "nothing:here"}, "nothing"),
    ):
        answer = client.post("/evolutions", data={**sent, **wrong, **token})
        assert (answer.status_code >= 400, says in answer.text) == (True, True), (says, answer.text)
    assert kin.evolutions().items == ()
    answer = client.post("/evolutions", data={**sent, **token})
    assert answer.headers["Location"] == "/evolutions/1"
    assert "waits in the queue" in page_at(client, "/evolutions/1").words
    with kin.catalog.writing() as session:
        assert claim_job(session, ["evolve"]) is not None
        trial = claim_trial(session, 1, "test")
        assert trial is not None
    assert "trying chimeras" in page_at(client, "/evolutions/1").words
    states = [client.get("/evolutions/1/progress.json").get_json()["state"]]
    assert client.post("/jobs/1/cancel", data=token).headers["Location"] == "/evolutions/1"
    states.append(client.get("/evolutions/1/progress.json").get_json()["state"])
    assert "its last trial is ending" in page_at(client, "/evolutions/1").words
    with kin.catalog.writing() as session:
        put_back(session, trial)
    states.append(client.get("/evolutions/1/progress.json").get_json()["state"])
    assert len(set(states)) == 3, "the page is loaded again"
    assert "No process works on it" in page_at(client, "/evolutions/1").words
    assert 'data-follow="/evolutions/1/progress.json"' in client.get("/evolutions/1").text, "it may be continued"
    with exclusive(kin.catalog, result_lease(1)):
        assert "No process works on it" not in page_at(client, "/evolutions/1").words
    for _ in range(2):
        assert client.post("/evolutions/1/continue", data=token).headers["Location"] == "/evolutions/1"
    assert [job.state for job in kin.jobs().items] == ["queued", "cancelled"]
    with kin.catalog.writing() as session:
        claim = claim_job(session, ["evolve"])
        assert claim is not None
        fail(session, claim, "it was begun with another runtime")
    assert "failed: it was begun with another runtime" in page_at(client, "/evolutions/1").words
    assert "/evolutions/1" in page_at(client, "/jobs/2").links()
    assert client.post("/evolutions/1/continue", data=token).status_code == 303
    answer = client.post("/evolutions/1/remove", data=token)
    assert (answer.status_code, "Job 3 does evolution 1: cancel it first" in answer.text) == (409, True)
    assert client.post("/jobs/3/cancel", data=token).status_code == 303
    assert "?remove=1#remove" in page_at(client, "/evolutions/1").links()
    assert "are removed for good" in page_at(client, "/evolutions/1?remove=1").words
    assert client.post("/evolutions/1/remove", data=token).headers["Location"] == "/evolutions"
    assert client.get("/evolutions/1").status_code == 404


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (0.5, "tuned × 0.5"),
        ([0.1, 0.6, 0.3], "tuned × 0.1 to 0.6"),
        ([{"type": "norm", "value": 0.2}, {"value": [0.05, 0.15]}], "tuned × 0.05 to 0.2"),
    ],
)
def test_a_blend_of_models_is_shown_in_words(weight: Any, words: str) -> None:
    (step,) = (text for kind, text in step_texts(blended(weight)) if kind == "blend")
    assert step_words("blend", step) == (f"feed-forward blended (ties): {words}", None)


def blended(weight: Any) -> Recipe:
    models = [{"from": "local/tuned", "weight": weight}]
    return recipe_of_values({"base": "base", "blends": {"method": "ties", "type": "organ", "models": models}}, "a test")


def test_own_texts_are_received_up_to_their_limits(client: FlaskClient, kin: LocalRegistry) -> None:
    long = (LINES * 50)[: 250 * 1024]
    texts = [{"name": f"mine {number}", "content": long} for number in range(3)]
    answer = client.post("/api/v1/evolutions", json={"space": SPACE, "texts": texts})
    assert (answer.status_code, answer.get_json()["arguments"]) == (202, {"evolution": 1})
    assert kin.evolution(1).texts == ("mine 0", "mine 1", "mine 2")
    texts += [{"name": "more", "content": "x" * EVOLUTION_REQUEST_MAX_BYTES}]
    assert client.post("/api/v1/evolutions", json={"space": SPACE, "texts": texts}).status_code == 413


def test_answers_and_charts_of_many_trials_are_bounded(kin: LocalRegistry) -> None:
    number = add_evolution(kin, "base", ["tuned"])
    found = kin.evolution(number)
    assert found.with_few_choices() == found
    trial = next(trial for trial in found.history if trial.change is not None)
    many = tuple(changed(trial, place) for place in range(1, 4001))
    long = changed_history(found, many).with_few_choices()
    assert sum(bool(one.choice) for one in long.history) == CHOICES_MAX
    assert {one.number for one in long.history if one.choice} == {one.number for one in long.tried[:CHOICES_MAX]}
    points = [TrialPoint(one.number, (one.change or 0.0) - one.number / 9000, one.number % 3 > 0) for one in many]
    drawn = ElementTree.fromstring(trials_chart([*points, TrialPoint(4001, 1e300, counts=True)]))
    assert len(list(drawn.iter(f"{SVG}circle"))) < 3 * POINTS_MAX
    front = [FrontPoint(place, place * 0.1, 4.0 - place, is_front=place % 2 == 0) for place in range(5)]
    texts = [
        [one for one in ElementTree.fromstring(front_chart(front, "<b>", "b", is_joined=joined)).iter(f"{SVG}path")
         if one.attrib["class"] == "curve"]
        for joined in (True, False)
    ]  # fmt: skip
    assert [len(lines) for lines in texts] == [1, 0]


def changed(trial: EvolutionTrial, number: int) -> EvolutionTrial:
    """Return another trial with the same numbers."""
    return replace(trial, number=number, role="proposed", change=-0.01 * (number % 7))


def changed_history(found: Evolution, history: tuple[EvolutionTrial, ...]) -> Evolution:
    """Return an evolution with other trials."""
    return replace(found, history=history)
