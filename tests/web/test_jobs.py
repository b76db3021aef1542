"""Jobs on pages and in the API; and the process that works at them beside the server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flask import Flask, Response
from flask.testing import FlaskClient

from organs.registry.catalog.register.jobs import (
    QUEUED_MAX,
    claim_job,
    enqueue_job,
    job_json,
    report_progress,
)
from organs.registry.catalog.work import fail, finish
from organs.registry.errors import QueueFull
from organs.registry.local import LocalRegistry
from organs.registry.settings import Settings
from organs.web.api.operation import queued
from organs.web.app import create_app
from organs.web.downloads import downloads
from organs.web.pages.jobs import (
    JobOutcome,
    outcome,
    result_links,
)
from organs.web.pages.routes import pages
from organs.web.responses import json_answer
from organs.web.server import processes
from organs.web.server.processes import RunnerProcess
from organs.web.settings import WebSettings
from tests.web.conftest import HOSTILE
from tests.web.live_server import ROOT, LiveServer, running_server
from tests.web.page_parser import found_at, page_at, parse_page

PATIENCE_SECONDS = 60.0


@pytest.fixture
def client(registry: LocalRegistry) -> Iterator[FlaskClient]:
    with create_app(registry, WebSettings(personal=True)).test_client() as client:
        yield client


def put(registry: LocalRegistry, state: str, **result: Any) -> int:
    """A job of that state."""
    with registry.catalog.writing() as session:
        job_id = enqueue_job(session, "report", {"limit": 3})
        if state == "queued":
            return job_id
        claim = claim_job(session, ["report"])
        assert claim is not None
        assert report_progress(session, claim, 0.625, "reading")
        if state == "finished":
            finish(session, claim, job_json(result, "result"))
        elif state == "failed":
            fail(session, claim, "there is nothing to read")
    return job_id


def test_a_running_job_has_a_progress_bar_and_is_followed_with_and_without_a_script(
    client: FlaskClient, registry: LocalRegistry
) -> None:
    job_id = put(registry, "running")
    text = client.get(f"/jobs/{job_id}").text
    page = parse_page(text)
    (bar,) = page.named("progress")
    assert (bar.attributes["value"], bar.attributes["max"]) == ("0.625", "1")
    assert bar.attributes["aria-label"]
    assert "62%" in page.text
    assert "reading" in page.text
    assert '<noscript><meta http-equiv="refresh" content="3"></noscript>' in text
    assert f'data-follow="/jobs/{job_id}.json"' in text
    assert page.named("form")


@pytest.mark.parametrize("state", ["finished", "failed"])
def test_the_page_of_a_job_that_has_ended_is_not_refreshed(
    client: FlaskClient, registry: LocalRegistry, state: str
) -> None:
    text = client.get(f"/jobs/{put(registry, state)}").text
    assert [part for part in ("http-equiv", "data-follow", "<form") if part in text] == []
    assert ("there is nothing to read" in text) is (state == "failed")
    assert "data-follow" not in client.get("/jobs").text


def test_the_list_is_followed_while_one_of_its_jobs_is_active(client: FlaskClient, registry: LocalRegistry) -> None:
    put(registry, "queued")
    text = client.get("/jobs?limit=5").text
    assert 'data-follow="/jobs.json?limit=5"' in text
    assert "http-equiv" in text


def test_a_result_links_to_the_models_and_organs_that_it_names(client: FlaskClient, registry: LocalRegistry) -> None:
    job_id = put(registry, "finished", model="local/a@1", models=["local/b"], organ="ab" * 32, organs=["cd" * 32, 7])
    links = page_at(client, f"/jobs/{job_id}").links()
    assert {"/models/local/a@1", "/models/local/b", f"/organs/{'ab' * 32}", f"/organs/{'cd' * 32}"} <= links


@pytest.mark.parametrize(
    "result",
    [
        {"model": "/x"},
        {"model": "x/"},
        {"model": 5},
        {"models": "local/a"},
        {"organ": "../../x"},
        {"organs": [None, {}, ["a"]]},
        {"model": "a/" + "b" * 1000},
    ],
)
def test_only_names_become_links(result: dict[str, Any]) -> None:
    with Flask(__name__).test_request_context():
        assert result_links(result) == []


def said_of(kind: str, result: dict[str, Any]) -> tuple[list[tuple[str, str, str]], list[str]]:
    """The facts, each with where it leads, and the addresses of the links of an outcome."""
    found = outcome_in_catalog(kind, result)
    return [(one.label, one.text, one.address or "") for one in found.facts], [one.address for one in found.links]


def outcome_in_catalog(kind: str, result: dict[str, Any]) -> JobOutcome:
    app = Flask("web")
    for blueprint in (pages, downloads):
        app.register_blueprint(blueprint)
    with app.test_request_context():
        return outcome(kind, result)


def test_a_validation_shows_verdict_reason_and_chimera_once_each() -> None:
    result = {"model": "a/c@1", "verdict": "gains", "reason": "It is better.", "models": ["a/c@1", "a/base@1", "a/d@1"]}
    facts, links = said_of("validate", result)
    assert facts == [
        ("verdict", "gains: runs, and is better than its base on at least one text", ""),
        ("reason", "It is better.", ""),
        ("chimera", "a/c@1", "/models/a/c@1"),
    ]
    assert links == ["/models/a/base@1", "/models/a/d@1"]


def test_a_chimera_made_by_a_job_is_shown_first_with_its_size() -> None:
    result = {"model": "a/c@1", "lock": "ab" * 32, "size_bytes": 4_100_000, "created": False}
    for kind in ("compose", "graft", "purify"):
        facts, links = said_of(kind, result)
        assert facts[:2] == [("chimera", "a/c@1", "/models/a/c@1"), ("size", "4.1 MB", "")]
        assert facts[2][0] == "made"
        assert links == []


def test_a_measurement_shows_its_largest_differences() -> None:
    one = {"difference": 0.25, "tensor": "output.weight"}
    result = {"model": "a/b@1", "measured": 1200, "differences": {"spectral_signal": one, "theta": None, "x": 5}}
    assert outcome_in_catalog("measure", result).differences == [("spectral signal", 0.25, "output.weight")]
    facts = [("model", "a/b@1", "/models/a/b@1"), ("organs measured", "1,200", "")]
    assert said_of("measure", result) == (facts, [])


def test_a_report_links_to_its_page() -> None:
    assert said_of("report", {"report": {}, "model": "a/b@1"})[0] == [("report", "on a/b@1", "/models/a/b@1/report")]
    assert said_of("report", {"report": {}})[0] == [("report", "on all models", "/reports")]


@pytest.mark.parametrize("kind", ["validate", "compose", "measure", "report", "extract", HOSTILE])
@pytest.mark.parametrize("thing", [None, 5, [], {}, HOSTILE, "a/" * 5000])
def test_a_result_of_any_form_has_an_outcome(kind: str, thing: object) -> None:
    names = ("model", "models", "lock", "verdict", "reason", "size_bytes", "measured", "differences", "report")
    found = outcome_in_catalog(kind, dict.fromkeys(names, thing))
    assert all(len(one.text) <= 3000 for one in found.facts)


def test_a_long_result_is_truncated_on_the_page_and_complete_in_json(
    client: FlaskClient, registry: LocalRegistry
) -> None:
    job_id = put(registry, "finished", text="x" * 500_000)
    page = client.get(f"/jobs/{job_id}").text
    assert len(page) < 30_000
    assert "The rest is in" in page
    assert len(found_at(client, f"/jobs/{job_id}.json")["result"]["text"]) == 500_000


def test_page_json_and_api_have_the_same_content(client: FlaskClient, registry: LocalRegistry) -> None:
    for state in ("finished", "failed", "running", "queued"):
        put(registry, state)
    listed = client.get("/api/v1/jobs?limit=3")
    assert listed.get_json() == found_at(client, "/jobs.json?limit=3")
    assert [one["state"] for one in listed.get_json()["items"]] == ["queued", "running", "failed"]
    assert 'rel="next"' in listed.headers["Link"]
    following = found_at(client, f"/api/v1/jobs?limit=3&after={listed.get_json()['next']}")
    assert [one["id"] for one in following["items"]] == [1]
    assert found_at(client, "/api/v1/jobs/2") == found_at(client, "/jobs/2.json")


@pytest.mark.parametrize("number", ["0", "x", "-1", "1.5", "٣", "9223372036854775808", "9" * 100, "77", "%00", "1'"])
def test_an_unknown_job_is_404_everywhere(number: str, client: FlaskClient, registry: LocalRegistry) -> None:
    put(registry, "queued")
    for address in (f"/jobs/{number}", f"/jobs/{number}.json", f"/api/v1/jobs/{number}"):
        assert client.get(address).status_code == 404, address
    answer = client.delete(f"/api/v1/jobs/{number}")
    assert answer.status_code == 404
    assert len(answer.get_json()["detail"]) < 200


def test_cancelling_over_the_api_returns_the_new_state_of_the_job(client: FlaskClient, registry: LocalRegistry) -> None:
    for state, after in (("queued", "cancelled"), ("finished", "finished")):
        job_id = put(registry, state)
        for _ in range(2):
            assert client.delete(f"/api/v1/jobs/{job_id}").get_json()["state"] == after


def test_a_full_queue_gives_503_with_retry_after(client: FlaskClient, registry: LocalRegistry) -> None:
    @client.application.get("/api/v1/fill")
    def fill() -> Response:
        return json_answer(queued("report", {}))

    for _ in range(QUEUED_MAX):
        assert client.get("/api/v1/fill").get_json()["state"] == "queued"
    answer = client.get("/api/v1/fill")
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert str(QueueFull(QUEUED_MAX)) == answer.get_json()["detail"]


def test_the_home_page_links_to_the_jobs_if_there_are_any(client: FlaskClient, registry: LocalRegistry) -> None:
    assert "No jobs." in page_at(client, "/jobs").text
    assert "/jobs" not in page_at(client, "/").links()
    put(registry, "queued")
    assert "/jobs" in page_at(client, "/").links()


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.05)


def runners(parent: int) -> list[int]:
    """The processes that work at jobs for the server `parent`."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"--with-parent" in words and str(parent).encode() in words:
            found.append(int(folder.name))
    return found


