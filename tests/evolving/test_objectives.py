"""Tests of `registry.evolving.objectives`: what trials are worth, by hand."""

from __future__ import annotations

import math

import pytest

from organs.registry.evolving.objectives import (
    LEAST_WINDOWS,
    NOT_FINITE,
    Objective,
    effect_of,
    front_of,
    text_changes,
)
from organs.registry.evolving.space import SearchSpace

T_95_OF_4 = 2.131847
"""The quantile of Student's t for an interval of 90% with four degrees of freedom."""
MEAN = Objective({"code": 3.0, "docs": 1.0}, {"chat": math.log(1.05)})
FRONT = Objective({"code": 1.0, "docs": 1.0}, {}, is_front=True)
BEST = {"code": (-0.2, -0.4, -0.3), "docs": (0.1, 0.0, -0.1), "chat": (0.01, 0.02, 0.03)}


def test_texts_with_only_a_limit_do_not_count_in_the_mean() -> None:
    space = SearchSpace("a", texts=("code", "docs"), weights={"code": 3.0}, limits={"chat": 5.0, "docs": 100.0})
    found = Objective.of(space, ("code", "docs", "chat"))
    assert found.weights == {"code": 3.0, "docs": 1.0}
    assert found.limits == pytest.approx({"chat": math.log(1.05), "docs": math.log(2.0)})
    assert not found.is_front
    assert Objective.of(SearchSpace("a", texts=("code",), goal="front"), ("code",)).is_front


def test_the_change_is_the_weighted_mean_of_the_means_of_the_texts() -> None:
    assert MEAN.means(BEST) == pytest.approx({"code": -0.3, "docs": 0.0, "chat": 0.02})
    assert MEAN.change(BEST) == pytest.approx((3 * -0.3 + 0.0) / 4)
    assert MEAN.values(BEST) == (MEAN.change(BEST),)
    assert FRONT.values(BEST) == pytest.approx((-0.3, 0.0))


def test_a_limit_holds_up_to_its_percentage() -> None:
    for ratio, holds in ((1.04, True), (1.06, False)):
        differences = {**BEST, "chat": (math.log(ratio),) * 3}
        assert MEAN.excesses(differences) == pytest.approx({"chat": math.log(ratio / 1.05)})
        assert MEAN.is_allowed(differences) is holds
    assert FRONT.is_allowed(BEST)
    assert not MEAN.is_allowed({**BEST, "chat": (0.0, NOT_FINITE)})


def test_trials_are_paired_by_window() -> None:
    """Each text varies around its own mean: the differences of the windows, with two degrees of freedom of each."""
    other = {"code": (0.0, 0.0, 0.0), "docs": (0.0, 0.0, 0.0, 9.0), "chat": ()}
    found = MEAN.beside(BEST, other)
    assert found is not None
    code, docs = (1.5 * value for value in (-0.2, -0.4, -0.3)), (0.5 * value for value in (0.1, 0.0, -0.1))
    squares = sum((value + 0.45) ** 2 for value in code) + sum(value**2 for value in docs)
    assert found.mean == pytest.approx((3 * -0.45 + 0.0) / 6) == pytest.approx(MEAN.change(BEST))
    assert found.error == pytest.approx(math.sqrt(squares / 4 / 6))
    assert found.margin == pytest.approx(T_95_OF_4 * found.error, rel=1e-5)
    same = MEAN.beside(BEST, BEST)
    assert same is not None
    assert (same.mean, same.margin) == (0.0, 0.0)
    assert MEAN.beside({"code": (1.0,), "docs": (2.0,)}, BEST) is None


@pytest.mark.parametrize("count", range(LEAST_WINDOWS))
def test_no_trial_is_hopeless_with_fewer_than_the_least_windows_of_a_text(count: int) -> None:
    assert not MEAN.is_hopeless(dict.fromkeys(BEST, (NOT_FINITE,) * count), BEST)
    bad = dict.fromkeys(BEST, (NOT_FINITE,) * LEAST_WINDOWS)
    assert MEAN.is_hopeless(bad, BEST)
    assert not MEAN.is_hopeless({**bad, "docs": (NOT_FINITE,) * 3}, BEST), "only whole rounds are looked at"


