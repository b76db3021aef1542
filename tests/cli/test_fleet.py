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
    assert ended.err.startswith("run 1 of zoo begins: 2 units to do\n")
    assert ended.lines[0] == "run 1 of zoo: 1 done, 1 failed"
    assert "wrong.gguf" in ended.out
    assert "organ fleet resume 1 --retry" in ended.err
    shown = organ.done("fleet", "status", "--json").values
    assert (shown["name"], shown["done"], shown["failed"]) == ("zoo", 1, 1)
    assert organ.done("fleet", "status", "zoo").lines[0] == ended.lines[0]
    again = organ("fleet", "run", plan)
    assert (again.status, again.err.splitlines()[0]) == (1, "run 1 of zoo is over: 0 units to do")
    wrong = plan.parent / "models" / "wrong.gguf"
    wrong.write_bytes(small_model("Other", seed=1))
    assert json.loads(organ.done("fleet", "resume", "--retry", "--workers", 1, "--json").out)["done"] == 2
    changed = organ("fleet", "run", plan, "--workers", 1)
    assert (changed.status, changed.err.splitlines()[0]) == (0, "run 2 of zoo begins: 2 units to do")
    assert [line.split()[:2] for line in organ.done("fleet", "list").lines[1:]] == [["2", "zoo"], ["1", "zoo"]]
    assert organ.done("fleet", "remove", "1").err == "run 1 removed\n"
    assert [run["id"] for run in organ.done("fleet", "list", "--json").values] == [2]


def test_a_dry_run_lists_the_units_and_writes_nothing(organ: OrganCommand, plan: Path, registry: LocalRegistry) -> None:
    lines = organ.done("fleet", "run", plan, "--dry-run").lines
    assert [line.split()[0] for line in lines] == ["work", "ingest", "ingest"]
    assert "little.gguf" in lines[1]
    assert [unit["size_bytes"] for unit in organ.done("fleet", "run", plan, "-n", "--json").values] == [
        path.stat().st_size for path in sorted((plan.parent / "models").iterdir())
    ]
    assert organ("fleet", "status").status == 3


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('name = "zoo"\n[[work]]\ndo = "ingest"\n', ": work 1: ingest needs the list 'from'\n"),
        ("GGUF\0", " is not a TOML file: "),
        ('name = "zoo"\n[[work]]\ndo = "ingest"\nfrom = ["*.bin"]\n', "no file matches the pattern"),
        ('name = "zoo"\n[[work]]\ndo = "ingest"\nfrom = ["none"]\n', "no such file or folder"),
    ],
)
def test_a_wrong_plan_is_refused_with_one_sentence(organ: OrganCommand, plan: Path, text: str, problem: str) -> None:
    plan.write_text(text)
    ended = organ("fleet", "run", plan)
    assert ended.status in (1, 2)
    assert problem in ended.err
    assert len(ended.err.splitlines()) == 1
    assert organ("fleet", "status").status == 3


def test_a_scheduler_needs_an_extra_that_the_message_names(
    organ: OrganCommand, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    ended = organ("fleet", "run", plan, "--scheduler", "tcp://127.0.0.1:8786")
    assert ended.status == 1
    assert "a scheduler needs the package distributed" in ended.err
    assert "[fleet]" in ended.err
