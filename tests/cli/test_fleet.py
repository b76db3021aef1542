"""`organ fleet`: plans are run, shown and retried."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from organs.registry.local import LocalRegistry
from tests import postgres
from tests.cli.in_process import OrganCommand
from tests.small_models import small_model


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A plan that ingests a model, and a file that is not one."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "little.gguf").write_bytes(small_model())
    (tmp_path / "models" / "wrong.gguf").write_bytes(b"not a model")
    path = tmp_path / "plan.toml"
    path.write_text('name = "zoo"\n[[work]]\ndo = "ingest"\nfrom = ["models"]\n')
    return path


@pytest.mark.long
def test_a_plan_is_run_shown_and_continued(organ: OrganCommand, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in postgres.environment(organ.home).items():  # for the workers
        monkeypatch.setenv(name, value)
    ended = organ("fleet", "run", plan, "--workers", 1)
    assert ended.status == 1
    assert ended.err.startswith("run 1 of zoo begins: 2 units of work\n")
    assert ended.lines[0] == "run 1 of zoo: 1 done, 1 failed"
    assert "wrong.gguf" in ended.out
    assert "organ fleet retry 1" in ended.err
    shown = organ.done("fleet", "status", "--json").values
    assert (shown["name"], shown["done"], shown["failed"]) == ("zoo", 1, 1)
    assert organ.done("fleet", "status", "zoo").lines[0] == ended.lines[0]
    again = organ("fleet", "run", plan, "-q")
    assert (again.status, again.err) == (1, "again: organ fleet retry 1\n")
    assert organ.done("models", "-q").lines == ["local/little@1"]
    assert organ.done("fleet", "retry").err == "1 unit of run 1 queued again\n"
    (plan.parent / "models" / "wrong.gguf").write_bytes(small_model("Other", seed=1))
    assert json.loads(organ.done("fleet", "run", plan, "--workers", 1, "--json").out)["done"] == 2


def test_a_dry_run_lists_the_units_and_writes_nothing(organ: OrganCommand, plan: Path, registry: LocalRegistry) -> None:
    lines = organ.done("fleet", "run", plan, "--dry-run").lines
    assert [line.split()[0] for line in lines] == ["work", "ingest", "ingest"]
    assert "little.gguf" in lines[1]
    missing = organ("fleet", "status")
    assert missing.status == 3
    assert missing.err.startswith("organ: no fleet has run yet\n")


def test_a_wrong_plan_is_refused_with_one_sentence(organ: OrganCommand, plan: Path) -> None:
    plan.write_text('name = "zoo"\n[[work]]\ndo = "ingest"\n')
    ended = organ("fleet", "run", plan)
    assert (ended.status, ended.err) == (1, f"organ: {plan}: work 1: ingest needs the list 'from'\n")
    assert organ("fleet", "status").status == 3


def test_a_scheduler_needs_an_extra_that_the_message_names(
    organ: OrganCommand, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    ended = organ("fleet", "run", plan, "--scheduler", "tcp://127.0.0.1:8786")
    assert ended.status == 1
    assert "a scheduler needs the package distributed" in ended.err
    assert "[fleet]" in ended.err


def test_a_remote_registry_has_no_fleet(organ: OrganCommand, plan: Path) -> None:
    ended = organ("fleet", "run", plan, environment={"ORGAN_REGISTRY": "http://127.0.0.1:9"})
    assert ended.status == 1
    assert "organ fleet run works on a local registry only" in ended.err
