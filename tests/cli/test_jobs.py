"""`organ work` and `organ jobs`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from organs.cli import registries
from organs.ingest.jobs.runner import add_job
from organs.registry.catalog import engine
from organs.registry.local import LocalRegistry
from tests import postgres
from tests.cli.in_process import OrganCommand

ROOT = Path(__file__).resolve().parents[2]


def test_waiting_jobs_are_run_and_reported_with_one_line_each(organ: OrganCommand, registry: LocalRegistry) -> None:
    assert organ.done("work", "--once").err == "The queue is empty.\n"
    add_job(registry, "report", {})
    add_job(registry, "report", {"model": "local/nothing"})
    ended = organ.done("work", "--once")
    assert ended.out == ""
    lines = ended.err.splitlines()
    assert lines[0] == "job 1 report: running"
    assert lines[1].startswith("job 1 report: finished after ")
    assert lines[3].startswith("job 2 report: failed after ")
    assert lines[3].endswith("no model is registered as local/nothing")
    assert organ.done("work", "--once", "-q").err == ""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_command_that_runs_for_long_waits_for_a_database_server_that_starts(
    form: str, organ: OrganCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [True, True, False]
    monkeypatch.setenv("ORGAN_LOG", form)
    monkeypatch.setattr(engine, "is_unavailable", lambda _url: answers.pop(0))
    monkeypatch.setattr(registries, "DATABASE_PAUSE_SECONDS", 0)
    ended = organ.done("work", "--once")
    assert (ended.err.count("The database does not answer yet: waiting for up to 60 s"), answers) == (1, [])
    monkeypatch.setattr(engine, "is_unavailable", lambda _url: True)
    assert organ.done("jobs").status == 0, "a short command does not wait"
    monkeypatch.setattr(registries, "DATABASE_SECONDS", 0)
    for command in (["work", "--once"], ["serve", "--port", "8999"], ["fleet", "resume"]):
        ended = organ(*command)
        assert (ended.status, ended.out) == (6, "")
        assert ended.err.startswith("organ: the database server has not accepted connections for 0 s: is it running?")


def test_a_job_is_cancelled_and_shown(organ: OrganCommand, registry: LocalRegistry) -> None:
    add_job(registry, "report", {"limit": 7})
    assert organ.done("jobs", "--cancel", 1).err == "job 1 is cancelled\n"
    shown = organ.done("jobs", "--show", 1).values
    assert (shown["state"], shown["arguments"], shown["result"]) == ("cancelled", {"limit": 7}, None)
    assert organ.done("jobs", 1).lines[1].split() == ["state", "cancelled,", "0%"]
    assert organ.done("jobs", 1, "--json").values == shown
    assert organ("jobs", "--cancel", 5).err.splitlines()[1].strip() == "try: organ jobs"


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_ends_cleanly_on_request(number: signal.Signals, registry: LocalRegistry) -> None:
    job_id = add_job(registry, "report", {})
    command = [sys.executable, "-m", "organs.cli", "--home", str(registry.settings.home), "work"]
    environment = os.environ | postgres.environment(registry.settings.home)
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == f"job {job_id} report: running\n"
    process.stderr.readline()
    process.send_signal(number)
    assert process.wait(60) == 0
    process.stderr.close()


def test_a_worker_without_its_server_ends_immediately(registry: LocalRegistry) -> None:
    command = [sys.executable, "-m", "organs.cli", "--home", str(registry.settings.home), "work", "--with-parent", "1"]
    assert os.getpid() != 1
    environment = os.environ | postgres.environment(registry.settings.home)
    assert subprocess.run(command, cwd=ROOT, env=environment, timeout=60, check=False).returncode == 1
