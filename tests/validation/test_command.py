"""Tests of other runtimes by a command template, well-behaved and hostile, and of their confinement."""

from __future__ import annotations

import fcntl
import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pytest

from organs.registry.errors import BadSetting
from organs.registry.sandbox.process import ProcessLimits, Sandbox, run_confined
from organs.registry.validation.command import PROMPT, CommandRuntime, text_fault
from organs.registry.validation.runtime import (
    FailureKind,
    NoRuntime,
    RuntimeReading,
    ScoringRequest,
)
from organs.registry.validation.texts import built_in_texts
from tests.validation.changed_models import A, script

TEXTS = built_in_texts(("python", "javascript"))


def request(texts: int = 1, windows: int = 1) -> ScoringRequest:
    return ScoringRequest(A, TEXTS[:texts], (range(windows),) * texts)


PYTHON = Sandbox(read=(Path(sys.base_prefix), Path(sys.prefix)))
SAYS_26 = 'print(json.dumps({"perplexity": 26.5, "tokens": int(tokens) - 1}))'


def read(
    folder: Path, body: str, limits: ProcessLimits | None = None, texts: int = 1, sandbox: Sandbox | None = None
) -> RuntimeReading:
    runtime = CommandRuntime(script(folder, body), limits or ProcessLimits(wall_seconds=120), sandbox)
    return runtime.read(request(texts), lambda *_: None)


def refusal(folder: Path, body: str) -> str:
    reading = read(folder, body).failure
    assert reading is not None
    assert reading.kind is FailureKind.REFUSED
    return reading.reason


def test_a_command_receives_the_model_each_window_and_the_tokens(tmp_path: Path) -> None:
    body = f"""
assert model == {str(A)!r}
print(json.dumps({{"perplexity": 1 + len(open(text, encoding="utf-8").read()), "tokens": int(tokens)}}))
"""
    runtime = CommandRuntime(script(tmp_path, body), ProcessLimits(wall_seconds=120))
    reading = runtime.read(request(2, 2), lambda *_: None)
    assert reading.failure is None
    assert [score.text for score in reading.scores] == ["python", "javascript"]
    for score in reading.scores:
        assert [window.tokens for window in score.windows] == [256, 256]
        assert score.perplexity == pytest.approx(1.0 + 4 * 256)
        assert len({window.digest for window in score.windows}) == 2
        assert score.window_count >= 15


def test_a_command_is_not_started_after_the_time_is_over(tmp_path: Path) -> None:
    runtime = CommandRuntime(script(tmp_path, SAYS_26), ProcessLimits(wall_seconds=120))
    reading = runtime.read(replace(request(2, 2), seconds=0.0), lambda *_: None)
    assert [len(score.windows) for score in reading.scores] == [1, 0]


def test_chatter_before_the_last_line_does_not_matter(tmp_path: Path) -> None:
    score = read(tmp_path, f"print('loading')\nprint('{{}}')\n{SAYS_26}\nprint()").scores[0]
    assert (score.perplexity, score.tokens) == (pytest.approx(26.5), 255)


def test_a_command_may_only_say_that_the_model_loads(tmp_path: Path) -> None:
    reading = read(tmp_path, "print('{\"loads\": true}')")
    assert reading.failure is None
    assert reading.scores[0].perplexity is None


