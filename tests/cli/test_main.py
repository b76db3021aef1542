"""The entry point: help, exit statuses, errors of one line, and nothing loaded that is not needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from organs.cli import purify
from organs.registry.compose.recipe_io import METHODS
from tests.cli.running import Organ

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = (
    *("ingest", "models", "show", "assemble", "verify", "sweep", "serve", "demo"),
    *("compat", "compose", "purify", "transplant", "graft", "work", "jobs"),
)


def start(*arguments: object, home: Path, **environment: str) -> subprocess.Popen[str]:
    """The command as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "organs.cli", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "ORGAN_HOME": str(home), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_help_lists_every_command_with_a_line(organ: Organ) -> None:
    listed = organ.done("--help").out
    for command in COMMANDS:
        assert f"\n  {command} " in listed
    assert "Exit status:\n    0  done\n" in listed


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_has_help_of_its_own(command: str, flag: str, organ: Organ) -> None:
    ended = organ.done(command, flag)
    assert ended.out.startswith(f"Usage: organ {command} ")
    assert ended.err == ""


def test_the_version_is_told(organ: Organ) -> None:
    assert organ.done("--version").out.startswith("organ, ")


def test_methods_of_purification_are_those_that_there_are() -> None:
    assert purify._METHODS == METHODS
