"""Tests of the verdict: the table of rules, their limits, and invariants for all numbers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from organs.registry.validation.verdict import (
    TextScores,
    Verdict,
    VerdictKind,
    change_text,
    figure,
    judge,
    lengths_text,
)
from tests.random_files import PATIENT

K = VerdictKind
NAN, INF = math.nan, math.inf

PERPLEXITIES = st.floats(1.0, 1e300)
ANY = st.none() | st.floats() | PERPLEXITIES
ERRORS = st.none() | st.floats(0.0, allow_infinity=False)
TEXTS = st.builds(TextScores, st.just("code"), ANY, ANY, ANY, difference_error=ERRORS)


def verdict(base: float | None, chimera: float | None, control: float | None) -> VerdictKind:
    return judge([TextScores("code", base, chimera, control)]).kind


@pytest.mark.parametrize(
    ("base", "chimera", "control", "kind"),
    [
        (10.0, 30.0, 1000.0, K.DEGRADED),  # exactly 3 p0 is not more than 3 p0
        (10.0, math.nextafter(30.0, INF), 1000.0, K.BROKEN),
        (10.0, 30.1, 10.1, K.BROKEN),  # before undecided
        (10.0, 12.0, 10.49, K.UNDECIDED),
        (10.0, 9.0, 10.49, K.UNDECIDED),  # before gains
        (10.0, 20.0, 10.49, K.UNDECIDED),  # before degraded
        (10.0, 10.0, 10.0, K.UNDECIDED),  # pz == p0
        (10.0, 10.0, 5.0, K.UNDECIDED),  # better without the graft
        (10.0, 10.0, 10.5, K.COHERENT),
        (10.0, 10.5, 10.5, K.INERT),  # r = 0
        (10.0, 20.0, 20.0, K.INERT),  # before degraded
        (10.0, 29.0, 20.0, K.INERT),  # worse than the control: r below 0
        (10.0, 10.0 * 2**0.81, 20.0, K.INERT),  # r = 0.19
        (10.0, 10.0 * 2**0.79, 20.0, K.DEGRADED),  # r = 0.21
        (10.0, 12.5, 1000.0, K.COHERENT),
        (10.0, 12.51, 1000.0, K.DEGRADED),
        (10.0, 9.81, 1000.0, K.COHERENT),
        (10.0, 9.79, 1000.0, K.GAINS),
        (10.0, 9.79, None, K.GAINS),  # without a control
        (10.0, 29.0, None, K.DEGRADED),
        (10.0, 12.0, None, K.COHERENT),
        (10.0, 31.0, None, K.BROKEN),
        (10.0, 12.0, INF, K.COHERENT),  # the control overflows: everything is recovered
        (10.0, 12.0, NAN, K.COHERENT),  # no control
        (10.0, 12.0, 0.0, K.COHERENT),
        (10.0, NAN, 20.0, K.BROKEN),
        (10.0, INF, 20.0, K.BROKEN),
        (None, INF, None, K.BROKEN),
        (10.0, None, 20.0, K.UNDECIDED),
        (None, 10.0, 20.0, K.UNDECIDED),
        (NAN, 10.0, 20.0, K.UNDECIDED),
        (INF, 10.0, 20.0, K.UNDECIDED),
        (0.0, 10.0, 20.0, K.UNDECIDED),
        (1e308, 1.7e308, INF, K.DEGRADED),  # 3 p0 overflows
        (5e-324, 1e308, INF, K.BROKEN),  # p / p0 overflows
    ],
)
def test_the_first_rule_that_holds_decides(
    base: float | None, chimera: float | None, control: float | None, kind: VerdictKind
) -> None:
    assert verdict(base, chimera, control) is kind


@pytest.mark.parametrize(
    ("chimera", "control", "kind"),
    [
        ((26.0, 46.0), (20000.0, 6000.0), K.COHERENT),
        ((25.3, 46.4), (20299.0, 6380.0), K.GAINS),  # on some text
        ((25.3, 60.0), (20299.0, 6380.0), K.DEGRADED),  # on the worst
        ((25.3, 6000.0), (20299.0, 6380.0), K.BROKEN),
        ((25.3, 46.4), (26.6, 6380.0), K.UNDECIDED),
        ((32.7, 54.1), (32.3, 53.5), K.INERT),  # block 3 of the zoo's B in A
        ((29.2, 50.1), (29.1, 49.7), K.INERT),
        ((13056.0, 9256.0), (20299.0, 6380.0), K.BROKEN),
    ],
)
def test_a_rule_holds_when_it_holds_on_the_text_that_is_worst_for_it(
    chimera: tuple[float, float], control: tuple[float, float], kind: VerdictKind
) -> None:
    scores = [
        TextScores("code", 26.5, chimera[0], control[0]),
        TextScores("prose", 45.5, chimera[1], control[1]),
    ]
    assert judge(scores).kind is kind
    assert judge(scores[::-1]).kind is kind


def test_a_chimera_that_does_not_run_is_broken_and_says_why() -> None:
    found = judge([TextScores("code", 10.0, None)], "the runtime crashed (SIGSEGV)")
    assert found.kind is K.BROKEN
    assert found.reason == "The chimera does not run: the runtime crashed (SIGSEGV)."


def test_a_verdict_without_scores_is_undecided() -> None:
    assert judge([]).kind is K.UNDECIDED


def test_the_reason_names_the_text_and_the_figures() -> None:
    scores = [TextScores("code", 26.7, 25.3, 20299.0), TextScores("prose", 45.5, 9256.0, 6380.0)]
    assert judge(scores).reason == (
        "On prose, the chimera's perplexity is 9,256 and the base's is 45.5, more than 3 times as much."
    )
    assert "26.6; the base's is 26.5" in judge([TextScores("code", 26.5, 26.5, 26.6)]).reason
    assert "they restore 95%" in judge([TextScores("code", 10.0, 11.2, 100.0)]).reason


def test_a_verdict_without_a_control_names_the_unknown() -> None:
    assert "no control" in judge([TextScores("code", 10.0, 10.0)]).reason
    assert judge([TextScores("code", 10.0, 10.0)], remark="No feed-forward.").reason.endswith("No feed-forward.")
    assert "no control" not in judge([TextScores("code", 10.0, 50.0)]).reason


def test_a_change_of_unknown_kind_is_not_called_a_graft() -> None:
    numbers = [(10.0, 20.0, 20.0), (10.0, 12.0, 10.1), (10.0, 11.2, 100.0), (10.0, 10.0, None)]
    for base, chimera, control in numbers:
        reason = judge([TextScores("code", base, chimera, control)], act="changed").reason
        assert "graft" not in reason
        assert "changed" in reason


def test_a_verdict_within_chance_is_marked_and_stays() -> None:
    def judged(chimera: float, error: float | None) -> Verdict:
        return judge([TextScores("code", 10.0, chimera, 1000.0, difference_error=error)])

    for chimera, kind in ((9.5, K.GAINS), (13.0, K.DEGRADED), (40.0, K.BROKEN)):
        apart = abs(math.log(chimera / 10.0))
        sure, unsure, unknown = (judged(chimera, error) for error in (apart / 2.01, apart / 1.99, None))
        assert sure.kind is unsure.kind is unknown.kind is kind
        assert unsure.reason.endswith("This may be chance: the difference on code is within two standard errors.")
        assert "chance" not in sure.reason
        assert "chance" not in unknown.reason
    assert "chance" not in judged(10.1, 1.0).reason, "coherent claims no difference"


def test_only_the_deciding_text_is_tested_for_chance() -> None:
    code = TextScores("code", 10.0, 9.0, 1000.0, difference_error=0.01)
    prose = TextScores("prose", 10.0, 10.1, 1000.0, difference_error=0.5)
    assert judge([code, prose]).reason == (
        "On code, the chimera's perplexity is 9.0 and the base's is 10.0 (−10.0% ± 0.9%); on prose, 10.1 and 10.0 "
        "(+1% ± 50%). The grafted organs work: they restore 100% of what the model loses without them."
    )


def test_the_error_of_a_ratio_is_that_of_the_logarithm_times_the_ratio() -> None:
    score = TextScores("code", 10.0, 20.0, difference_error=0.1)
    assert score.difference == pytest.approx(math.log(2.0))
    assert score.ratio_error == pytest.approx(0.2)
    assert TextScores("code", 10.0, 20.0).ratio_error is None
    assert TextScores("code", None, 20.0, difference_error=0.1).ratio_error is None
    assert TextScores("code", 5e-324, 1e308, difference_error=0.0).ratio_error is None


def test_the_share_recovered_is_that_of_logarithms() -> None:
    score = TextScores("code", 10.0, 100.0, 1000.0)
    assert score.recovered == pytest.approx(0.5)
    assert TextScores("code", 10.0, 5.0, 20.0).recovered == pytest.approx(2.0)
    assert TextScores("code", 10.0, 10.0, 10.0).recovered is None
    assert TextScores("code", 10.0, 10.0, INF).recovered == 1.0
    neighbours = TextScores("code", 1e300, 1e300, math.nextafter(1e300, INF))
    assert neighbours.recovered is None


def test_figures_are_as_long_as_they_are_useful() -> None:
    assert [figure(value) for value in (1.04, 26.712, 13056.2, 1.2e30, INF)] == [
        "1.0",
        "26.7",
        "13,056",
        "1.2e+30",
        "inf",
    ]


def test_a_change_is_reported_with_its_error_and_a_large_one_as_a_multiple() -> None:
    texts = [
        change_text(*figures) for figures in ((0.94, 0.03), (1.003, 0.004), (0.9999, 0.02), (2.5, 0.2), (513.6, 60.1))
    ]
    assert texts == ["−6% ± 3%", "+0.3% ± 0.4%", "+0% ± 2%", "+150% ± 20%", "513.6 ± 60.1 times"]


def test_the_report_says_how_much_of_each_text_was_scored() -> None:
    assert lengths_text([("code", 128), ("prose", 97)], 128) == "128 tokens of code, 97 tokens of prose"
    assert lengths_text([("code", None)], 128) == "128 tokens of code at most"


@PATIENT
@given(st.lists(TEXTS, max_size=4), st.none() | st.just("it fell over"))
def test_any_numbers_give_exactly_one_verdict(texts: list[TextScores], failure: str | None) -> None:
    found = judge(texts, failure)
    assert found.kind in set(VerdictKind)
    assert found.reason.endswith(".")
    assert found.texts == tuple(texts)
    if failure is not None:
        assert found.kind is K.BROKEN


@PATIENT
@given(st.lists(st.tuples(PERPLEXITIES, PERPLEXITIES, st.none() | PERPLEXITIES), min_size=1, max_size=4))
def test_the_verdict_is_what_the_formula_says_on_every_text(numbers: list[tuple[float, float, float | None]]) -> None:
    found = judge([TextScores(f"text {place}", *three) for place, three in enumerate(numbers)])
    controlled = [(p0, p, pz) for p0, p, pz in numbers if pz is not None]
    shares = [
        (math.log(pz) - math.log(p)) / (math.log(pz) - math.log(p0)) for p0, p, pz in controlled if pz > 1.04 * p0
    ]
    rules = [
        (K.BROKEN, any(p > 3 * p0 for p0, p, _ in numbers)),
        (K.UNDECIDED, any(pz < 1.05 * p0 for p0, _, pz in controlled)),
        (K.INERT, any(share < 0.2 for share in shares)),
        (K.DEGRADED, any(p > 1.25 * p0 for p0, p, _ in numbers)),
        (K.GAINS, any(p < 0.98 * p0 for p0, p, _ in numbers)),
        (K.COHERENT, True),
    ]
    assert found.kind is next(kind for kind, holds in rules if holds)


RANKS = {K.GAINS: 0, K.COHERENT: 1, K.DEGRADED: 2, K.INERT: 3, K.UNDECIDED: 4, K.BROKEN: 5}


@PATIENT
@given(PERPLEXITIES, st.floats(1.0, 1e3), PERPLEXITIES, st.floats(1.0, 10.0))
def test_a_worse_perplexity_never_makes_a_better_verdict(
    base: float, chimera: float, control: float, by: float
) -> None:
    before, after = verdict(base, chimera, control), verdict(base, chimera * by, control)
    assert RANKS[after] >= RANKS[before]


@PATIENT
@given(st.lists(st.tuples(PERPLEXITIES, PERPLEXITIES, PERPLEXITIES), min_size=1, max_size=3))
def test_the_order_of_the_texts_does_not_matter(numbers: list[tuple[float, float, float]]) -> None:
    scores = [TextScores(f"text {place}", *three) for place, three in enumerate(numbers)]
    verdicts: list[Verdict] = [judge(scores), judge(scores[::-1])]
    assert verdicts[0].kind is verdicts[1].kind
