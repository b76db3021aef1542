"""Jobs of contributors: whose chimeras they make, who sees and cancels them, how many wait, what they may use."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from organs.ingest.jobs.runner import Runner
from organs.registry.catalog.queries.jobs import job_by_id, newest_jobs
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.jobs import WAITING_MAX, enqueue_job
from organs.registry.catalog.register.model_changes import hide_model, show_model
from organs.registry.catalog.tables import ContributorRow, ModelRow
from organs.registry.compose.recipe import read_recipe, recipe_file
from organs.registry.entities.job import Job, RecipeArguments
from organs.registry.errors import NotFound
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.web.app import create_app
from organs.web.settings import WebSettings
from tests.registry_templates import RegistryTemplates
from tests.related_models import ingest_bytes, model_file, related_tensors
from tests.web.accounts import log_in, new_token, program

GRAFT = {"base": "local/base", "donor": "local/tuned", "type": "organ"}
HIDDEN = "bob/hidden@1"
ABSENT = 4711


class Shelf:
    """A server with accounts: three models, one of them quarantined, and a chimera of it and of another base."""

    def __init__(self, registry: LocalRegistry) -> None:
        self.registry = registry
        self.app = create_app(registry)
        self.tokens = {name: new_token(registry, name, "read", "upload") for name in ("ada", "bob")}
        self.tokens["root"] = new_token(registry, "root", "read", "upload", "admin")

    def asked(self, name: str | None, method: str, address: str, json: Any = None) -> TestResponse:
        """The answer of the API to the contributor `name`."""
        client = program(self.app, self.tokens[name]) if name else self.app.test_client()
        return client.open(f"/api/v1{address}", method=method, json=json)

    def browser(self, name: str) -> FlaskClient:
        """A browser in which the contributor `name` is logged in."""
        return log_in(self.app, self.tokens[name])

    def queue(self, *names: str) -> None:
        """Let each of these contributors ask for a job."""
        with self.registry.catalog.writing() as session:
            for name in names:
                enqueue_job(session, "report", {}, name)

    def job(self, job_id: int) -> Job:
        with self.registry.catalog.reading() as session:
            return job_by_id(session, job_id)

    def waiting(self) -> int:
        """The number of jobs."""
        with self.registry.catalog.reading() as session:
            return len(newest_jobs(session, 1000).items)

    def set_hidden(self, *, hidden: bool) -> None:
        """Put bob's model into quarantine, or take it out."""
        with self.registry.catalog.writing() as session:
            model = session.query(ModelRow).filter_by(name="hidden").one()
            if hidden:
                hide_model(session, model, "quarantined", "a test", LOCAL)
            else:
                show_model(session, model, LOCAL)

    def run(self) -> None:
        Runner(self.registry, Event(), lanes=("work",)).run(once=True)


def fill(registry: LocalRegistry, folder: Path) -> None:
    for name, alike in (("base", 1.0), ("tuned", 0.995)):
        ingest_bytes(registry, folder, name, model_file(name, related_tensors(correlation=alike)))
    registry.compose("local/base").graft("local/tuned", blocks=1).named("bob/hidden").plan().register()
    registry.compose("bob/hidden").graft("local/tuned", blocks=0).named("local/child").plan().register()


@pytest.fixture
def shelf(registry: LocalRegistry, templates: RegistryTemplates) -> Shelf:
    templates.fill(registry, fill)
    shelf = Shelf(registry)
    shelf.set_hidden(hidden=True)
    return shelf


def test_a_chimera_belongs_to_the_account_that_requested_it_and_gets_its_namespace(shelf: Shelf) -> None:
    names = {None: "ada/", "ADA/mine": "ada/mine@1"}
    for number, (name, registered) in enumerate(names.items()):
        recipe = {**GRAFT, "blocks": number, **({} if name is None else {"name": name})}
        queued = shelf.asked("ada", "POST", "/grafts", recipe)
        assert queued.status_code == 202
        shelf.run()
        job = shelf.job(queued.get_json()["id"])
        assert (job.state, job.contributor) == ("finished", "ada"), job.note
        assert job.result["model"].startswith(registered)
        with shelf.registry.catalog.reading() as session:
            model = model_by_name(session, parse_model_name(job.result["model"]))
            assert session.get_one(ContributorRow, model.contributor_id).name == "ada"
    planned = {"base": GRAFT["base"], "grafts": [{"from": GRAFT["donor"], "type": "organ"}]}
    assert shelf.asked("ada", "POST", "/plans", planned).get_json()["plan"]["name"].startswith("ada/")
    assert shelf.asked(None, "POST", "/plans", planned).get_json()["plan"]["name"].startswith("local/")


@pytest.mark.parametrize("name", ["bob/mine", "local/mine", "adam/mine"])
def test_the_namespace_of_another_account_is_refused_immediately(name: str, shelf: Shelf) -> None:
    for asker in ("ada", "root"):
        answer = shelf.asked(asker, "POST", "/grafts", {**GRAFT, "name": name})
        assert answer.status_code == 403
        assert answer.get_json()["detail"] == (
            f"{name.partition('/')[0]} is not your namespace: name the chimera {asker}/mine"
        )
    assert shelf.waiting() == 0


def test_the_namespace_of_another_account_is_also_refused_when_the_job_runs(shelf: Shelf) -> None:
    recipe = {"base": GRAFT["base"], "name": "bob/mine", "grafts": [{"from": GRAFT["donor"], "type": "organ"}]}
    arguments = RecipeArguments(recipe=recipe_file(read_recipe(json.dumps(recipe))))
    with shelf.registry.catalog.writing() as session:
        enqueue_job(session, "compose", arguments, "ada")
    shelf.run()
    assert (shelf.job(1).state, shelf.job(1).note[:24]) == ("failed", "bob is not your namespac")
    with shelf.registry.catalog.reading() as session, pytest.raises(NotFound):
        model_by_name(session, parse_model_name("bob/mine"))


