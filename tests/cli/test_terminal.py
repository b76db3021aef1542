"""Every list on a terminal of 80 columns: a row is one line, whatever the names; in a pipe nothing is shortened."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
import time
from pathlib import Path
from shutil import copytree

import pytest
from rich.cells import cell_len
from sqlalchemy import select

from organs.cli.console import status_line
from organs.cli.main import GROUPS
from organs.ingest.jobs.runner import add_job
from organs.registry.catalog.register.accounts import add_contributor, create_token
from organs.registry.catalog.tables import ModelRow, SubmissionRow, now
from organs.registry.local import LocalRegistry
from tests import postgres
from tests.cli.in_process import CommandResult, OrganCommand
from tests.gains import add_gains

WIDTH = 80
LONG = "A-Model-With-A-Long-Name-Of-Several-Parts-That-Nobody-Would-Like-To-Type-v1.0"
BASE, DONOR, OTHER = f"acme/{LONG}-F16", f"acme/{LONG}-Coder-Q4_K_M", f"acme/{LONG}-Other-Q8_0"
CHIMERA = f"me/{LONG}-Chimera-F16"
OWNER = "somebody-with-a-rather-long-name-for-an-account"
LISTS = (
    *(("search",), ("search", "sort:-rank"), ("search", f"fits:{BASE} likeness:0.1-1"), ("search", "gain>-99")),
    *(("models",), ("models", "--rank"), ("models", f"kin:{BASE}"), ("models", "gain>-99")),
    *(("compat", BASE), ("compat", BASE, DONOR), ("compat", BASE, OTHER), ("leaderboard",), ("leaderboard", BASE)),
    *(("compare", BASE, DONOR), ("compare", BASE, OTHER), ("jobs",), ("token", "list"), ("contributor", "list")),
    *(("admin", "submissions"), ("admin", "events"), ("show", BASE, "--tensors"), ("show", CHIMERA, "--all")),
    *(("report",), ("report", BASE), ("search", "--facets", "--limit", "3"), ("admin", "doctor"), ("--help",)),
)
"""Commands with tables."""
QUICK = (
    *(("search", "sort:-rank"), ("models", f"kin:{BASE}"), ("compat", BASE, OTHER), ("leaderboard",), ("jobs",)),
    *(("compare", BASE, DONOR), ("token", "list"), ("admin", "submissions"), ("admin", "events"), ("report",)),
)
"""Some of them, which run without a terminal."""
NAMED = (("search",), ("models",), ("compat", BASE), ("leaderboard",), ("admin", "events"))
"""Commands whose rows have names of models."""
A_COMMAND_TO_COPY = re.compile(r"  +(organ .*|\S+|'.*')( \\)?")
"""A line of a command that continues on the next line; the argument alone may be longer than the terminal."""


@pytest.fixture(scope="module")
def crowded_home(family: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with long names: three models, a validated chimera, a job, a token, a submission."""
    home = tmp_path_factory.mktemp("crowded") / "home"
    copytree(family / "home", home)
    with LocalRegistry.open(home) as registry:
        registry.compose("base").graft("tuned", type="organ").named("me/mixed").plan().register()
        add_gains(registry, "me/mixed@1", {"python": 5.0, "narrative": -2.0})
        with registry.catalog.writing() as session:
            names = {"base": BASE, "tuned": DONOR, "stranger": OTHER, "mixed": CHIMERA}
            for model in session.scalars(select(ModelRow)):
                model.namespace, model.name = names[model.name].split("/")
            owner = add_contributor(session, OWNER)
            create_token(session, owner.id, ("read", "upload", "tokens"), "the machine in the cellar, on the left", 30)
            session.add(_submission(owner.id))
        add_job(registry, "report", {"model": BASE})
    return home


def _submission(owner_id: int) -> SubmissionRow:
    finding = {"severity": "warn", "code": "odd", "sentence": "It is odd in a way that takes a long sentence to tell."}
    times = {"created_at": now(), "changed_at": now()}
    texts = {"manifest": "{}", "metadata_given": "{}", "findings": json.dumps([finding])}
    place = {"contributor_id": owner_id, "namespace": OWNER, "name": LONG}
    return SubmissionRow(**place, **texts, **times, state="quarantined", size_bytes=5_000_000)


@pytest.fixture
def crowded(crowded_home: Path, tmp_path: Path) -> OrganCommand:
    home = Path(copytree(crowded_home, tmp_path / "home"))
    home.chmod(0o700)  # `organ admin doctor` fails if others can read it
    return OrganCommand(home)


def on_a_terminal(command: OrganCommand, *arguments: str, columns: int = WIDTH) -> CommandResult:
    """Run a command as on a terminal. The library that finds the width also believes these variables."""
    ended = command(*arguments, environment={"FORCE_COLOR": "1", "COLUMNS": str(columns), "TERM": "xterm"})
    assert ended.status == 0, ended
    return CommandResult(ended.status, *(re.sub(r"\x1b\[[0-9;]*m", "", text) for text in (ended.out, ended.err)))


