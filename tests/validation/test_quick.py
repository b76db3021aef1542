"""Tests of the quick look: windows of both models, stored scores of the base, and what the sentence may say."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from organs.registry.digest import Digest
from organs.registry.entities.validation import QuickLook
from organs.registry.errors import BadInput
from organs.registry.validation import quick
from organs.registry.validation.comparison import ModelFacts, RunnableModel, ScoreCache
from organs.registry.validation.quick import KINDS, LookBudget, quick_look
from organs.registry.validation.runtime import (
    Failure,
    FailureKind,
    NoVerdict,
    Runtime,
    RuntimeReading,
    Say,
    ScoringRequest,
)
from organs.registry.validation.texts import CHAT, built_in_texts
from tests.validation.scores import FixedRuntime

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}"


def candidate(name: str, **facts: object) -> RunnableModel:
    digest = Digest(f"{name:0<64}".replace("h", "0"))
    return RunnableModel(name, digest, lambda: nullcontext(Path(name)), ModelFacts(**facts))  # type: ignore[arg-type]


def look(runtime: Runtime, cache: ScoreCache | None = None, seconds: float = 30.0, **facts: object) -> QuickLook:
    return quick_look(
        candidate("c", **facts),
        candidate("b", **facts),
        built_in_texts(KINDS),
        runtime,
        {} if cache is None else cache,
        LookBudget(seconds, 4),
    )


@pytest.mark.parametrize(
    ("chimera", "base", "usable", "sentence"),
    [
        (10.2, 10.0, True, "Usable: at worst +2"),
        (8.0, 10.0, True, "Usable: at worst −19"),
        (20.0, 10.0, False, "Not usable: +10"),
        (12.5, 10.0, None, "Not clear: +25"),
        (math.inf, 10.0, False, "Not usable: it has no finite perplexity on python."),
        (10.0, math.inf, None, "Not clear: the base has no finite perplexity on python."),
        (1e300, 1e-10, False, "Not usable: it has no finite perplexity on python."),
        (1e-10, 1e300, True, "Usable: at worst −100"),
    ],
)
def test_it_is_usable_only_where_the_whole_interval_is_below_a_quarter(
    chimera: float, base: float, usable: bool | None, sentence: str
) -> None:
    found = look(FixedRuntime({"c": chimera, "b": base}, noise=0.01))
    assert (found.usable, found.sentence[: len(sentence)]) == (usable, sentence)
    assert found.tokens_per_second == 510.0


def test_the_stored_windows_of_the_base_are_not_scored_again_except_the_first() -> None:
    cache, runtime = {}, FixedRuntime({"c": 11.0, "b": 10.0}, noise=0.01)
    first, second = look(runtime, cache), look(runtime, cache)
    assert [request.reference_ranks for request in runtime.requests] == [([0, 1, 2, 3],) * 3, ([0],) * 3]
    assert replace_seconds(first) == replace_seconds(second)
    runtime.window_count = 9
    runtime.requests.clear()
    quick_look(candidate("c"), candidate("b"), built_in_texts(KINDS), runtime, cache, LookBudget(30.0, 6))
    assert runtime.requests[0].reference_ranks == ([0, 4, 5],) * 3
    assert {len(score.windows) for score in cache.values()} == {6}


def replace_seconds(found: QuickLook) -> tuple[object, ...]:
    return (found.sentence, found.usable, found.texts)


def test_a_base_with_a_chat_template_is_first_scored_on_a_chat() -> None:
    runtime = FixedRuntime({"c": 11.0, "b": 10.0})
    assert look(runtime, chat_template=CHATML).texts[0].name == CHAT
    assert look(runtime).texts[0].name == "python"
    with pytest.raises(BadInput, match="no chat template"):
        quick_look(candidate("c"), candidate("b"), built_in_texts((CHAT,)), runtime, {})


def test_a_text_with_too_few_windows_leaves_it_open() -> None:
    runtime = FixedRuntime({"c": 10.2, "b": 10.0}, time_for={"encyclopedic": 2})
    found = look(runtime)
    assert (found.usable, found.texts[2].ratio) == (None, None)
    assert found.sentence.endswith("but the time was too short for encyclopedic.")
    assert found.minutes_needed == 1, "twice as long as the time that was too short"
    runtime.perplexities["c"] = 20.0
    assert look(runtime).usable is False, "one text is enough"


def test_a_model_that_is_scored_on_fewer_texts_is_never_called_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "operations_per_second", lambda: 1e12)
    found = look(FixedRuntime({"c": 9.0, "b": 10.0}), active_parameters=9 * 10**9)
    assert [text.name for text in found.texts] == ["python"]
    assert found.usable is None
    assert found.sentence.endswith("too short for documentation and encyclopedic. All 3 texts need about 2 min.")
    assert (found.minutes_needed, found.word) == (2, "not clear")


def test_a_large_model_is_not_started_and_says_what_it_needs() -> None:
    runtime = FixedRuntime({"c": 11.0, "b": 10.0})
    found = look(runtime, active_parameters=10**15)
    assert runtime.requests == []
    assert found.texts == ()
    assert found.sentence.startswith("Not started: these models need about ")
    assert found.minutes_needed is not None
    assert (found.word, found.is_started) == ("not started", False)


def test_models_with_other_tokens_are_not_compared() -> None:
    with pytest.raises(NoVerdict, match="tokenize the text 'python' differently"):
        look(FixedRuntime({"c": 11.0, "b": 10.0}, other_tokens=["c"]))


def test_a_chimera_that_does_not_run_is_not_usable() -> None:
    found = look(FixedRuntime({"c": Failure(FailureKind.CRASHED, "it crashed"), "b": 10.0}))
    assert (found.usable, found.sentence) == (False, "It did not run: it crashed.")
    assert look(FixedRuntime({"c": Failure(FailureKind.STOPPED, "too slow"), "b": 10.0})).usable is None


def test_a_chimera_that_fails_only_beside_its_base_is_not_blamed() -> None:
    class SmallMemory(FixedRuntime):
        def read(self, request: ScoringRequest, say: Say) -> RuntimeReading:
            if request.reference is not None:
                return RuntimeReading(Failure(FailureKind.CRASHED, "it was killed"), ())
            return super().read(request, say)

    with pytest.raises(NoVerdict, match="the chimera runs, but not beside its base: it was killed"):
        look(SmallMemory({"c": 11.0, "b": 10.0}))


def test_an_unknown_chat_template_leaves_the_other_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    class WithoutTemplates(FixedRuntime):
        def read(self, request: ScoringRequest, say: Say) -> RuntimeReading:
            reading = super().read(request, say)
            empty = [
                replace(score, windows=(), token_count=0) if score.text == CHAT else score for score in reading.scores
            ]
            return replace(reading, scores=tuple(empty))

    runtime = WithoutTemplates({"c": 10.2, "b": 10.0}, noise=0.01)
    assert look(runtime, chat_template=CHATML).usable is True
    monkeypatch.setattr(quick, "operations_per_second", lambda: 1e12)
    found = look(runtime, chat_template=CHATML, active_parameters=9 * 10**9)
    assert [text.name for text in found.texts] == ["python"], "only one text has enough time"


def test_a_budget_has_limits() -> None:
    with pytest.raises(BadInput, match="a quick look takes 1 to 3,600 seconds"):
        LookBudget(0.5)
