"""Jobs on pages and in the API; and the process that works at them beside the server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
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
    outcome,
    result_links,
)
from organs.web.pages.routes import pages
from organs.web.responses import json_answer
from organs.web.server import processes
from organs.web.server.processes import RunnerProcess
from organs.web.settings import WebSettings
from tests.web.conftest import HOSTILE
from tests.web.live_server import ROOT, LiveServer, running_server, wait_until
from tests.web.page_parser import found_at


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


def test_pages_of_jobs_are_followed_with_and_without_a_script_while_a_job_is_active(
    client: FlaskClient, registry: LocalRegistry
) -> None:
    ended = [f"/jobs/{put(registry, state)}" for state in ("finished", "failed")]
    for address in (*ended, "/jobs"):
        assert [part for part in ("http-equiv", "data-follow") if part in client.get(address).text] == [], address
    for address, followed in ((f"/jobs/{put(registry, 'running')}", ""), ("/jobs", "?limit=5")):
        text = client.get(f"{address}{followed}").text
        assert '<noscript><meta http-equiv="refresh"' in text
        assert f'data-follow="{address}.json{followed}"' in text


def test_only_names_become_links() -> None:
    with Flask(__name__).test_request_context():
        for result in (
            {"model": "/x"},
            {"model": "x/"},
            {"model": 5},
            {"models": "local/a"},
            {"organ": "../../x"},
            {"organs": [None, {}, ["a"]]},
            {"model": "a/" + "b" * 1000},
        ):
            assert result_links(result) == [], result


@pytest.fixture
def in_request() -> Iterator[None]:
    """A request to an application that has the pages, so that addresses can be built."""
    app = Flask("web")
    for blueprint in (pages, downloads):
        app.register_blueprint(blueprint)
    with app.test_request_context():
        yield


@pytest.mark.usefixtures("in_request")
def test_a_report_links_to_its_page() -> None:
    for model, text, address in (("a/b@1", "on a/b@1", "/models/a/b@1/report"), (None, "on all models", "/reports")):
        (fact,) = outcome("report", {"report": {}, "model": model}).facts
        assert (fact.label, fact.text, fact.address) == ("report", text, address)


@pytest.mark.usefixtures("in_request")
@pytest.mark.parametrize("thing", [None, 5, [], {}, HOSTILE, "a/" * 5000])
def test_a_result_of_any_form_has_an_outcome(thing: object) -> None:
    names = ("model", "models", "lock", "verdict", "reason", "size_bytes", "measured", "differences", "report")
    for kind in ("validate", "compose", "measure", "report", "extract", HOSTILE):
        assert all(len(one.text) <= 3000 for one in outcome(kind, dict.fromkeys(names, thing)).facts)


def test_a_long_result_is_truncated_on_the_page_and_complete_in_json(
    client: FlaskClient, registry: LocalRegistry
) -> None:
    job_id = put(registry, "finished", text="x" * 500_000)
    page = client.get(f"/jobs/{job_id}").text
    assert len(page) < 30_000
    assert "The rest is in" in page
    assert len(found_at(client, f"/jobs/{job_id}.json")["result"]["text"]) == 500_000


def test_an_unknown_job_is_404_everywhere(client: FlaskClient, registry: LocalRegistry) -> None:
    put(registry, "queued")
    for number in ("0", "x", "-1", "1.5", "٣", "9223372036854775808", "9" * 100, "77", "%00", "1'"):
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
        put(registry, "queued")
    answer = client.get("/api/v1/fill")
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert str(QueueFull(QUEUED_MAX)) == answer.get_json()["detail"]


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
            wait_until(lambda: state_of(live, first) != "other")
            (first_runner,) = runners(live.process.pid)
            os.kill(first_runner, signal.SIGKILL)
            second = put(registry, "queued")
            wait_until(lambda: state_of(live, second) != "other")
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
        wait_until(lambda: len(runners(live.process.pid)) == 1)
        live.process.kill()
        live.process.wait()
        wait_until(lambda: runners(live.process.pid) == [])


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
