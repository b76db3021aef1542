"""`organ validate` of files: what it prints, and when there is no verdict."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.cli.in_process import OrganCommand
from tests.validation.changed_models import A_F16, A_PROSE, A, feed_forward, graft, script


@pytest.fixture
def organ(tmp_path: Path) -> OrganCommand:
    """The command with a registry that is not there."""
    return OrganCommand(tmp_path / "nothing")


@pytest.fixture
def kin(tmp_path: Path) -> Path:
    """A with the feed-forward organs of its fine-tune."""
    return graft(A, A_PROSE, feed_forward(A), tmp_path / "kin.gguf")


@pytest.mark.long
def test_validate_prints_the_change_on_each_kind_of_text_with_its_margin(
    organ: OrganCommand, kin: Path, tmp_path: Path
) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("\n".join(f"The file {number} is opened for reading if it exists." for number in range(400)))
    ended = organ.done("validate", kin, "--base", A, "--text", text, "--budget", 1024, "--budget", "2m")
    assert "12 changed tensors zeroed" in ended.out
    (row,) = (line for line in ended.lines if line.strip().startswith("notes "))
    assert row.count("%") == 2
    assert row.split()[-1] == "1,275"
    assert "graft" not in ended.out


@pytest.mark.long
def test_the_divergence_of_a_quantisation_from_its_source_leads(organ: OrganCommand, tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("\n".join(f"The file {number} is opened for reading if it exists." for number in range(400)))
    options = ("--base", A_F16, "--text", text, "--budget", "2m")
    ended = organ.done("validate", A, *options, "--budget", 1024)
    heading = next(line for line in ended.lines if line.startswith("text"))
    assert re.split(" {2,}", heading)[:4] == ["text", "divergence", "99% of tokens below", "same top token"]
    assert re.search(rf"Divergence from {A_F16.name}: 0\.\d+ ± 0\.\d+ nats \(99% of", " ".join(ended.out.split()))
    assert "zeroed" not in ended.out
    look = organ.done("validate", A, *options, "--quick")
    assert " ".join(look.out.split()).startswith(f"quick look: Divergence from {A_F16.name}: 0.")
    assert organ.done("validate", A_F16, "--base", A, "--text", text, "--quick", "--json").values["from_source"] is None


def test_a_base_that_does_not_run_ends_with_1_and_no_verdict(organ: OrganCommand, kin: Path, tmp_path: Path) -> None:
    ended = organ("validate", kin, "--base", A, "--runtime", script(tmp_path, "sys.exit(3)"))
    assert (ended.status, ended.out) == (1, "")
    assert "the base does not run, so there is no verdict" in ended.err


@pytest.mark.long
def test_a_command_may_write_where_it_is_allowed_to(organ: OrganCommand, kin: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    body = f"open({str(tmp_path / 'out' / 'log')!r}, 'a').write('x')\nprint(json.dumps({{'perplexity': 26.5}}))"
    command = ("validate", kin, "--base", A, "--runtime", script(tmp_path, body), "--budget", 1024)
    assert organ(*command).status == 1
    organ.done(*command, "--runtime-write", tmp_path / "out")
    assert set((tmp_path / "out" / "log").read_text()) == {"x"}


def writer(folder: Path, body: str) -> str:
    path = folder / "writer.py"
    path.write_text(f"import sys\nmodel, prompt = sys.argv[1:]\n{body}\n")
    return f"{sys.executable} -I -S {path} {{model}} {{prompt}}"


@pytest.mark.parametrize(
    ("body", "same"),
    [("print('The sea is wide and blue.')", "the same as"), ("print(model, 'is a sea.')", "not the same as")],
)
def test_a_runtime_that_writes_text_gives_a_verdict_that_says_nothing_of_quality(
    body: str, same: str, organ: OrganCommand, kin: Path, tmp_path: Path
) -> None:
    report = organ.done("validate", kin, "--base", A, "--runtime", writer(tmp_path, body), "--json").values
    assert report["verdict"] == "writes"
    assert f"writes text that can be read; it is {same} the text of the base." in report["reason"]
    assert "nothing says how good the chimera is" in report["reason"]
    assert "sea" in report["chimera"]["written"]


def test_a_runtime_that_writes_text_finds_a_chimera_that_does_not_load(
    organ: OrganCommand, kin: Path, tmp_path: Path
) -> None:
    template = writer(tmp_path, "sys.exit('bad tensor') if 'kin' in model else print('The sea is wide and blue.')")
    ended = organ.done("validate", kin, "--base", A, "--runtime", template)
    assert ended.lines[0].endswith(": broken")
    assert "The chimera does not run: the runtime ended with 1: bad tensor." in ended.out


@pytest.mark.parametrize(
    ("first_line", "body", "options"),
    [
        ("#!{folder}/my-sh", "echo The sea is wide.", "--runtime-read {folder}/my-sh"),
        ("#!/bin/sh", "/bin/true; echo The sea is wide.", "--runtime-processes"),
        ("#!/usr/bin/env sh", "echo The sea is wide.", "--runtime-processes"),
    ],
)
def test_a_script_that_fails_says_which_option_allows_its_interpreter(
    first_line: str, body: str, options: str, organ: OrganCommand, kin: Path, tmp_path: Path
) -> None:
    shutil.copy("/bin/sh", tmp_path / "my-sh")
    runtime = tmp_path / "runtime"
    runtime.write_text(f"{first_line}\n{body}\n".format(folder=tmp_path))
    runtime.chmod(0o755)
    ended = organ("validate", kin, "--base", A, "--runtime", f"{runtime} {{model}} {{prompt}}")
    needed = options.format(folder=tmp_path)
    assert (ended.status, ended.out) == (1, "")
    assert (
        f"it is a script for {first_line.format(folder=tmp_path)[2:].split()[0]}, which may need {needed}" in ended.err
    )
    (command,) = re.findall(r"to allow it: organ (.*)", ended.err)
    assert organ.done(*shlex.split(command)).lines[0].endswith(": writes")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("#!/absent/sh\n", "it is a script, and its interpreter /absent/sh does not exist"),
        ("echo a\n", "it is not a program, and a script begins with a line such as #!/bin/sh"),
    ],
)
def test_a_script_that_cannot_start_says_why(
    text: str, reason: str, organ: OrganCommand, kin: Path, tmp_path: Path
) -> None:
    runtime = tmp_path / "runtime"
    runtime.write_text(text)
    runtime.chmod(0o755)
    ended = organ("validate", kin, "--base", A, "--runtime", f"{runtime} {{model}} {{prompt}}")
    assert ended.err.rstrip().endswith(reason)


@pytest.mark.long
def test_a_runtime_that_only_loads_runs_the_chimera_too(organ: OrganCommand, kin: Path, tmp_path: Path) -> None:
    body = "print(json.dumps({'loads': 'kin' not in model, 'reason': 'bad tensor'}))"
    ended = organ.done("validate", kin, "--base", A, "--runtime", script(tmp_path, body))
    assert ended.lines[0].endswith(": broken")


def test_a_name_that_does_not_exist_is_reported_before_anything_is_prepared(
    organ: OrganCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("organs.registry.local.LocalRegistry.validate", lambda *_, **__: pytest.fail("it began to run"))
    ended = organ("validate", "me/nothing")
    assert (ended.status, ended.out) == (3, "")
    assert "no model is registered as me/nothing" in ended.err
