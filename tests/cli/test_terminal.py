"""Every list on a terminal of 80 columns: a row is one line, whatever the names; in a pipe nothing is shortened."""

from __future__ import annotations

import re
import time

import pytest
from rich.cells import cell_len

from organs.cli.console import status_line
from organs.cli.main import GROUPS
from tests.cli.crowded import BASE, CHIMERA, DONOR, OTHER
from tests.cli.in_process import CommandResult, OrganCommand
from tests.cli.pseudo_terminal import on_a_pseudo_terminal

WIDTH = 80
LISTS = (
    *(("search",), ("search", "sort:-rank"), ("search", f"fits:{BASE} likeness:0.1-1"), ("search", "gain>-99")),
    *(("models",), ("models", "--rank"), ("models", f"kin:{BASE}"), ("models", "gain>-99")),
    *(("compat", BASE), ("compat", BASE, DONOR), ("compat", BASE, OTHER), ("leaderboard",), ("leaderboard", BASE)),
    *(("compare", BASE, DONOR), ("compare", BASE, OTHER), ("jobs",), ("token", "list"), ("contributor", "list")),
    *(("admin", "submissions"), ("admin", "events"), ("show", BASE, "--tensors"), ("show", CHIMERA, "--all")),
    *(("report",), ("report", BASE), ("search", "--facets", "--limit", "3"), ("admin", "doctor"), ("--help",)),
)
"""Commands with tables."""
NAMED = (("search",), ("models",), ("compat", BASE), ("leaderboard",), ("admin", "events"))
"""Commands whose rows have names of models."""
A_COMMAND_TO_COPY = re.compile(r"  +(organ .*|\S+|'.*')( \\)?")
"""A line of a command that continues on the next line; the argument alone may be longer than the terminal."""


def on_a_terminal(command: OrganCommand, *arguments: str, columns: int = WIDTH) -> CommandResult:
    """Run a command as on a terminal. The library that finds the width also believes these variables."""
    ended = command(*arguments, environment={"FORCE_COLOR": "1", "COLUMNS": str(columns), "TERM": "xterm"})
    assert ended.status == 0, ended
    return CommandResult(
        ended.status, *(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text) for text in (ended.out, ended.err))
    )


def too_long(text: str) -> list[str]:
    return [line for line in text.splitlines() if cell_len(line) > WIDTH and not A_COMMAND_TO_COPY.fullmatch(line)]


def test_no_line_of_a_list_is_longer_than_the_terminal(crowded: OrganCommand) -> None:
    for arguments in LISTS:
        ended = on_a_terminal(crowded, *arguments)
        assert ended.out.strip(), arguments
        assert too_long(ended.out + ended.err) == [], arguments


def test_a_row_is_one_line_and_the_end_of_a_name_survives(crowded: OrganCommand) -> None:
    for arguments in NAMED:
        header, *rows = crowded(*arguments).lines
        shown_header, *shown = on_a_terminal(crowded, *arguments).lines
        assert len(shown) == len(rows) > 0, arguments
        assert len(shown_header) < len(header), arguments
    names = on_a_terminal(crowded, "models").out
    assert all(ending in names for ending in ("-F16@1", "-Q4_K_M@1", "-Q8_0@1"))


def test_a_wider_terminal_shows_more_and_a_pipe_shows_everything(crowded: OrganCommand) -> None:
    widths = [len(on_a_terminal(crowded, "models", columns=columns).lines[0].split()) for columns in (60, 80, 120, 250)]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1] == len(crowded("models").lines[0].split())
    assert all(f"{name}@1" in crowded("models").out for name in (BASE, DONOR, OTHER, CHIMERA))


def test_a_summary_of_a_model_with_long_names_fits_a_screen(crowded: OrganCommand) -> None:
    for name in (BASE, CHIMERA):
        ended = on_a_terminal(crowded, "show", name)
        assert too_long(ended.out) == []
        assert len(ended.lines) <= 24
        digest = re.search(r"^organ assemble (sha256:\w+)", ended.out, re.MULTILINE)
        assert digest, "the digest stands for a name that is too long to copy"
        assert crowded("show", digest[1]).out == crowded("show", name).out


def test_an_error_is_wrapped_between_words(crowded: OrganCommand) -> None:
    environment = {"FORCE_COLOR": "1", "COLUMNS": "50", "TERM": "xterm"}
    ended = crowded("search", "typ:organ", environment=environment)
    first, *others = ended.err.splitlines()
    assert first.startswith("organ: ")
    assert others
    assert all(line.startswith("       ") and len(line) <= 50 for line in others)
    assert " ".join(line.strip() for line in (first, *others)) == " ".join(
        line.strip() for line in crowded("search", "typ:organ").err.splitlines()
    )


def test_the_help_of_every_command_fits_the_terminal(organ: OrganCommand) -> None:
    groups = [("admin",), ("token",), ("contributor",), ("admin", "events"), ("token", "create"), ("admin", "remove")]
    for arguments in [*((name,) for commands in GROUPS.values() for name in commands), *groups]:
        help_text = organ(*arguments, "--help", environment={"COLUMNS": str(WIDTH)}).out
        assert help_text.startswith(f"Usage: organ {' '.join(arguments)} "), arguments
        assert [line for line in help_text.splitlines() if len(line) > WIDTH] == [], arguments


def test_a_command_that_takes_long_shows_what_it_does_only_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("organs.cli.console.PATIENCE_SECONDS", 0.0)

    def printed(*, quiet: bool = False, seconds: float = 0.05) -> str:
        with status_line("compare", quiet=quiet) as say:
            say("10% base, loading")
            time.sleep(seconds)
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err

    assert printed() == "", "a pipe"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "10% base, loading" in printed()
    assert printed(quiet=True) == ""
    monkeypatch.setattr("organs.cli.console.PATIENCE_SECONDS", 60.0)
    assert printed(seconds=0.0) == "", "a fast command"


@pytest.mark.long
def test_the_width_is_that_of_a_real_terminal(crowded: OrganCommand) -> None:
    ended = on_a_pseudo_terminal(crowded.home, "models", columns=WIDTH)
    assert ended.status == 0, ended
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", ended.err)
    lines = [line.rpartition("\r")[2] for line in text.splitlines()]
    assert too_long("\n".join(lines)) == []
    assert any(line.startswith("acme/") and "…" in line for line in lines)
