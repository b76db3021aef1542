"""The command in this process, on the registry of the test."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from organs.cli.main import main

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests in this folder as long."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.long)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The exit status and the output of a command."""

    status: int
    out: str
    err: str


Organ = Callable[..., CommandResult]


@pytest.fixture
def organ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Organ:
    """`organ(words...)` runs the command on the registry in the folder `home` of the test's own folder."""
    for name in ("ORGAN_DATABASE_URL", "ORGAN_BLOBS_URL", "ORGAN_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ORGAN_HOME", str(tmp_path / "home"))

    def run(*words: str | Path) -> CommandResult:
        monkeypatch.setattr(sys, "argv", ["organ", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main()
        status = caught.value.code
        assert isinstance(status, int)
        return CommandResult(status, *capsys.readouterr())

    return run
