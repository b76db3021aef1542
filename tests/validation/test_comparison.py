"""Tests of complete comparisons of files, with llama.cpp and a runtime of fixed numbers, and of the size of windows."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from organs.registry.entities.validation import VerdictReport
from organs.registry.errors import BadInput
from organs.registry.validation import comparison
from organs.registry.validation.comparison import (
    ModelFacts,
    RunnableModel,
    ValidationBudget,
    file_candidate,
    window_that_fits,
)
from organs.registry.validation.runtime import (
    WINDOW_TOKENS,
    Failure,
    FailureKind,
    NoVerdict,
)
from organs.registry.validation.texts import built_in_texts
from organs.registry.validation.verdict import VerdictKind, judge_writing
from organs.registry.validation.weights import files_digest, grafted_organs
from tests.gguf_files import file_bytes, tensor, text, unsigned
from tests.validation.changed_models import A_F16, A, B, feed_forward, graft, validate_files
from tests.validation.scores import FixedRuntime

TEXTS = built_in_texts(("python", "documentation"))


@pytest.fixture
def chimera(tmp_path: Path) -> Path:
    """Return A with two blocks of B."""
    return graft(A, B, feed_forward(A, [0, 3]), tmp_path / "chimera.gguf")


def compared(chimera: Path, runtime: FixedRuntime, **more: object) -> VerdictReport:
    names = more.pop("grafted", None)
    return validate_files(chimera, A, [B], names, TEXTS, runtime, **more)  # type: ignore[arg-type]


def numbers(
    chimera: float | Failure = 12.0, control: float | Failure = 1000.0, base: float | Failure = 10.0
) -> FixedRuntime:
    return FixedRuntime({A.name: base, B.name: 11.0, "chimera.gguf": chimera, "control.gguf": control})


def test_the_control_has_the_grafted_feed_forward_organs_zeroed(
    chimera: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    runtime = numbers()
    comparison = compared(chimera, runtime)
    assert comparison.zeroed == runtime.zeroed == feed_forward(A, [0, 3])
    assert comparison.verdict == VerdictKind.COHERENT
    assert comparison.control is not None
    assert [score.tokens for score in comparison.control.scores] == [16 * 255] * 2
    assert comparison.control_remark is None
    assert [path.name for path in tmp_path.iterdir()] == ["chimera.gguf"], "the control is gone"


def test_without_a_feed_forward_graft_there_is_no_control(tmp_path: Path) -> None:
    chimera = graft(A, B, ["blk.0.attn_q.weight"], tmp_path / "chimera.gguf")
    comparison = compared(chimera, numbers(chimera=9.0))
    assert comparison.control is None
    assert comparison.verdict == VerdictKind.GAINS
    assert comparison.reason.endswith(
        "No feed-forward tensor was changed, so there is no control, and it is unknown whether the changed tensors "
        "work."
    )
    assert "tensor was grafted, so" in compared(chimera, numbers(), grafted=["blk.0.attn_q.weight"]).reason


def test_without_a_graft_there_is_no_control_and_the_other_rules_decide(tmp_path: Path) -> None:
    purified = graft(A, B, feed_forward(A, [0]), tmp_path / "chimera.gguf")
    comparison = compared(purified, numbers(chimera=15.0), grafted=[])
    assert (comparison.control, comparison.zeroed, comparison.verdict) == (None, (), VerdictKind.DEGRADED)
    assert "control" not in comparison.reason


def test_a_graft_is_judged_separately_from_other_changes(tmp_path: Path) -> None:
    chimera = graft(A, B, feed_forward(A), tmp_path / "chimera.gguf")
    runtime = numbers(chimera=12.0, control=12.1)
    comparison = compared(chimera, runtime, grafted=["blk.0.attn_q.weight", *feed_forward(A, [3])])
    assert comparison.zeroed == runtime.zeroed == feed_forward(A, [3]), "attention is not zeroed"
    assert comparison.verdict == VerdictKind.INERT
    assert comparison.reason.startswith("The grafted tensors do not work.")


SLOW = Failure(FailureKind.STOPPED, "it was slow")


@pytest.mark.parametrize(
    ("perplexities", "verdict", "reason"),
    [
        ({"control": 12.1}, "inert", "The changed tensors do not work."),
        ({"control": SLOW}, "coherent", "The control did not run, so .*: it was slow"),
        ({"chimera": Failure(FailureKind.REFUSED, "missing tensor")}, "broken", "does not run: missing tensor."),
        ({"chimera": SLOW}, "broken", "The chimera does not run: it was slow."),
        ({"chimera": SLOW, "base": SLOW}, "undecided", "Nothing was scored. The base does not run: it was slow."),
        ({"base": SLOW}, "undecided", "The base does not run: it was slow."),
    ],
    ids=["weak tensors", "a slow control", "a refused chimera", "a slow chimera", "slow models", "a slow base"],
)
def test_a_model_that_does_not_run_or_does_no_work_is_reported(
    chimera: Path, perplexities: dict[str, Any], verdict: str, reason: str
) -> None:
    runtime = numbers(**perplexities)
    report = compared(chimera, runtime)
    assert (report.verdict, report.zeroed_because) == (verdict, "changed")
    assert re.search(reason, report.reason)
    if verdict == "broken":
        assert runtime.models == [A.name, "chimera.gguf"], "a chimera that fails needs no control"


def test_a_control_that_cannot_be_written_is_reported_and_left_out(tmp_path: Path) -> None:
    comparison = compared(graft(A, A, [], tmp_path / "chimera.gguf"), numbers(), grafted=["blk.9.ffn_up.weight"])
    assert comparison.control is None
    assert "no tensor 'blk.9.ffn_up.weight'" in comparison.reason


@pytest.mark.parametrize("kind", [FailureKind.REFUSED, FailureKind.CRASHED])
def test_a_base_that_does_not_run_is_an_error_and_not_a_verdict(chimera: Path, kind: FailureKind) -> None:
    runtime = numbers(base=Failure(kind, "unknown architecture"))
    with pytest.raises(NoVerdict, match=r"^the base does not run, so there is no verdict: unknown architecture$"):
        compared(chimera, runtime)
    assert runtime.models == [A.name], "nothing else is run for nothing"


def test_a_runtime_that_only_writes_compares_the_text_with_that_of_the_base_if_there_is_one() -> None:
    assert "can be read; it is the same as the text of the base. This" in judge_writing("a", "a").reason
    assert "can be read; it is not the same as the text of the base. This" in judge_writing("a", "b").reason
    assert "can be read. This" in judge_writing("a", None).reason


def test_windows_are_added_only_to_texts_that_are_not_settled(chimera: Path) -> None:
    runtime = numbers(chimera=10.3, control=1000.0)
    runtime.noise, runtime.window_count = 0.3, 64
    busy = compared(chimera, runtime, budget=ValidationBudget(tokens=1 << 20))
    assert [text.windows for text in busy.texts] == [64, 64], "the sign is not settled"
    runtime = numbers(chimera=20.0, control=1000.0)
    runtime.window_count = 64
    assert [text.windows for text in compared(chimera, runtime).texts] == [32, 32], "4,096 tokens are cheap"


def test_a_budget_of_tokens_limits_the_windows_of_each_text(chimera: Path) -> None:
    runtime = numbers(chimera=10.3)
    runtime.noise = 0.3
    comparison = compared(chimera, runtime, budget=ValidationBudget(tokens=2048))
    assert [text.tokens for text in comparison.texts] == [9 * 255, 9 * 255]
    assert all(request.seconds is not None and request.seconds <= 600 for request in runtime.requests)


def test_donors_are_not_run_when_the_time_is_over(chimera: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("organs.registry.validation.comparison.monotonic", iter(range(0, 10**9, 50)).__next__)
    runtime = numbers()
    comparison = compared(chimera, runtime, budget=ValidationBudget(seconds=60.0))
    assert comparison.donors[0].scores[0].tokens == 0
    assert comparison.seconds > 60


def test_a_context_smaller_than_a_window_limits_the_window(chimera: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "WINDOW_TOKENS", 512)
    runtime = numbers()
    assert compared(chimera, runtime).window_tokens == 256
    assert {request.window_tokens for request in runtime.requests} == {256}


def test_models_that_tokenize_differently_cannot_be_compared(chimera: Path) -> None:
    runtime = numbers()
    runtime.other_tokens = [chimera.name]
    with pytest.raises(NoVerdict, match=r"^the chimera and its base tokenize the text 'python' differently"):
        compared(chimera, runtime)


def test_a_text_of_fewer_than_32_tokens_is_refused(chimera: Path) -> None:
    runtime = numbers()
    runtime.token_count = 31
    with pytest.raises(BadInput, match=r"^the text 'python' has 31 tokens; at least 32 are needed$"):
        compared(chimera, runtime)


def test_all_scores_except_the_chimeras_come_from_the_cache(chimera: Path) -> None:
    cache, runtime = {}, numbers()
    first = compared(chimera, runtime, cache=cache)
    runtime.requests.clear()
    second = compared(chimera, runtime, cache=cache)
    assert runtime.models == ["chimera.gguf"]
    assert (second.verdict, second.reason, second.texts) == (first.verdict, first.reason, first.texts)
    assert second.control is not None


@pytest.mark.parametrize("change", ["tokens", "identity", "text"])
def test_another_text_length_or_runtime_is_not_in_the_cache(
    chimera: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, runtime = {}, numbers()
    compared(chimera, runtime, cache=cache)
    runtime.requests.clear()
    texts = TEXTS
    if change == "tokens":
        monkeypatch.setattr(comparison, "WINDOW_TOKENS", 64)
    if change == "identity":
        runtime.identity = "fixed, 2"
    if change == "text":
        texts = (TEXTS[0], replace(TEXTS[1], digest=TEXTS[0].digest[::-1]))  # type: ignore[arg-type]
    validate_files(chimera, A, [B], None, texts, runtime, cache=cache)
    assert len(runtime.models) == 4


def test_a_row_of_the_report_is_about_the_windows_that_were_compared(chimera: Path) -> None:
    cache, runtime = {}, numbers(chimera=10.3)
    runtime.noise = 0.3
    compared(chimera, runtime, cache=cache)
    report = compared(chimera, runtime, cache=cache, budget=ValidationBudget(tokens=2048))
    perplexities = [run.scores[0].perplexity or 0.0 for run in (report.chimera, report.base)]
    assert report.texts[0].ratio == pytest.approx(perplexities[0] / perplexities[1])
    assert [run.scores[0].tokens for run in (report.chimera, report.base)] == [9 * 255] * 2, "16 are stored"


def test_failures_are_not_cached(chimera: Path) -> None:
    cache, runtime = {}, numbers(base=Failure(FailureKind.STOPPED, "it was slow"))
    compared(chimera, runtime, cache=cache)
    runtime.perplexities[A.name] = 10.0
    assert compared(chimera, runtime, cache=cache).base.failure is None


def test_progress_names_the_model_and_the_step_and_can_stop_the_run(chimera: Path) -> None:
    shares, steps = list[float](), list[str]()

    def hear(share: float, step: str) -> None:
        shares.append(share)
        steps.append(step)

    compared(chimera, numbers(), progress=hear)
    assert list(dict.fromkeys(step.partition(",")[0] for step in steps)) == ["base", "chimera", "control", "donor 1"]
    assert shares == sorted(shares)

    def stop(_share: float, step: str) -> None:
        if step.startswith("control"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compared(chimera, numbers(), progress=stop)


@pytest.mark.parametrize(("texts", "donors"), [(0, 1), (17, 1), (1, 17)])
def test_numbers_out_of_range_are_refused(chimera: Path, texts: int, donors: int) -> None:
    runtime = numbers()
    with pytest.raises(BadInput):
        validate_files(chimera, A, [B] * donors, None, TEXTS[:1] * texts, runtime)
    assert runtime.requests == []


@pytest.mark.parametrize("limits", [{"tokens": 1023}, {"tokens": 1 << 21}, {"seconds": 0.5}])
def test_a_budget_out_of_range_is_refused(limits: dict[str, int]) -> None:
    with pytest.raises(BadInput):
        ValidationBudget(**limits)


def test_the_same_file_has_no_grafted_organs_and_another_dtype_has_all() -> None:
    assert grafted_organs(A, A) == ()
    assert grafted_organs(A, A_F16) == feed_forward(A)


def test_the_digest_of_a_single_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"abc")
    assert files_digest(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_a_window_has_the_size_of_the_smallest_context() -> None:
    def candidate(context: int | None) -> RunnableModel:
        return replace(file_candidate(A), facts=ModelFacts(context))

    chimera, base = candidate(99), candidate(80)
    assert window_that_fits(chimera, base) == window_that_fits(base, chimera) == 80
    assert window_that_fits(candidate(None), candidate(None)) == WINDOW_TOKENS
    for pair in ((candidate(31), base), (chimera, candidate(0))):
        with pytest.raises(BadInput, match="at least 32 are needed"):
            window_that_fits(*pair)


def test_the_facts_of_a_header_are_those_of_the_running_model(tmp_path: Path) -> None:
    path = tmp_path / "mixture.gguf"
    metadata = [
        text("general.architecture", "qwen3moe"),
        text("tokenizer.chat_template", "{{ messages }}"),
        unsigned("qwen3moe.expert_count", 8),
        unsigned("qwen3moe.expert_used_count", 2),
    ]
    path.write_bytes(file_bytes(metadata, [tensor("blk.0.ffn_up_exps.weight", (4, 4, 8)), tensor("a", (10,))]))
    facts = file_candidate(path).facts
    assert facts == ModelFacts(None, "{{ messages }}", 2 * 16 + 10)
    assert file_candidate(A).facts.chat_template is None
