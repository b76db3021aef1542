"""Tests of llama.cpp in its confined child: few models, one second each."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from organs.registry.gguf import ValueType
from organs.registry.sandbox.process import Limits
from organs.registry.validation.llama import LlamaCpp, telling_line
from organs.registry.validation.probe import Session
from organs.registry.validation.runtime import (
    Adapter,
    Failure,
    FailureKind,
    NoRuntime,
    Reading,
    Request,
)
from organs.registry.validation.texts import Text, built_in_texts, read_text
from tests.gguf_files import array, file_bytes, text
from tests.validation.changed_models import A_F16, LORA, A, feed_forward, with_chat_template, with_f64

TEXTS = built_in_texts()


def read(model: Path, texts: tuple[Text, ...] = TEXTS, **more: object) -> Reading:
    return LlamaCpp().read(Request(model, texts, **more), lambda _: None)  # type: ignore[arg-type]


def failure(model: Path, limits: Limits | None = None) -> Failure:
    reading = LlamaCpp(limits).read(Request(model, TEXTS), lambda _: None).failure
    assert reading is not None
    return reading


def test_the_zoos_first_model_has_the_perplexities_of_its_card() -> None:
    heard: list[str] = []
    reading = LlamaCpp().read(Request(A_F16, TEXTS), heard.append)
    assert reading.failure is None
    assert [score.text for score in reading.scores] == ["code", "prose"]
    assert [score.perplexity for score in reading.scores] == pytest.approx([26.7, 29.4], rel=0.02)
    assert [score.tokens for score in reading.scores] == [128, 128]
    assert all(score.standard_error is not None and 3 < score.standard_error < 9 for score in reading.scores)
    assert reading.written is not None
    assert reading.written.startswith("The file is opened for reading, and ")
    assert len(reading.written) > 60
    assert not reading.by_chat_template
    assert heard == ["loading", "scoring text 1 of 2", "scoring text 2 of 2", "writing"]


def test_an_adapter_is_applied_at_its_scale() -> None:
    none, half, whole = (
        read(A_F16, TEXTS[:1], adapters=(Adapter(LORA, scale),)).scores[0].perplexity for scale in (0.0, 0.5, 1.0)
    )
    assert none == pytest.approx(26.7, rel=0.02)
    assert whole == pytest.approx(25.9, rel=0.02)
    assert none is not None
    assert half is not None
    assert whole is not None
    assert whole < half < none


def test_parts_of_characters_are_scored_as_exactly_as_whole_characters(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("Grüße, 世界! Ein naïver Text 🙂 of eight words", encoding="utf-8")
    with closing(Session(str(A), [], tokens=128, threads=1, wall_seconds=60)) as session:
        tokens = session.tokens(read_text(path).text)
        one_by_one = [session._single(tokens, position) for position in range(1, len(tokens))]
        together = session.surprises(tokens)
    assert sum(not token.is_whole for token in tokens) >= 10
    assert together == pytest.approx(one_by_one, abs=1e-4)


def test_a_chat_template_formats_the_text(tmp_path: Path) -> None:
    template = "{% for message in messages %}{{ message.content }}\n{% endfor %}"
    reading = read(with_chat_template(A, template, tmp_path / "chat.gguf"), TEXTS[:1], chat=True)
    assert reading.by_chat_template
    assert reading.written is not None
    assert reading.written.startswith("What is a file?\n")
    assert len(reading.written) > 40


def test_a_refused_chat_template_is_not_a_fault_of_the_weights(tmp_path: Path) -> None:
    reading = read(with_chat_template(A, "{% broken", tmp_path / "chat.gguf"), TEXTS[:1], chat=True)
    assert reading.failure is None
    assert not reading.by_chat_template
    assert reading.scores[0].perplexity == pytest.approx(26.7, rel=0.02)
    assert "loading without it" in reading.log


def test_a_crash_by_a_signal_is_a_result(tmp_path: Path) -> None:
    failed = failure(with_f64(A, feed_forward(A)[0], tmp_path / "f64.gguf"))
    assert failed.kind is FailureKind.CRASHED
    assert failed.reason.startswith("the runtime crashed (SIGSEGV)")


def test_a_truncated_file_is_refused_with_the_real_reason(tmp_path: Path) -> None:
    path = tmp_path / "short.gguf"
    path.write_bytes(A.read_bytes()[:-100_000])
    failed = failure(path)
    assert failed.kind is FailureKind.REFUSED
    assert "is not within the file bounds" in failed.reason


def test_a_vocabulary_without_weights_is_refused_politely(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.gguf"
    tokens = array("tokenizer.ggml.tokens", ValueType.STRING, [b"a", b"b"])
    path.write_bytes(file_bytes([text("general.architecture", "llama"), tokens]))
    failed = failure(path)
    assert failed.kind is FailureKind.REFUSED
    assert failed.reason.startswith("llama.cpp refused the model: ")
    assert len(failed.reason) < 300


def test_input_that_is_not_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "no.gguf"
    path.write_bytes(b"\x1b[31mnothing" * 100)
    assert failure(path).kind is FailureKind.REFUSED


def test_a_runtime_that_takes_too_long_is_stopped() -> None:
    failed = failure(A, Limits(wall_seconds=0.01))
    assert failed == Failure(
        FailureKind.STOPPED, "the runtime was stopped while it loaded the model: it took longer than 0.01 s"
    )


def test_too_little_memory_is_a_failure_and_not_an_error() -> None:
    assert failure(A, Limits(wall_seconds=60, address_space_bytes=300 * 2**20)).kind in {
        FailureKind.CRASHED,
        FailureKind.REFUSED,
    }


def test_without_the_package_the_message_names_what_to_install() -> None:
    with pytest.raises(
        NoRuntime, match=r"^llama.cpp is not installed; install this program with the extra 'validate'"
    ) as missing:
        LlamaCpp(package="no-such-package-as-this")
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
