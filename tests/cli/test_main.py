"""The entry point: help, exit statuses, errors of one line, and nothing loaded that is not needed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from organs.cli import purify
from organs.cli.main import COMMANDS, GROUPS
from organs.registry.compose.recipe import PURIFY_METHODS
from organs.registry.errors import NothingRegistered
from organs.registry.local import LocalRegistry
from tests import postgres
from tests.cli.in_process import OrganCommand

ROOT = Path(__file__).resolve().parents[2]


def test_a_call_without_a_command_shows_the_first_steps_and_only_existing_commands(organ: OrganCommand) -> None:
    assert organ.done("--version").out.startswith("organ, ")
    ended = organ()
    assert (ended.status, ended.out) == (2, "")
    assert len(ended.err.splitlines()) < 20
    commands = re.findall(r"^  organ ([a-z]+) ", ended.err, re.MULTILINE)
    assert len(commands) > 5
    assert {*commands} <= {name for entries in GROUPS.values() for name in entries}
    assert "organ --help lists all commands" in ended.err


def test_a_path_in_the_place_of_a_name_gets_a_hint(
    filled: OrganCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    Path("models/tiny.gguf").write_bytes(b"GGUF")
    missing = "{}: no such file or folder, and not the name of a registered model"
    path = "a path is not the name of a registered model: organ ingest {} registers it"
    for words, word, hint in (
        (("show", "./a.gguf"), "./a.gguf", missing),
        (("assemble", "./gone/", "-o", "./x/"), "./gone/", missing),
        (("show", "models/tiny.gguf"), "models/tiny.gguf", path),
        (("report", "./models"), "./models", path),
    ):
        ended = filled(*words)
        assert (ended.status, ended.err.splitlines()[1:]) == (1, [f"       {hint.format(word)}"])


def test_a_newer_database_is_refused_with_a_hint(organ: OrganCommand, registry: LocalRegistry) -> None:
    with registry.catalog.writing() as session:
        session.connection().exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    ended = organ("models")
    assert ended.status == 1
    hint = ended.err.splitlines()[1]
    assert re.fullmatch(r" {7}try: \S+ -m pip install --upgrade \S+", hint)


def test_an_unusable_database_gives_an_error_of_one_line(organ: OrganCommand) -> None:
    for url in ("nonsense", "sqlite://", "unknown://host/name"):
        ended = organ("models", environment={"ORGAN_DATABASE_URL": url})
        assert ended.status == 1
        assert ended.err.splitlines()[1] == "       check ORGAN_DATABASE_URL, or choose another folder with --home"
        assert "Traceback" not in ended.err


def test_an_error_reaches_python_on_request_which_prints_its_traceback(organ: OrganCommand) -> None:
    assert organ("show", "nobody").status == 3
    with pytest.raises(NothingRegistered):
        organ("show", "nobody", environment={"ORGAN_DEBUG": "1"})


def test_a_closed_output_pipe_ends_the_command_quietly(filled: OrganCommand) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "organs.cli", "show", "little"],
        cwd=ROOT,
        env={**os.environ, **postgres.environment(filled.home)},
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write_end)
    assert done.stderr == ""
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("method", "line", "says"),
    [
        ("models", "models", "interrupted; nothing is incomplete: run the same command again to continue"),
        ("continue_evolution", "evolve 7", "interrupted; to continue: organ evolve 7"),
    ],
)
def test_ctrl_c_ends_with_130_and_says_how_to_continue(method: str, line: str, says: str, tmp_path: Path) -> None:
    script = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a job in the background ignores it
        "from organs.cli import main\n"
        "from organs.registry.local import LocalRegistry as registry\n"
        "def wait(*_arguments, **_options):\n"
        "    print('waiting', flush=True)\n"
        "    signal.pause()\n"
        f"registry.{method} = wait\n"
        f"sys.argv = 'organ {line}'.split()\n"
        "main.main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "ORGAN_HOME": str(tmp_path / "home")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert err.strip() == f"organ: {says}"


def test_help_of_every_command_loads_neither_the_database_nor_the_server() -> None:
    script = (
        "import sys; from organs.cli.main import COMMANDS, organ\n"
        "for name in COMMANDS:\n"
        "    organ.main([name, '--help'], standalone_mode=False)\n"
        "print('loaded', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.rpartition("loaded")[2].split())
    assert "organs.cli.serve" in loaded
    assert loaded & {"numpy", "sqlalchemy", "flask", "gunicorn", "zstandard", "urllib3", "yaml", "alembic"} == set()


def test_help_lists_the_commands_below_headings(organ: OrganCommand) -> None:
    listed = organ.done("--help").out.partition("Options:")[2].partition("Exit status:\n    0  done\n")[0]
    lines = re.findall(r"^(?:(\S.*):|  ([a-z-]+) +(.+))$", listed, re.MULTILINE)
    expected = [(heading, [*commands.items()]) for heading, commands in GROUPS.items()]
    assert [line for line in lines if line[0] or line[1] in COMMANDS] == [
        entry for heading, commands in expected for entry in [(heading, "", ""), *(("", *one) for one in commands)]
    ]


def test_the_offered_methods_of_purification_are_the_existing_ones() -> None:
    assert purify.METHODS == PURIFY_METHODS


def test_the_guide_lists_the_commands_in_the_groups_of_the_help() -> None:
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    entries = re.findall(r"^\| (?:\*\*(.+?)\*\* \| \||`organ ([a-z-]+))", guide, re.MULTILINE)
    expected = [
        entry for heading, commands in GROUPS.items() for entry in [(heading, ""), *(("", one) for one in commands)]
    ]
    assert entries[: len(expected)] == expected


def test_an_address_that_is_not_of_a_page_names_no_command(organ: OrganCommand) -> None:
    for text in ("http://[x", "s3://bucket/key", "https://me:secret@registry.example/models/a/b"):
        assert "write:" not in organ("--registry", "https://registry.example", "pull", text).err
