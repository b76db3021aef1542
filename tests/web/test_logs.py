"""The log of a server as lines of JSON, and the newest errors of a process."""

from __future__ import annotations

import json
import logging
import sys
import urllib.error
from pathlib import Path
from typing import Any

import pytest

from organs.ingest.jobs.runner import add_job
from organs.registry.local import LocalRegistry
from organs.web.logs import ERROR_TEXT_MAX, ERRORS_KEPT, FIELDS, JsonLines, RecentErrors
from tests.web.live_server import PATIENCE_SECONDS, running_server, wait_until

HOSTILE = 'a\nb\r\x1b[31m\x85\u2028\u202e"}\ud800é'
"""Everything that could end a line or change what a terminal shows, and a lone surrogate."""


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("organs.test", logging.ERROR, __file__, 1, "%s", (message,), None)
    setattr(made, FIELDS, fields)
    return made


def test_a_record_is_one_line_of_printable_ascii() -> None:
    line = JsonLines().format(record(HOSTILE, path=HOSTILE, seconds=0.5))
    assert line.isascii()
    assert line.isprintable()
    said = json.loads(line)
    assert (said["message"], said["path"], said["seconds"]) == (HOSTILE, HOSTILE, 0.5)
    assert (said["level"], said["logger"], said["time"][-6:]) == ("ERROR", "organs.test", "+00:00")


def test_an_exception_is_two_members_and_a_token_is_cut() -> None:
    made = record("orgp_ABC123 came in a path")
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        made.exc_info = sys.exc_info()
    said = json.loads(JsonLines().format(made))
    assert said["exception"] == "ValueError"
    assert said["traceback"].startswith("Traceback (most recent call last):\n")
    assert said["message"] == "orgp_... came in a path"


def test_the_newest_errors_are_kept_short_and_counted() -> None:
    counted: list[str] = []
    errors = RecentErrors(counted.append)
    for number in range(ERRORS_KEPT + 5):
        errors.handle(record(f"{number}\n{'x' * 1000}"))
    newest = errors.newest()
    assert (len(newest), errors.total, len(counted)) == (ERRORS_KEPT, ERRORS_KEPT + 5, ERRORS_KEPT + 5)
    assert newest[0].message.startswith(f"{ERRORS_KEPT + 4} x")
    assert len(newest[0].message) == ERROR_TEXT_MAX


@pytest.mark.long
def test_a_server_writes_requests_jobs_and_refusals_as_lines_of_json(
    registry: LocalRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORGAN_LOG", "json")
    add_job(registry, "report", {"model": "local/nothing"})
    registry.catalog.close()
    log = tmp_path / "log"

    def records(logger: str) -> list[dict[str, Any]]:
        return [said for said in map(json.loads, log.read_text().splitlines()) if said["logger"] == logger]

    with running_server(registry.settings.home, log, options=("--workers", "1")) as live:
        live.get("/models?q=secretquery", {"X-Request-ID": "abc-1"})
        live.get("/models", {"X-Request-ID": 'x"y'})
        with pytest.raises(urllib.error.HTTPError) as caught:
            live.get("/nowhere%0A")
        caught.value.close()
        assert live.send(b"GET /twice HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n").startswith(b"HTTP/1.1 400")
        wait_until(lambda: len(records("organs.requests")) == 4)
        wait_until(lambda: len(records("organs.jobs")) == 2)
    found, second, absent, refused = records("organs.requests")
    assert (found["method"], found["path"], found["status"], found["client"]) == ("GET", "/models", 200, "127.0.0.1")
    assert (found["request_id"], "request_id" in second) == ("abc-1", False)
    assert found["bytes"] > 1000
    assert 0 < found["seconds"] < PATIENCE_SECONDS
    assert (absent["path"], absent["status"]) == ("/nowhere%0A", 404)
    assert (refused["path"], refused["status"], refused["bytes"] > 0) == ("/twice", 400, True)
    assert "secretquery" not in log.read_text()
    _, ended = records("organs.jobs")
    assert (ended["level"], ended["kind"], ended["state"]) == ("WARNING", "report", "failed")
    assert ended["reason"] == "no model is registered as local/nothing"