def test_a_contributor_sees_its_own_jobs_and_an_administrator_all(shelf: Shelf) -> None:
    shelf.queue("ada", "bob", LOCAL)
    for name, own in {"ada": [1], "bob": [2], "root": [3, 2, 1]}.items():
        assert [one["id"] for one in shelf.asked(name, "GET", "/jobs").get_json()["items"]] == own
    assert "Cancel this job" in shelf.browser("root").get("/jobs/1").text
    with create_app(shelf.registry, WebSettings(personal=True)).test_client() as client:
        assert [one["id"] for one in client.get("/api/v1/jobs").get_json()["items"]] == [3, 2, 1]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_job_of_another_account_is_answered_like_an_unknown_job(method: str, shelf: Shelf) -> None:
    shelf.queue("bob", LOCAL)
    for job_id in (1, 2):
        refused, absent = (shelf.asked("ada", method, f"/jobs/{one}") for one in (job_id, ABSENT))
        assert (refused.status_code, absent.status_code) == (404, 404)
        assert refused.get_json()["detail"] == absent.get_json()["detail"].replace(str(ABSENT), str(job_id))


def test_the_menu_leads_to_jobs_with_an_account_and_the_page_asks_others_to_log_in(shelf: Shelf) -> None:
    assert 'href="/jobs"' in shelf.browser("ada").get("/").text
    nobody = shelf.app.test_client()
    assert 'href="/jobs"' not in nobody.get("/").text
    for path in ("/jobs", "/jobs/1"):
        answer = nobody.get(path)
        assert (answer.status_code, answer.headers["Location"]) == (303, f"/login?next={path}")


def test_a_queued_validation_is_shown_to_its_requester_and_to_administrators(shelf: Shelf) -> None:
    with shelf.registry.catalog.writing() as session:
        enqueue_job(session, "validate", {"chimera": "local/child@1"}, "ada")
    for name, is_shown in (("ada", True), ("bob", False), ("root", True)):
        assert ('href="/jobs/1"' in shelf.browser(name).get("/models/local/child").text) is is_shown


@pytest.mark.long
def test_waiting_jobs_are_limited_for_each_contributor(shelf: Shelf) -> None:
    for _ in range(WAITING_MAX):
        assert shelf.asked("ada", "POST", "/reports", {}).status_code == 202
    answer = shelf.asked("ada", "POST", "/reports", {})
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) > 0
    assert answer.get_json()["detail"].startswith(f"{WAITING_MAX} of your jobs wait already")
    assert shelf.asked("bob", "POST", "/reports", {}).status_code == 202
    assert shelf.asked("ada", "DELETE", "/jobs/1").status_code == 200
    assert shelf.asked("ada", "POST", "/reports", {}).status_code == 202


@pytest.mark.long
def test_a_quarantined_model_cannot_be_used_even_by_its_owner(shelf: Shelf) -> None:
    with shelf.registry.catalog.reading() as session:
        row = session.query(ModelRow).filter_by(name="hidden").one()
        names = ("bob/hidden", HIDDEN, f"sha256:{row.digest}")
    for text in names:
        nobody = f"sha256:{'0' * 64}" if text.startswith("sha256:") else "bob/nobody"
        for path, body in (
            ("/grafts", {**GRAFT, "base": text}),
            ("/grafts", {**GRAFT, "donor": text}),
            ("/chimeras", {"base": "local/base", "grafts": [{"where": f"model:{text}", "type": "organ"}]}),
            ("/chimeras", {"base": "local/base", "adapters": [{"from": text}]}),
            ("/purifications", {"model": text, "method": "fractal", "type": "organ"}),
            ("/validations", {"chimera": text}),
            ("/measurements", {"model": text}),
            ("/extractions", {"model": text}),
        ):
            absent = json.loads(json.dumps(body).replace(text, nobody))
            statuses = [
                shelf.asked(asker, "POST", path, sent).status_code
                for asker, sent in (("bob", body), ("root", body), ("bob", absent))
            ]
            assert statuses in ([400] * 3, [404] * 3, [409] * 3), (path, body)
        for base, donor in ((text, "local/base"), ("local/base", text)):
            assert shelf.asked("bob", "GET", f"/compatibility?base={base}&donor={donor}").status_code == 404
        assert shelf.asked("bob", "POST", "/plans", {"base": text}).get_json()["plan"] is None
    assert shelf.waiting() == 0


def test_a_model_quarantined_while_a_job_waited_is_not_used(shelf: Shelf) -> None:
    shelf.set_hidden(hidden=False)
    for path, body in (
        ("/grafts", {**GRAFT, "donor": HIDDEN}),
        ("/measurements", {"model": HIDDEN}),
        ("/extractions", {"model": HIDDEN}),
        ("/reports", {"model": HIDDEN}),
        ("/validations", {"chimera": HIDDEN}),
        ("/validations", {"chimera": "local/child"}),
    ):
        answer = shelf.asked("ada", "POST", path, body)
        assert answer.status_code == 202, answer.text
    shelf.set_hidden(hidden=True)
    Runner(shelf.registry, Event()).run(once=True)
    ended = [shelf.job(one) for one in range(1, 7)]
    assert {job.state for job in ended} == {"failed"}, [(job.state, job.note) for job in ended]
    assert ended[5].note.startswith("the base of local/child@1 was removed")