def test_a_trial_is_hopeless_if_its_interval_is_above_the_best_or_a_limit() -> None:
    def beside(add: float, spread: float) -> dict[str, tuple[float, ...]]:
        return {
            name: tuple(value + add + spread * (-1) ** at for at, value in enumerate(own)) for name, own in BEST.items()
        }

    assert MEAN.is_hopeless({**beside(0.1, 0.001), "chat": (0.0, 0.0, 0.0)}, BEST)
    assert not MEAN.is_hopeless({**beside(0.1, 0.5), "chat": (0.0, 0.0, 0.0)}, BEST), "it may be better"
    assert not MEAN.is_hopeless({**beside(-0.1, 0.001), "chat": (0.0, 0.0, 0.0)}, BEST)
    assert not MEAN.is_hopeless({**beside(0.1, 0.001), "chat": (0.0, 0.0, 0.0)}, None), "it is the best so far"
    assert MEAN.is_hopeless({**BEST, "chat": (0.1, 0.1001, 0.1002)}, None)
    assert not MEAN.is_hopeless({**BEST, "chat": (0.0, 0.2, 0.1)}, None), "the limit may hold"
    assert not FRONT.is_hopeless({"code": (9.0, 9.0), "docs": (0.0, 0.0)}, BEST), "it may be best on another text"


def test_a_stopped_trial_is_estimated_beside_the_best_on_their_common_windows() -> None:
    best = {"code": (-1.0, -0.1, -0.1), "docs": (-1.0, -0.1, -0.1), "chat": (0.0, 0.0, 0.0)}
    stopped = {"code": (-0.9,), "docs": (-0.9,), "chat": (0.0,)}
    assert MEAN.change(stopped) < MEAN.change(best)
    assert MEAN.estimated(stopped, best) == pytest.approx((MEAN.change(best) + 0.1,))
    assert FRONT.estimated(stopped, best) == pytest.approx((-0.3, -0.3))
    assert MEAN.estimated(stopped, None) == MEAN.values(stopped)


def test_the_front_has_the_points_that_no_other_is_better_than() -> None:
    points = {1: (0.0, 3.0), 2: (1.0, 1.0), 3: (3.0, 0.0), 4: (1.0, 2.0), 5: (1.0, 1.0), 6: (3.0, 3.0)}
    assert front_of(points) == (1, 2, 3, 5)
    assert front_of({}) == ()


def test_changes_of_texts_are_ratios_with_margins_and_limits() -> None:
    changes = {one.text: one for one in text_changes(MEAN, {**BEST, "docs": (NOT_FINITE, NOT_FINITE, NOT_FINITE)})}
    assert changes["code"].ratio == pytest.approx(math.exp(-0.3))
    margin = 2.919986 * 0.1 / math.sqrt(3)
    assert changes["code"].margin == pytest.approx(math.exp(-0.3) * math.expm1(margin), rel=1e-5)
    assert (changes["docs"].ratio, changes["docs"].margin, changes["docs"].windows) == (None, None, 3)
    assert (changes["code"].limit, changes["chat"].limit) == (None, 5.0)
    (two,) = text_changes(FRONT, {"code": (0.1, 0.2)})
    assert (two.margin, two.windows) == (None, 2)


def test_the_effect_of_a_part_is_how_much_worse_it_is_without_it() -> None:
    without = {**BEST, "code": tuple(value + 0.2 for value in BEST["code"])}
    effect = effect_of(MEAN, "feed-forward of code", without, BEST)
    assert effect.change == pytest.approx(0.15)
    assert effect.margin is not None
    short = effect_of(MEAN, "feed-forward of code", {name: own[:1] for name, own in without.items()}, BEST)
    assert (short.change > 0.0, short.margin) == (True, None)