def too_long(text: str) -> list[str]:
    return [line for line in text.splitlines() if cell_len(line) > WIDTH and not A_COMMAND_TO_COPY.fullmatch(line)]


def test_no_line_of_a_list_is_longer_than_the_terminal(crowded: OrganCommand) -> None:
    assert {*QUICK} <= {*LISTS}
    for arguments in QUICK:
        ended = on_a_terminal(crowded, *arguments)
        assert ended.out.strip(), arguments
        assert too_long(ended.out + ended.err) == [], arguments


def test_a_row_is_one_line_and_the_end_of_a_name_survives(crowded: OrganCommand) -> None:
    for arguments in NAMED:
        header, *rows = crowded(*arguments).lines
        shown_header, *shown = on_a_terminal(crowded, *arguments).lines
        assert len(shown) == len(rows) > 0, arguments
        assert len(shown_header) < len(header), arguments
        assert all(line[0] != " " or line.lstrip()[0] in "–0123456789" for line in shown), arguments
    names = "\n".join(on_a_terminal(crowded, "models").lines)
    for ending in ("-F16@1", "-Q4_K_M@1", "-Q8_0@1"):
        assert ending in names


def test_a_wider_terminal_shows_more_and_a_pipe_shows_everything(crowded: OrganCommand) -> None:
    widths = [len(on_a_terminal(crowded, "models", columns=columns).lines[0].split()) for columns in (60, 80, 120, 250)]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1] == len(crowded("models").lines[0].split())
    for name in (BASE, DONOR, OTHER, CHIMERA):
        assert any(f"{name}@1" in line for line in crowded("models").lines)


def test_a_summary_of_a_model_with_long_names_fits_a_screen(crowded: OrganCommand) -> None:
    for name in (BASE, CHIMERA):
        ended = on_a_terminal(crowded, "show", name)
        assert too_long(ended.out) == []
        assert len(ended.lines) <= 24
        commands = re.findall(r"^organ (\S+ sha256:\w+)", ended.out, re.MULTILINE)
        assert commands, "the digest stands for a name that is too long to copy"
        for command in commands:
            if not command.startswith(("assemble", "validate")):
                assert crowded(*command.split()).status == 0


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
    misused = crowded("search", "--limit", "5000", environment=environment).err.splitlines()
    assert misused[-2:] == [
        "Error: Invalid value for '--limit': 5000 is not in",
        "       the range 1<=x<=1000.",
    ]


def test_the_help_of_every_command_fits_the_terminal(organ: OrganCommand) -> None:
    groups = [("admin",), ("token",), ("contributor",), ("admin", "events"), ("token", "create"), ("admin", "remove")]
    for arguments in [*((name,) for commands in GROUPS.values() for name in commands), *groups]:
        help_text = organ(*arguments, "--help", environment={"COLUMNS": str(WIDTH)}).out
        assert [line for line in help_text.splitlines() if len(line) > WIDTH] == [], arguments


def test_a_command_that_takes_long_shows_what_it_does_only_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("organs.cli.console.PATIENCE_SECONDS", 0.0)

    def printed(*, quiet: bool = False, seconds: float = 0.05) -> str:
        with status_line("compare", quiet=quiet):
            time.sleep(seconds)
        captured = capsys.readouterr()
        assert captured.out == ""
        return captured.err

    assert printed() == "", "a pipe"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "compare …" in printed()
    assert printed(quiet=True) == ""
    monkeypatch.setattr("organs.cli.console.PATIENCE_SECONDS", 60.0)
    assert printed(seconds=0.0) == "", "a fast command"


def test_a_step_is_shown_only_when_a_command_takes_longer_than_a_second(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with status_line("validate", quiet=False) as say:
        say("10% base, loading")
    assert capsys.readouterr().err == "", "a fast command"
    monkeypatch.setattr("organs.cli.console.PATIENCE_SECONDS", 0.0)
    with status_line("validate", quiet=False) as say:
        say("10% base, loading")
        time.sleep(0.05)
    assert "10% base, loading" in capsys.readouterr().err


SCRIPT = """
import json, os, sys
from organs.cli.main import organ
for arguments in json.loads(sys.argv[1]):
    print(f"# {arguments}", flush=True)
    organ(arguments, standalone_mode=False)
"""


@pytest.mark.long
def test_no_line_is_longer_than_a_real_terminal(crowded: OrganCommand) -> None:
    """Run every list in a pseudo-terminal of 80 columns and 24 lines."""
    environment = postgres.environment(crowded.home)
    process, terminal = pty.fork()
    if process == 0:
        os.environ.pop("COLUMNS", None)
        os.environ |= {"TERM": "xterm", "NO_COLOR": "1", **environment}
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
        os.execv(sys.executable, [sys.executable, "-c", SCRIPT, json.dumps(LISTS)])
    printed = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # the end, on Linux
            break
        if not data:
            break
        printed += data
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed.decode("utf-8").replace("\r\n", "\n"))
    assert status == 0, text
    shown = text.splitlines()
    lines = "\n".join(line.rpartition("\r")[2] for line in shown if not line.startswith("# "))
    assert too_long(lines) == []
    assert text.count("\n# ") + 1 == len(LISTS)
