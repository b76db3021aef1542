"""Jobs of contributors: whose chimeras they make, who sees and cancels them, how many wait, what they may use."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlencode

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from organs.ingest.jobs.runner import Runner
from organs.registry.catalog.queries.chimeras import chimera_of
from organs.registry.catalog.queries.jobs import job_by_id, newest_jobs
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.register.accounts import LOCAL, add_contributor, create_token, open_session
from organs.registry.catalog.register.jobs import QUEUED_MAX, WAITING_MAX, enqueue_job
from organs.registry.catalog.register.model_changes import hide_model, show_model
from organs.registry.catalog.tables import ContributorRow, ModelRow, now
from organs.registry.compose.recipe import read_recipe, recipe_file
from organs.registry.entities.job import Job, RecipeArguments
from organs.registry.errors import NotFound
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from organs.registry.tokens import parse_token
from organs.web.app import create_app
from organs.web.auth import COOKIE
from organs.web.settings import WebSettings
from tests.registry_templates import valid_account
from tests.related_models import ingest_bytes, model_file, related_tensors

SCOPES = {"ada": ("read", "upload"), "bob": ("read", "upload"), "root": ("read", "upload", "admin")}
GRAFT = {"base": "local/base", "donor": "local/tuned", "type": "organ"}
HIDDEN = "bob/hidden@1"
ABSENT = 4711


class Shelf:
    """A server with accounts: three models, one of them quarantined, and a chimera of it and of another base."""

    def __init__(self, registry: LocalRegistry, tokens: dict[str, str]) -> None:
        self.registry = registry
        self.tokens = tokens
        self.app = create_app(registry)

    def asked(self, name: str | None, method: str, address: str, json: Any = None) -> TestResponse:
        """The answer of the API to the contributor `name`."""
        headers = {"Authorization": f"Bearer {self.tokens[name]}"} if name else {}
        return self.app.test_client().open(f"/api/v1{address}", method=method, json=json, headers=headers)

    def browser(self, name: str) -> FlaskClient:
        """A browser in which the contributor `name` is logged in."""
        with self.registry.catalog.writing() as session:
            account = valid_account(session, parse_token(self.tokens[name]), now())
            assert account is not None
            secret = open_session(session, account)
        client = self.app.test_client()
        client.set_cookie(COOKIE, secret)
        return client

    def job(self, job_id: int) -> Job:
        with self.registry.catalog.reading() as session:
            return job_by_id(session, job_id)

    def run(self) -> None:
        Runner(self.registry, Event(), lanes=("work",)).run(once=True)


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory, migrated_database: Path) -> tuple[Path, dict[str, str]]:
    """The home of a registry, made once, and the tokens of its contributors."""
    folder = tmp_path_factory.mktemp("accounts")
    home, tokens = folder / "home", {}
    home.mkdir()
    shutil.copy(migrated_database, home)
    with LocalRegistry.open(home) as registry:
        for name, alike in (("base", 1.0), ("tuned", 0.995)):
            ingest_bytes(registry, folder, name, model_file(name, related_tensors(correlation=alike)))
        registry.compose("local/base").graft("local/tuned", blocks=1).named("bob/hidden").plan().register()
        registry.compose("bob/hidden").graft("local/tuned", blocks=0).named("local/child").plan().register()
        with registry.catalog.writing() as session:
            hide_model(session, model_by_name(session, parse_model_name(HIDDEN)), "quarantined", "a test", LOCAL)
            for name, scopes in SCOPES.items():
                contributor = session.query(ContributorRow).filter_by(name=name).one_or_none()
                contributor = contributor or add_contributor(session, name)
                tokens[name] = create_token(session, contributor.id, scopes, "a test").text
    return home, tokens


@pytest.fixture
def shelf(furnished: tuple[Path, dict[str, str]], tmp_path: Path) -> Iterator[Shelf]:
    home, tokens = furnished
    shutil.copytree(home, tmp_path / "home")
    with LocalRegistry.open(tmp_path / "home") as registry:
        yield Shelf(registry, dict(tokens))


def form_token(browser: FlaskClient, address: str) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', browser.get(address).text)
    assert found is not None
    return found[1]


def waiting(shelf: Shelf) -> int:
    with shelf.registry.catalog.reading() as session:
        return len(newest_jobs(session, 1000).items)


def test_a_chimera_belongs_to_the_account_that_requested_it_and_gets_its_namespace(shelf: Shelf) -> None:
    names = {None: "ada/", "mine": "ada/mine@1", "ada/other": "ada/other@1", "ADA/third": "ada/third@1"}
    for number, (name, registered) in enumerate(names.items(), 1):
        recipe = {**GRAFT, "blocks": number % 2, **({} if name is None else {"name": name})}
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
    assert waiting(shelf) == 0


def test_the_page_says_so_beside_the_recipe(shelf: Shelf) -> None:
    browser = shelf.browser("ada")
    asked = {"base": "local/base", "graft": "from:local/tuned type:organ blocks:0"}
    token = form_token(browser, f"/compose?{urlencode(asked)}")
    answer = browser.post("/compose", data={**asked, "form_token": token, "name": "bob/mine"})
    assert answer.status_code == 403
    assert "bob is not your namespace" in answer.text
    assert 'value="bob/mine"' in answer.text
    assert browser.post("/compose", data={**asked, "form_token": token, "name": "mine"}).status_code == 303
    assert shelf.job(1).contributor == "ada"


def test_the_namespace_of_another_account_is_also_refused_when_the_job_runs(shelf: Shelf) -> None:
    recipe = {"base": GRAFT["base"], "name": "bob/mine", "grafts": [{"from": GRAFT["donor"], "type": "organ"}]}
    arguments = RecipeArguments(recipe=recipe_file(read_recipe(json.dumps(recipe))))
    with shelf.registry.catalog.writing() as session:
        enqueue_job(session, "compose", arguments, "ada")
    shelf.run()
    assert (shelf.job(1).state, shelf.job(1).note[:24]) == ("failed", "bob is not your namespac")
    with shelf.registry.catalog.reading() as session, pytest.raises(NotFound):
        model_by_name(session, parse_model_name("bob/mine"))


def test_the_local_user_may_use_any_namespace(shelf: Shelf) -> None:
    with create_app(shelf.registry, WebSettings(personal=True)).test_client() as client:
        for name in ("bob/mine", None):
            recipe = GRAFT | ({} if name is None else {"name": name})
            queued = client.post("/api/v1/grafts", json=recipe)
            assert queued.status_code == 202
            shelf.run()
            job = shelf.job(queued.get_json()["id"])
            assert job.result["model"].startswith(name or "local/")
            assert job.contributor == LOCAL


def test_a_contributor_sees_and_cancels_its_own_jobs_and_an_administrator_all(shelf: Shelf) -> None:
    for name in ("ada", "bob", LOCAL):
        with shelf.registry.catalog.writing() as session:
            enqueue_job(session, "report", {}, name)
    seen = {"ada": [1], "bob": [2], "root": [3, 2, 1]}
    for name, own in seen.items():
        browser = shelf.browser(name)
        assert [one["id"] for one in shelf.asked(name, "GET", "/jobs").get_json()["items"]] == own
        assert [one["id"] for one in browser.get("/jobs.json").get_json()["items"]] == own
        for job_id in (1, 2, 3):
            wanted = 200 if job_id in own else 404
            assert shelf.asked(name, "GET", f"/jobs/{job_id}").status_code == wanted
            assert browser.get(f"/jobs/{job_id}").status_code == wanted
            assert browser.get(f"/jobs/{job_id}.json").status_code == wanted
    for name, job_id in (("ada", 2), ("bob", 3), (None, 1)):
        for method in ("GET", "DELETE"):
            refused, absent = (shelf.asked(name, method, f"/jobs/{one}") for one in (job_id, ABSENT))
            assert refused.status_code == absent.status_code == (401 if method == "DELETE" and name is None else 404)
            assert refused.get_json()["detail"] == absent.get_json()["detail"].replace(str(ABSENT), str(job_id))
        assert shelf.job(job_id).state == "queued"
    with shelf.registry.catalog.writing() as session:
        root = session.query(ContributorRow).filter_by(name="root").one()
        shelf.tokens["root"] = create_token(session, root.id, ["admin"], "for reviewing").text
    assert "Cancel this job" in shelf.browser("root").get("/jobs/1").text
    assert shelf.asked("root", "DELETE", "/jobs/1").get_json()["state"] == "cancelled"
    assert shelf.asked("bob", "DELETE", "/jobs/2").get_json()["state"] == "cancelled"
    with create_app(shelf.registry, WebSettings(personal=True)).test_client() as client:
        assert [one["id"] for one in client.get("/jobs.json").get_json()["items"]] == [3, 2, 1]


def test_a_browser_cancels_only_its_own_jobs_and_home_links_to_them(shelf: Shelf) -> None:
    with shelf.registry.catalog.writing() as session:
        enqueue_job(session, "report", {}, "ada")
    ada, bob = shelf.browser("ada"), shelf.browser("bob")
    assert 'href="/jobs"' in ada.get("/").text
    assert 'href="/jobs"' not in bob.get("/").text
    with shelf.registry.catalog.writing() as session:
        enqueue_job(session, "report", {}, "bob")
    assert bob.post("/jobs/1/cancel", data={"form_token": form_token(bob, "/jobs/2")}).status_code == 404
    assert shelf.job(1).state == "queued"
    assert ada.post("/jobs/1/cancel", data={"form_token": form_token(ada, "/jobs/1")}).status_code == 303
    assert shelf.job(1).state == "cancelled"


def test_the_file_of_a_job_is_served_to_its_requester_and_to_administrators(shelf: Shelf) -> None:
    assert shelf.asked("ada", "POST", "/extractions", {"model": "local/base"}).status_code == 202
    shelf.run()
    file = shelf.job(1).result["file"]
    for name, status in (("ada", 200), ("root", 200), ("bob", 404)):
        assert shelf.browser(name).get(f"/jobs/1/files/{file}").status_code == status
    assert shelf.app.test_client().get(f"/jobs/1/files/{file}").status_code == 404


def test_a_queued_validation_is_shown_to_its_requester_and_to_administrators(shelf: Shelf) -> None:
    with shelf.registry.catalog.writing() as session:
        enqueue_job(session, "validate", {"chimera": "local/child@1"}, "ada")
    for name, is_shown in (("ada", True), ("bob", False), ("root", True)):
        assert ('href="/jobs/1"' in shelf.browser(name).get("/models/local/child").text) is is_shown


@pytest.mark.long
def test_waiting_jobs_are_limited_for_each_contributor_and_for_the_queue(shelf: Shelf) -> None:
    for _ in range(WAITING_MAX):
        assert shelf.asked("ada", "POST", "/reports", {}).status_code == 202
    answer = shelf.asked("ada", "POST", "/reports", {})
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) > 0
    assert answer.get_json()["detail"].startswith(f"{WAITING_MAX} of your jobs wait already")
    assert shelf.asked("bob", "POST", "/reports", {}).status_code == 202
    assert shelf.asked("ada", "DELETE", "/jobs/1").status_code == 200
    assert shelf.asked("ada", "POST", "/reports", {}).status_code == 202
    with shelf.registry.catalog.writing() as session:
        for _ in range(QUEUED_MAX - WAITING_MAX - 1):
            enqueue_job(session, "report", {})
    assert shelf.asked("bob", "POST", "/reports", {}).status_code == 503


def named(shelf: Shelf) -> list[str]:
    """All that a person may call the hidden model."""
    with shelf.registry.catalog.writing() as session:
        row = session.query(ModelRow).filter_by(name="hidden").one()
        chimera = chimera_of(session, row.id)
        assert chimera is not None
        return ["bob/hidden", HIDDEN, f"sha256:{row.digest}", f"sha256:{chimera.lock_id}"]


@pytest.mark.long
def test_a_quarantined_model_cannot_be_used_even_by_its_owner(shelf: Shelf) -> None:
    for text in named(shelf):
        for asker in ("bob", "root") if text == HIDDEN else ("bob",):
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
                answer = shelf.asked(asker, "POST", path, body)
                assert answer.status_code in (400, 404, 409), (path, body, answer.text)
                absent = shelf.asked(asker, "POST", path, _with_nobody(body, text))
                assert absent.status_code == answer.status_code, "as if it were not there"
        for base, donor in ((text, "local/base"), ("local/base", text)):
            assert shelf.asked("bob", "GET", f"/compatibility?base={base}&donor={donor}").status_code == 404
        plan = shelf.asked("bob", "POST", "/plans", {"base": text}).get_json()
        assert (plan["plan"], plan["can_be_made"]) == (None, False)
    assert waiting(shelf) == 0


def _with_nobody(body: dict[str, Any], text: str) -> dict[str, Any]:
    """The same of a model that is not there at all."""
    nobody = f"sha256:{'0' * 64}" if text.startswith("sha256:") else "bob/nobody"
    with_it: dict[str, Any] = {key: nobody if value == text else value for key, value in body.items()}
    if "adapters" in body:
        with_it["adapters"] = [{"from": nobody}]
    if "grafts" in body:
        with_it["grafts"] = [{"where": f"model:{nobody}", "type": "organ"}]
    return with_it


def test_a_model_quarantined_while_a_job_waited_is_not_used(shelf: Shelf) -> None:
    with shelf.registry.catalog.writing() as session:
        hidden = session.query(ModelRow).filter_by(name="hidden")
        show_model(session, hidden.one(), LOCAL)
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
    with shelf.registry.catalog.writing() as session:
        hide_model(session, model_by_name(session, parse_model_name(HIDDEN)), "quarantined", "a test", LOCAL)
    Runner(shelf.registry, Event()).run(once=True)
    ended = [shelf.job(one) for one in range(1, 7)]
    assert {job.state for job in ended} == {"failed"}, [(job.state, job.note) for job in ended]
    assert ended[5].note.startswith("the base of local/child@1 was removed")


def test_a_yanked_model_can_still_be_used_by_its_version(shelf: Shelf) -> None:
    with shelf.registry.catalog.writing() as session:
        hide_model(session, model_by_name(session, parse_model_name("local/tuned")), "yanked", "a test", LOCAL)
    graft = {**GRAFT, "donor": "local/tuned@1"}
    assert shelf.asked("ada", "POST", "/grafts", graft).status_code == 409
    assert shelf.asked("ada", "POST", "/grafts", {**graft, "accept": ["parent-yanked"]}).status_code == 202
    by_query = {"base": "local/base", "grafts": [{"where": "model:local/tuned", "type": "organ"}]}
    assert shelf.asked("ada", "POST", "/chimeras", by_query).status_code == 409