def state_of(live: LiveServer, job_id: int) -> str:
    return '"state":"finished"' if b'"state":"finished"' in live.get(f"/jobs/{job_id}.json") else "other"


@pytest.mark.long
def test_a_server_runs_jobs_replaces_a_lost_runner_and_ends_its_runner(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with LocalRegistry.open(home) as registry:
        first = put(registry, "queued")
        with running_server(home, tmp_path / "log") as live:
            until(lambda: state_of(live, first) != "other", (tmp_path / "log").read_text())
            (first_runner,) = runners(live.process.pid)
            os.kill(first_runner, signal.SIGKILL)
            second = put(registry, "queued")
            until(lambda: state_of(live, second) != "other", (tmp_path / "log").read_text())
            assert first_runner not in runners(live.process.pid)
            cancelled = put(registry, "queued")
            request = urllib.request.Request(f"{live.address}/api/v1/jobs/{cancelled}", method="DELETE")
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert answer.status == 200
            live.process.send_signal(signal.SIGTERM)
            assert live.process.wait(40) == 0
            assert runners(live.process.pid) == []
    assert "the runner of jobs has ended; it is started again" in (tmp_path / "log").read_text()


@pytest.mark.long
def test_a_server_that_is_killed_leaves_no_runner_behind(tmp_path: Path) -> None:
    with running_server(tmp_path / "home", tmp_path / "log") as live:
        until(lambda: len(runners(live.process.pid)) == 1, "a runner is started")
        live.process.kill()
        live.process.wait()
        until(lambda: runners(live.process.pid) == [], "the runner ends with the server")


class Log:
    """Keeps what is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def error(self, text: str, *values: object) -> None:
        self.told.append(text % values)


def test_a_runner_that_ends_repeatedly_is_restarted_with_growing_delays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, moment = Log(), 0.0
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: moment))
    process = RunnerProcess(Settings.in_folder(tmp_path), log, ("-c", "raise SystemExit(1)"))
    ended: list[float] = []
    while len(ended) < 8:
        process.look_after()
        if len(log.told) > len(ended):
            ended.append(moment)
        process.wait()
        moment += 0.5
    assert [text.rpartition("in ")[2] for text in log.told] == [f"{pause} s" for pause in (2, 4, 8, 16, 32, 60, 60, 60)]
    assert [later - earlier for earlier, later in pairwise(ended)] == [2.5, 4.5, 8.5, 16.5, 32.5, 60.5, 60.5]


@pytest.mark.folder
@pytest.mark.long
def test_the_runner_opens_the_served_registry_and_imports_nothing_from_the_working_directory(tmp_path: Path) -> None:
    settings = Settings(tmp_path / "a b?", f"sqlite:///{tmp_path}/x%20y.sqlite3", tmp_path / "blobs: 100%")
    (tmp_path / "here" / "registry").mkdir(parents=True)
    (tmp_path / "here" / "registry" / "__init__.py").write_text("raise SystemExit('not this one')")
    script = (
        "import os, sys; from organs.registry.settings import Settings\n"
        "with open(os.environ['TOLD'], 'w') as file: file.write(repr(Settings.from_environment(os.environ)))"
    )
    code = (
        "import os, sys; from pathlib import Path; from organs.registry.settings import Settings\n"
        "from tests.web.test_jobs import Log; from organs.web.server.processes import RunnerProcess\n"
        f"os.chdir({str(tmp_path / 'here')!r})\n"
        f"process = RunnerProcess(Settings.from_environment(os.environ), Log(), ('-P', '-c', {script!r}))\n"
        "process.look_after(); process.wait()"
    )
    environment = {
        **os.environ,
        "ORGAN_HOME": str(settings.home),
        "ORGAN_DATABASE_URL": settings.database_url,
        "ORGAN_BLOBS_URL": str(settings.blobs),
        "TOLD": str(tmp_path / "told"),
        "PYTHONPATH": str(ROOT),
    }
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert (tmp_path / "told").read_text() == repr(settings)