def test_a_command_may_say_that_the_model_does_not_load(tmp_path: Path) -> None:
    assert (
        refusal(tmp_path, 'print(\'{"loads": false, "reason": "no such\\\\u001b[31m thing"}\')') == "no such [31m thing"
    )


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("", "printed nothing"),
        ("not JSON", "not a JSON object"),
        ("[1]", "not a JSON object"),
        ("[" * 100_000, "more than 65536 bytes"),
        ("[" * 60_000, "not a JSON object"),
        ("{}", "neither a perplexity nor"),
        ('{"perplexity": "26"}', "an invalid perplexity"),
        ('{"perplexity": true}', "an invalid perplexity"),
        ('{"perplexity": null}', "an invalid perplexity"),
        ('{"perplexity": 0.5}', "an invalid perplexity"),
        ('{"perplexity": -1e999}', "an invalid perplexity"),
        ("\x1b[2J\x07", "not a JSON object"),
    ],
)
def test_an_invalid_answer_is_refused_in_a_sentence(tmp_path: Path, printed: str, reason: str) -> None:
    message = refusal(tmp_path, f"print({printed!r})" if len(printed) < 100 else f"print('[' * {len(printed)})")
    assert reason in message
    assert message.isprintable()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "1" + "0" * 400])
def test_a_perplexity_that_is_not_finite_is_infinite(tmp_path: Path, number: str) -> None:
    score = read(tmp_path, f'print(\'{{"perplexity": {number}, "tokens": -1}}\')').scores[0]
    assert (score.perplexity, score.tokens) == (math.inf, 256)


@pytest.mark.parametrize("body", ["print('x' * 10_000_000)", "print('x\\n' * 5_000_000)", "os.write(1, bytes(10**7))"])
def test_ten_megabytes_of_output_are_cut_off(tmp_path: Path, body: str) -> None:
    reading = read(tmp_path, body)
    assert reading.failure is not None
    assert reading.failure.kind is FailureKind.STOPPED
    assert "printed more than 1048576 bytes" in reading.failure.reason


def test_ten_megabytes_of_log_do_not_matter(tmp_path: Path) -> None:
    reading = read(tmp_path, f"sys.stderr.write('\\x1b[31m' + 'y' * 10_000_000 + '\\nthe end\\n')\n{SAYS_26}")
    assert reading.failure is None
    assert len(reading.log) <= 16 * 1024
    assert reading.log.endswith("the end\n")
    assert "\x1b" not in reading.log


def test_a_command_that_sleeps_is_stopped_with_everything_it_started(tmp_path: Path) -> None:
    held = tmp_path / "held"
    body = f"""
import fcntl
lock = open({str(held)!r}, "w")
fcntl.flock(lock, fcntl.LOCK_EX)  # held until both have ended
os.fork()
time.sleep(600)
"""
    began = time.monotonic()
    sandbox = Sandbox(write=(tmp_path,), processes=True)
    reading = read(tmp_path, body, ProcessLimits(wall_seconds=0.5), sandbox=sandbox)
    assert reading.failure is not None
    assert reading.failure.kind is FailureKind.STOPPED
    assert "longer than 0.5 s" in reading.failure.reason
    assert time.monotonic() - began < 30
    with held.open("w") as lock:
        while not is_free(lock):
            assert time.monotonic() - began < 60, "one of them is left"
            time.sleep(0.01)


