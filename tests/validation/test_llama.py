"""Tests of llama.cpp in its confined child: few models, one second each."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from organs.registry.gguf import ValueType
from organs.registry.sandbox.process import ProcessLimits
from organs.registry.validation import llama
from organs.registry.validation.llama import LlamaCpp, telling_line
from organs.registry.validation.runtime import (
    Failure,
    FailureKind,
    NoRuntime,
    RuntimeReading,
    Score,
    ScoringRequest,
)
from organs.registry.validation.texts import CHAT, ScoredText, built_in_texts, fitted_texts, read_text
from organs.registry.validation.weights import Weights
from tests.gguf_files import array, file_bytes, text
from tests.validation.changed_models import (
    A_F16,
    A_PROSE,
    A,
    feed_forward,
    with_chat_template,
    with_f64,
    with_first_token,
)

TEXTS = built_in_texts(("python", "documentation"))
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def request(model: Path, texts: tuple[ScoredText, ...] = TEXTS[:1], windows: int = 2, **more: Any) -> ScoringRequest:
    return ScoringRequest(model, texts, (range(windows),) * len(texts), **more)


def read(model: Path, texts: tuple[ScoredText, ...] = TEXTS[:1], **more: Any) -> RuntimeReading:
    return LlamaCpp().read(request(model, texts, **more), lambda *_: None)


def failure(model: Path, limits: ProcessLimits | None = None) -> Failure:
    reading = LlamaCpp(limits).read(request(model, writes=True), lambda *_: None).failure
    assert reading is not None
    return reading


def test_windows_of_each_text_are_scored_and_the_model_writes() -> None:
    steps: list[str] = []
    reading = LlamaCpp().read(request(A_F16, TEXTS, writes=True), lambda step, *_: steps.append(step))
    assert reading.failure is None
    assert [score.text for score in reading.scores] == ["python", "documentation"]
    assert [score.perplexity for score in reading.scores] == pytest.approx([30.8, 82.5], rel=0.02)
    assert [score.tokens for score in reading.scores] == [510, 510]
    assert [score.window_count > 10 for score in reading.scores] == [True, True]
    assert reading.written is not None
    assert reading.written.startswith("The file is opened for reading, and ")
    assert len(reading.written) > 60
    assert steps == ["loading", "writing", *(f"window {number} of 4" for number in range(1, 5))]


def test_later_windows_are_the_same_as_in_one_run() -> None:
    whole = read(A, windows=3).scores[0].windows
    later = LlamaCpp().read(ScoringRequest(A, TEXTS[:1], (range(1, 3),)), lambda *_: None).scores[0].windows
    assert later == whole[1:]


def test_a_run_ends_when_its_scores_are_enough_and_they_are_those_of_a_whole_run() -> None:
    whole, seen = LlamaCpp().read(request(A, TEXTS, 8), lambda *_: None, lambda _scores: False).scores, []

    def is_enough(scores: tuple[Score, ...]) -> bool:
        seen.append(sum(len(score.windows) for score in scores))
        return len(scores) == 2 and all(len(score.windows) >= 2 for score in scores)

    reading = LlamaCpp().read(request(A, TEXTS, 8), lambda *_: None, is_enough)
    assert reading.failure is None
    assert [score.text for score in reading.scores] == ["python", "documentation"]
    for ours, theirs in zip(reading.scores, whole, strict=True):
        assert 2 <= len(ours.windows) < 8
        assert ours.windows == theirs.windows[: len(ours.windows)]
    assert seen == sorted(seen)
    assert len(seen) < 16, "it is not asked again after it was enough"


def test_no_window_is_begun_after_the_time_is_over() -> None:
    assert [len(score.windows) for score in read(A, TEXTS, seconds=0.0).scores] == [1, 0]


@pytest.mark.long
@pytest.mark.parametrize("adds", [True, False, None], ids=["first token", "none", "not stated"])
def test_windows_have_as_many_tokens_with_a_first_token_as_without(adds: bool | None, tmp_path: Path) -> None:
    path = with_first_token(A, tmp_path / "model.gguf", adds=adds)
    (score,) = read(path).scores
    assert score.window_count == (score.token_count if adds else score.token_count - 1) // 255
    assert [window.tokens for window in score.windows] == [255, 255]
    (whole,) = LlamaCpp().read(request(path, TEXTS[:1], 100), lambda *_: None).scores
    assert len(whole.windows) == whole.window_count > 20


def test_a_short_text_is_one_window_without_a_first_token(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("Grüße, 世界! Ein naïver Text 🙂 of eight words", encoding="utf-8")
    (score,) = read(with_first_token(A, tmp_path / "model.gguf", adds=False), (read_text(path),)).scores
    assert (score.window_count, score.tokens) == (1, score.token_count - 1)


@pytest.mark.long
def test_a_reference_scores_the_same_windows_and_is_compared() -> None:
    def against(reference: Path) -> RuntimeReading:
        beside = request(A_F16, TEXTS, 2, reference=reference, reference_ranks=((0, 1), (1,)))
        return LlamaCpp().read(beside, lambda *_: None)

    alone = read(A_F16, TEXTS)
    same, other = against(A_F16), against(A_PROSE)
    assert [score.windows for score in alone.scores] == [
        tuple(replace(window, divergence=None, same_top=None, divergences=None) for window in score.windows)
        for score in other.scores
    ]
    assert [len(score.windows) for score in other.reference] == [2, 1]
    assert other.reference[0].windows == read(A_PROSE).scores[0].windows
    assert same.reference[1].windows == alone.scores[1].windows[1:]
    for reading, least, most in ((same, 0.0, 1e-6), (other, 0.02, 1.0)):
        compared = [window for score in reading.scores for window in score.windows if window.divergence is not None]
        assert len(compared) == 3
        assert all(least <= (window.divergence or 0.0) / window.tokens <= most for window in compared)
        assert all((window.same_top == window.tokens) == (reading is same) for window in compared)
    assert other.evaluated_tokens == 7 * 255
    assert other.evaluation_seconds > 0.0


def test_a_chat_is_scored_in_a_template_that_llama_cpp_knows() -> None:
    (chat,) = fitted_texts(built_in_texts((CHAT,)), CHATML)
    (unknown,) = fitted_texts(built_in_texts((CHAT,)), "{{ messages }}")
    (dialogue,) = built_in_texts(("dialogue",))
    known, plain, none = read(A, (chat, dialogue, unknown)).scores
    assert known.token_count > plain.token_count
    assert (none.token_count, none.windows) == (0, ())


def test_a_model_answers_in_its_own_chat_template_if_llama_cpp_knows_it(tmp_path: Path) -> None:
    reading = read(with_chat_template(A, CHATML, tmp_path / "chat.gguf"), writes=True, chat=True)
    assert reading.written is not None
    assert reading.written.startswith("What is a file?\n")
    assert len(reading.written) > 40


def test_a_chat_template_is_never_executed_and_is_no_fault_of_the_weights(tmp_path: Path) -> None:
    reading = read(with_chat_template(A, "{% broken", tmp_path / "chat.gguf"), writes=True, chat=True)
    assert reading.failure is None
    assert reading.scores[0].tokens == 510
    assert reading.written is not None
    assert reading.written.startswith("The file is opened for reading, and ")


def test_a_model_whose_weights_are_not_numbers_is_refused(tmp_path: Path) -> None:
    data, path = bytearray(A.read_bytes()), tmp_path / "nan.gguf"
    with Weights(A) as weights:
        start = weights.spots["output_norm.weight"].offset
    data[start : start + 4] = struct.pack("<f", math.nan)
    path.write_bytes(data)
    failed = failure(path)
    assert failed.kind is FailureKind.REFUSED
    assert (
        failed.reason == "the model was refused: it has NaN or infinite weights: 1 in the tensor 'output_norm.weight'"
    )


def test_a_crash_by_a_signal_is_a_result(tmp_path: Path) -> None:
    failed = failure(with_f64(A, feed_forward(A)[0], tmp_path / "f64.gguf"))
    assert failed.kind is FailureKind.CRASHED
    assert failed.reason.startswith("the runtime crashed (SIGSEGV)")


TWO_TOKENS = array("tokenizer.ggml.tokens", ValueType.STRING, [b"a", b"b"])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (A.read_bytes()[:-100_000], "is not within the file bounds"),
        (file_bytes([text("general.architecture", "llama"), TWO_TOKENS]), "the model was refused: "),
        (b"\x1b[31mnothing" * 100, ""),
    ],
    ids=["cut", "a vocabulary without weights", "no GGUF"],
)
def test_a_file_that_is_no_model_is_refused_with_the_real_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "odd.gguf"
    path.write_bytes(data)
    failed = failure(path)
    assert failed.kind is FailureKind.REFUSED
    assert reason in failed.reason
    assert len(failed.reason) < 300


def test_a_runtime_that_takes_too_long_is_stopped() -> None:
    failed = failure(A, ProcessLimits(wall_seconds=0.01))
    assert failed == Failure(
        FailureKind.STOPPED, "the runtime was stopped while it loaded the model: it took longer than 0.01 s"
    )


def test_without_the_package_the_message_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama, "PACKAGE", "no-such-package-as-this")
    with pytest.raises(
        NoRuntime, match=r"^llama.cpp is not installed; install this program with the extra 'validate'"
    ) as missing:
        LlamaCpp()
    assert missing.value.extra == "validate"


def test_the_identity_names_the_version() -> None:
    assert LlamaCpp().identity.startswith("llama.cpp, xllamacpp 20")


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", None),
        ("0.1 I nothing wrong\n", None),
        ("0.1 E llama_model_load: error loading model: missing tensor 'x'\n0.2 E other", "missing tensor 'x'"),
        ("0.1 I hello\n0.2 E srv init: exiting\n", "srv init: exiting"),
        ("a.cpp:12: GGML_ASSERT(n > 0) failed\n", "GGML_ASSERT(n > 0) failed"),
    ],
)
def test_the_relevant_line_of_a_log_is_found(log: str, line: str | None) -> None:
    assert telling_line(log) == line
