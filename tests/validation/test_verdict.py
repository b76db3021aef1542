"""Tests of the verdict: the rules, that nothing is said inside the error, and what an undecided one would need."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.amounts import change_text, perplexity_text
from organs.registry.validation.runtime import Window, perplexity_of
from organs.registry.validation.verdict import Judgement, TextScores, VerdictKind, judge
from tests.random_files import PATIENT
from tests.validation.scores import TOKENS, windows

K = VerdictKind
INF = math.inf


def scores(
    base: float,
    chimera: float,
    control: float | None = None,
    *,
    text: str = "python",
    noise: float = 0.0,
    count: int = 16,
    bits: float | None = None,
) -> TextScores:
    zeroed = None if control is None else windows(control, count, noise, seed=2)
    return TextScores(text, windows(base, count), windows(chimera, count, noise, seed=1), zeroed, bits=bits)


@pytest.mark.parametrize(
    ("base", "chimera", "control", "kind"),
    [
        (10.0, 30.1, 1000.0, K.BROKEN),
        (10.0, 30.1, 10.1, K.BROKEN),  # before inert
        (10.0, 29.9, 1000.0, K.DEGRADED),
        (10.0, 12.6, 1000.0, K.DEGRADED),
        (10.0, 12.6, 10.1, K.DEGRADED),  # also if the blocks matter little
        (10.0, 12.4, 1000.0, K.COHERENT),
        (10.0, 10.0, 10.6, K.COHERENT),
        (10.0, 10.6, 10.6, K.INERT),
        (10.0, 20.0, 20.0, K.INERT),  # before degraded
        (10.0, 29.0, 20.0, K.INERT),  # worse than the control
        (10.0, 10.0 * 2**0.81, 20.0, K.INERT),  # 0.19 recovered
        (10.0, 10.0 * 2**0.79, 20.0, K.DEGRADED),  # 0.21 recovered
        (10.0, 12.0, 10.4, K.UNDECIDED),  # too weak to decide
        (10.0, 10.0, 9.0, K.UNDECIDED),  # better without the graft
        (10.0, 9.79, 1000.0, K.GAINS),
        (10.0, 9.79, 10.4, K.GAINS),  # a gain needs no control
        (10.0, 9.81, 1000.0, K.COHERENT),
        (10.0, 9.79, None, K.GAINS),
        (10.0, 12.0, None, K.COHERENT),
        (10.0, 12.0, INF, K.COHERENT),  # a control without a finite perplexity: everything is recovered
        (10.0, INF, 20.0, K.BROKEN),
    ],
)
def test_the_first_rule_that_holds_decides(base: float, chimera: float, control: float | None, kind: K) -> None:
    text = scores(base, chimera, control)
    assert text.kind is kind
    assert judge([text]).kind is kind


def test_nothing_is_said_inside_the_error() -> None:
    for chimera, kind in ((9.5, K.GAINS), (13.5, K.DEGRADED), (32.0, K.BROKEN)):
        sure, unsure = (scores(10.0, chimera, noise=noise) for noise in (0.02, 0.6))
        assert sure.kind is kind
        assert unsure.kind is not kind
        assert judge([unsure]).kind in (K.UNDECIDED, K.DEGRADED, K.COHERENT)
    weak = scores(10.0, 15.0, 15.0, noise=0.4)
    assert weak.kind is not K.INERT


def test_an_undecided_verdict_says_what_it_would_take() -> None:
    text = scores(10.0, 12.0, noise=0.3)
    assert text.kind is K.UNDECIDED
    assert text.tokens_needed is not None
    assert text.tokens_needed > text.tokens == 16 * TOKENS
    verdict = judge([text])
    assert verdict.kind is K.UNDECIDED
    assert "tokens of python (scored: 4,080)." in verdict.reason


@pytest.mark.parametrize(
    ("limit", "count", "reason"),
    [
        (40, 16, "The time was over before it was settled: python +14% ± 16% (16 of 40 windows)."),
        (40, 3, "The time was over before it was settled: python (3 of 40 windows)."),
        (
            16,
            16,
            "Smaller than the error, although all allowed windows were scored: python +14% ± 16% (16 of 16 windows).",
        ),
        (3, 3, "Texts with fewer than 4 windows cannot be settled; use longer ones: python (3 of 3 windows)."),
    ],
)
def test_an_undecided_verdict_gives_the_reason(limit: int, count: int, reason: str) -> None:
    measured = replace(scores(10.0, 12.0, noise=0.3, count=count), window_limit=limit)
    assert (measured.early_change is None) == (measured.change is not None), "of few windows there is a first interval"
    verdict = judge([measured])
    assert verdict.kind is K.UNDECIDED
    assert verdict.reason.startswith(reason)


def test_a_change_is_settled_by_its_sign_or_when_it_is_small() -> None:
    assert scores(10.0, 10.05, noise=0.001).is_settled
    assert scores(10.0, 10.0, noise=0.005).is_settled, "within 2% of the base"
    open_sign = scores(10.0, 10.3, noise=0.1)
    assert open_sign.kind is K.COHERENT
    assert not open_sign.is_settled
    assert open_sign.windows_needed is not None
    assert open_sign.windows_needed > 16


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (((10.0, 9.0, 99.0), (10.0, 10.1, 99.0)), K.GAINS),
        (((10.0, 9.0, 99.0), (10.0, 13.0, 99.0)), K.DEGRADED),
        (((10.0, 9.0, 99.0), (10.0, 40.0, 99.0)), K.BROKEN),
        (((10.0, 12.0, 12.0), (10.0, 12.0, 12.0)), K.INERT),
        (((10.0, 11.0, 11.0), (10.0, 10.1, 99.0)), K.COHERENT),  # they work on another text
        (((10.0, 10.1, 10.2), (10.0, 10.1, 99.0)), K.COHERENT),  # they matter on another text
        (((10.0, 10.1, 10.2), (10.0, 10.1, 10.2)), K.UNDECIDED),
    ],
)
def test_the_verdict_on_all_texts_is_that_of_the_worst_one(texts: tuple[tuple[float, ...], ...], kind: K) -> None:
    parts = [scores(*numbers, text=f"text {number}") for number, numbers in enumerate(texts)]
    assert judge(parts).kind is kind
    assert judge(parts[::-1]).kind is kind


def test_a_gain_does_not_hide_a_text_that_may_be_degraded() -> None:
    gain, open_text = scores(10.0, 9.0, 99.0), scores(10.0, 14.0, 99.0, text="chat", noise=0.4)
    assert (gain.kind, open_text.kind) == (K.GAINS, K.UNDECIDED)
    verdict = judge([gain, open_text])
    assert verdict.kind is K.UNDECIDED
    assert "The time was over before it was settled: chat +" in verdict.reason


def test_a_kind_of_text_that_the_base_does_not_know_counts_only_if_it_knows_none() -> None:
    known, unknown = scores(10.0, 9.0, 99.0, bits=2.0), scores(900.0, 9000.0, text="german", bits=5.0)
    verdict = judge([known, unknown])
    assert verdict.kind is K.GAINS
    assert "The base cannot predict german well, so this result does not count." in verdict.reason
    assert judge([unknown]).kind is K.BROKEN
    assert "predicts none of these texts well" in judge([unknown]).reason


def test_a_chimera_that_does_not_run_is_broken_with_the_reason() -> None:
    verdict = judge([], "the runtime crashed (SIGSEGV)")
    assert (verdict.kind, verdict.reason) == (K.BROKEN, "The chimera does not run: the runtime crashed (SIGSEGV).")
    assert judge([]).kind is K.UNDECIDED


def test_the_reason_of_a_gain_has_the_best_and_the_worst_kind_of_text() -> None:
    parts = [scores(28.0, 26.35, 999.0, noise=0.01), scores(40.0, 42.0, 999.0, text="narrative", noise=0.01)]
    reason = judge(parts).reason
    assert reason.startswith("On python, the chimera's perplexity is 27.4 and the base's is 29.2 (−6.0% ± 0.4%).")
    assert "At worst, perplexity +4.8% ± 0.5% on narrative." in reason
    assert "At worst" not in judge(parts[:1]).reason
    assert "The grafted tensors work: they restore 99%" in reason
    assert "graft" not in judge(parts, act="changed").reason


def test_a_remark_ends_the_reason() -> None:
    assert judge([scores(10.0, 10.1)], remark="No control.").reason.endswith(" No control.")


def test_the_margin_of_a_ratio_is_that_of_the_logarithm_times_the_ratio() -> None:
    text = scores(10.0, 20.0, noise=0.1)
    assert text.change is not None
    assert text.ratio == pytest.approx(math.exp(text.change.mean))
    assert text.ratio_margin == pytest.approx(text.ratio * text.change.margin)


def test_the_share_recovered_is_that_of_logarithms() -> None:
    assert scores(10.0, 100.0, 1000.0).recovered == pytest.approx(0.5)
    assert scores(10.0, 5.0, 20.0).recovered == pytest.approx(2.0)
    assert scores(10.0, 10.0, 9.0).recovered is None
    assert scores(10.0, 10.0, INF).recovered == 1.0
    assert scores(10.0, 10.0).recovered is None


def test_a_perplexity_is_over_all_tokens_of_the_windows() -> None:
    assert perplexity_of([Window(math.log(2048) * 10, 10, "")]) == pytest.approx(2048)
    assert perplexity_of([Window(30.0, 10, ""), Window(10.0, 30, "")]) == pytest.approx(math.e)
    assert perplexity_of([]) is None
    assert perplexity_of([Window(math.inf, 10, "")]) == math.inf
    assert perplexity_of([Window(1e6, 10, "")]) == math.inf


def test_figures_are_as_long_as_they_are_useful() -> None:
    shown = [perplexity_text(value) for value in (1.04, 26.712, 13056.2, 1.2e30, INF)]
    assert shown == ["1.0", "26.7", "13,056", "1.2e+30", "inf"]


def test_a_change_is_reported_with_its_margin_and_a_large_one_as_a_multiple() -> None:
    numbers = ((0.94, 0.03), (0.941, 0.007), (0.9999, 0.02), (2.5, 0.2), (513.6, 60.1))
    texts = [change_text(*pair) for pair in numbers]
    assert texts == ["−6% ± 3%", "−5.9% ± 0.7%", "+0% ± 2%", "+150% ± 20%", "513.6 ± 60.1 times"]


NATS = st.floats(0.0, 1e308) | st.just(INF)
ROWS = st.lists(st.tuples(NATS, NATS, NATS), max_size=9)


@PATIENT
@given(
    st.lists(st.tuples(ROWS, st.booleans(), st.none() | st.floats(0, 9)), max_size=3), st.none() | st.just("it fell")
)
def test_any_scores_give_exactly_one_verdict(
    texts: list[tuple[list[tuple[float, float, float]], bool, float | None]], failure: str | None
) -> None:
    def column(rows: list[tuple[float, float, float]], place: int) -> tuple[Window, ...]:
        return tuple(Window(row[place], TOKENS, "") for row in rows)

    parts = [
        TextScores(
            f"text {number}", column(rows, 0), column(rows, 1), column(rows, 2) if controlled else None, bits=bits
        )
        for number, (rows, controlled, bits) in enumerate(texts)
    ]
    verdict: Judgement = judge(parts, failure)
    assert verdict.kind in set(VerdictKind)
    assert verdict.reason.endswith(".")
    if failure is not None:
        assert verdict.kind is K.BROKEN