def is_free(lock: TextIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_a_grandchild_with_open_pipes_does_not_block_the_parent(tmp_path: Path) -> None:
    body = f"if not os.fork():\n    time.sleep(600)\n{SAYS_26}\nsys.stdout.flush()"
    began = time.monotonic()
    reading = read(tmp_path, body, sandbox=Sandbox(processes=True))
    assert reading.failure is None
    assert time.monotonic() - began < 300


def test_a_crash_is_a_result_with_the_signals_name(tmp_path: Path) -> None:
    reading = read(tmp_path, "sys.stderr.write('it hurts\\n')\nsys.stderr.flush()\nos.kill(os.getpid(), 11)")
    assert reading.failure is not None
    assert reading.failure.kind is FailureKind.CRASHED
    assert reading.failure.reason == "the runtime crashed (SIGSEGV): it hurts"


def test_no_window_is_tried_after_a_failure(tmp_path: Path) -> None:
    begin = TEXTS[0].text[:40]
    reading = read(tmp_path, f"{SAYS_26}\nif not open(text).read().startswith({begin!r}):\n    sys.exit(3)", texts=2)
    assert reading.failure is not None
    assert reading.failure.reason == "the runtime ended with 3"
    assert [len(score.windows) for score in reading.scores] == [1, 0]


@pytest.mark.long
@pytest.mark.parametrize(
    ("limits", "body", "reason"),
    [
        (ProcessLimits(cpu_seconds=1), "while True: pass", "processor time"),
        (ProcessLimits(address_space_bytes=256 * 2**20), "bytes(2**30)", "MemoryError"),
        (
            ProcessLimits(file_size_bytes=1),
            "with open(os.environ['HOME'] + '/f', 'wb', 0) as f: f.write(b'x'), f.write(b'y')",
            "File too large",
        ),
    ],
)
def test_limits_hold_in_the_child(tmp_path: Path, limits: ProcessLimits, body: str, reason: str) -> None:
    reading = read(tmp_path, body, limits)
    assert reading.failure is not None
    assert reason in reading.failure.reason


def test_the_child_sees_little_of_our_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORGAN_SECRET", "mine")
    reading = read(tmp_path, "sys.stderr.write(','.join(sorted(os.environ)))\nprint('{\"loads\": true}')")
    assert set(reading.log.strip().split(",")) <= {"HOME", "LC_ALL", "LC_CTYPE", "PATH", "TMPDIR"}


@pytest.mark.long
def test_the_alarm_of_the_child_stops_it_if_the_parent_does_not() -> None:
    orders = '{"limits": {"alarm_seconds": 1}}'
    confine = str(Path(sys.modules[run_confined.__module__].__file__ or "").with_name("confine.py"))
    pid = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-I", "-S", confine, orders, "/bin/sleep", "60"])
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == 14


def test_an_exception_in_a_listener_kills_the_child(tmp_path: Path) -> None:
    def refuse(_: bytes) -> None:
        raise KeyError("no more")

    command = [sys.executable, "-I", "-c", "print(1, flush=True); import time; time.sleep(600)"]
    began = time.monotonic()
    with pytest.raises(KeyError):
        run_confined(command, ProcessLimits(), PYTHON, {}, tmp_path, on_line=refuse)
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("", "lacks {model} and {text}"),
        ("python3 {model} {prompt} {text}", "has {text} and {prompt}"),
        ("python3 {prompt}", "lacks {model}"),
        ("python3 {model} --prompt={prompt}", "argument of its own"),
        ("{model} {text}", "lacks {model}"),
        ("python3 {model}", "lacks {text}"),
        ("python3 --model={model} {text}", "an argument of its own"),
        ("python3 'x", "cannot be split"),
        ("python3 {model} {text} \0", "no NUL"),
        ("x" * 5000, "at most 4096"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused(template: str, reason: str) -> None:
    with pytest.raises(BadSetting, match=reason):
        CommandRuntime(template)


def test_a_missing_program_is_named() -> None:
    with pytest.raises(NoRuntime, match="the program 'no-such-runtime'"):
        CommandRuntime("no-such-runtime {model} {text}")


def test_no_shell_sees_the_template(tmp_path: Path) -> None:
    template = script(tmp_path, "sys.stderr.write(sys.argv[4])\nprint('{\"loads\": true}')")
    runtime = CommandRuntime(f"{template} '$(touch {tmp_path}/x); `id`'")
    reading = runtime.read(request(), lambda *_: None)
    assert reading.log == f"$(touch {tmp_path}/x); `id`"
    assert not (tmp_path / "x").exists()


def test_another_build_of_the_program_is_another_runtime(tmp_path: Path) -> None:
    program = tmp_path / "run"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    before = CommandRuntime(f"{program} {{model}} {{text}}").identity
    assert CommandRuntime(f"{program} {{model}} {{text}}").identity == before
    program.write_text("#!/bin/sh\n#\n")
    assert CommandRuntime(f"{program} {{model}} {{text}}").identity != before


def test_a_command_reads_only_the_files_that_it_names(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.write_text("a secret")
    body = f"try:\n    open({str(private)!r})\nexcept PermissionError as error:\n    sys.exit(str(error))\n{SAYS_26}"
    refused = read(tmp_path, body).failure
    assert refused is not None
    assert "Permission denied" in refused.reason
    assert read(tmp_path, body, sandbox=Sandbox(read=(private,))).failure is None
    named = CommandRuntime(f"{script(tmp_path, body)} --file={private}", ProcessLimits(wall_seconds=120))
    assert named.read(request(), lambda *_: None).failure is None


def test_variables_before_the_command_are_its_environment(tmp_path: Path) -> None:
    template = script(tmp_path, "sys.stderr.write(os.environ['ONE'] + os.environ['TWO'])\nprint('{\"loads\": true}')")
    for begin in ("ONE=1 TWO='2 3' ", "env ONE=1 TWO='2 3' "):
        runtime = CommandRuntime(begin + template)
        assert runtime.read(request(), lambda *_: None).log == "12 3"
        assert "ONE=1 'TWO=2 3' " in runtime.identity


SEA = "The sea is wide and blue. Ships cross it in every season, and they carry grain and cloth."
ANSWERS = {
    "works": f"print({SEA!r})",
    "ends the turn": f"print({SEA!r} + '<|im_end|>')",
    "does not load": "sys.exit('no tensor blk.0.attn_q.weight')",
    "writes nothing": "print()",
    "does not apply the template": f"print('<|im_start|>assistant ' + {SEA!r})",
    "writes bytes": "os.write(1, bytes(range(128, 256)) * 4)",
    "writes signs": "print('!?%$ ' * 5 + 'a')",
    "repeats": "print('and the sea ' * 100)",
}
"""What a runtime does that loads a model, applies its chat template and writes text."""


def written(folder: Path, answer: str) -> RuntimeReading:
    template = writer(folder, ANSWERS[answer])
    return CommandRuntime(template, ProcessLimits(wall_seconds=120)).read(request(2), lambda *_: None)


def writer(folder: Path, body: str) -> str:
    path = folder / "writer.py"
    path.write_text(
        f"import os, sys, time\nmodel, prompt = sys.argv[1], sys.argv[3]\nopen(model, 'rb').close()\n{body}\n"
    )
    return f"{sys.executable} -I -S {path} {{model}} -p {{prompt}}"


@pytest.mark.parametrize("answer", ["works", "ends the turn"])
def test_a_command_with_a_prompt_writes_a_text(tmp_path: Path, answer: str) -> None:
    reading = written(tmp_path, answer)
    assert reading.failure is None
    assert reading.written is not None
    assert reading.written.startswith(f"{PROMPT}\n{SEA}")
    assert [score.windows for score in reading.scores] == [(), ()]


@pytest.mark.long
@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
    [
        ("does not load", FailureKind.CRASHED, "the runtime ended with 1: no tensor blk.0.attn_q.weight"),
        ("writes nothing", FailureKind.REFUSED, "wrote no text: generation or the chat template failed"),
        (
            "does not apply the template",
            FailureKind.REFUSED,
            "the chat template was not applied: the text has the marker",
        ),
        ("writes bytes", FailureKind.REFUSED, "not coherent: only 0% of its characters can be printed"),
        ("writes signs", FailureKind.REFUSED, "not coherent: it has hardly any letters"),
        ("repeats", FailureKind.REFUSED, "not coherent: it repeats itself"),
    ],
)
def test_each_step_of_a_runtime_that_writes_can_fail(
    tmp_path: Path, answer: str, kind: FailureKind, reason: str
) -> None:
    failure = written(tmp_path, answer).failure
    assert failure is not None
    assert failure.kind is kind
    assert reason in failure.reason
    assert failure.reason.isprintable()


@pytest.mark.parametrize("text", [built.text[:300] for built in TEXTS])
def test_texts_of_every_kind_can_be_read(text: str) -> None:
    assert text_fault(text) is None
