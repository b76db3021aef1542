"""Tests of `registry.evolving.proposals`: what is proposed depends on the trials, the seed and the number alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from organs.registry.errors import MissingExtra
from organs.registry.evolving.proposals import TRIALS_BY_GROUP, TriedChoice, check_extra, proposed
from organs.registry.evolving.space import Choices, Values, space_of_values

MODELS = ("me/a@1", "me/b@1")
CHOICES = Choices(
    space_of_values(
        {
            "base": "me/base@1",
            "blends": [{"models": MODELS, "type": "organ", "depths": 1, "method": ["ties", "della"]}],
            "grafts": [{"models": MODELS, "type": "skeleton", "depths": 1}],
        }
    ),
    4,
)
METHOD, FIRST, SECOND, GRAFT = (one.key for one in CHOICES.parameters)


def random_choice(number: int) -> Values:
    return proposed(CHOICES.parameters, [], 1, 0, number, is_random=True)


CHOSEN = [random_choice(number) for number in range(1, 31)]


def distance(values: Values) -> float:
    return abs(float(values[FIRST]) - 0.9) + abs(float(values[SECOND]) - 0.2)


def tried(excess: float | None = None) -> list[TriedChoice]:
    """Return thirty trials, which are better the nearer their weights are to 0.9 and 0.2."""
    limits = {} if excess is None else {"chat": excess}
    return [TriedChoice(values, (distance(values),), limits) for values in CHOSEN]


def asked(trials: Sequence[TriedChoice], number: int = 31, seed: int = 0, **more: Any) -> Values:
    return proposed(CHOICES.parameters, trials, 1, seed, number, **more)


def test_the_same_trials_and_number_give_the_same_proposal_and_others_another() -> None:
    first = asked(tried())
    assert asked(tried()) == first
    assert [*first] == [one.key for one in CHOICES.parameters]
    others = [asked(tried(), 32), asked(tried(), seed=1), asked(tried()[:15]), asked(tried(), is_random=True)]
    assert first not in others
    assert len({tuple(other.items()) for other in others}) == len(others)


def test_proposals_come_nearer_to_what_was_good_and_random_ones_do_not() -> None:
    by_trials = [distance(asked(tried(), number)) for number in range(31, 51)]
    at_random = [distance(asked(tried(), number, is_random=True)) for number in range(31, 51)]
    assert sum(by_trials) < 0.6 * sum(at_random)
    assert asked(tried(), is_random=True) == random_choice(31), "at random, the trials have no effect"


def test_a_donor_first_has_one_weight_and_then_one_for_each_type_and_depth() -> None:
    parameters = Choices(space_of_values({"base": "me/base@1", "blends": [{"models": MODELS}]}), 30).parameters
    assert len(parameters) == 14

    def most_weights(values: Values) -> int:
        return max(len({values[one.key] for one in parameters if one.group.endswith(model)}) for model in MODELS)

    trials: list[TriedChoice] = []
    for number in range(1, 2 * TRIALS_BY_GROUP + 1):
        values = proposed(parameters, trials, 1, 0, number)
        assert most_weights(values) == 1, number
        assert most_weights(proposed(parameters, trials, 1, 0, number, is_random=True)) > 1
        trials.append(TriedChoice(values, (sum((float(value) - 0.9) ** 2 for value in values.values()),)))
    assert min(one.objectives for one in trials) < (1.0,), "at random, fourteen weights are seldom so near"
    assert most_weights(proposed(parameters, trials, 1, 0, len(trials) + 1)) > 1


def test_running_trials_are_known_to_the_sampler() -> None:
    once = asked(tried())
    assert asked([*tried(), TriedChoice(once)]) != once
    assert asked([*tried(), TriedChoice(once)]) == asked([*tried(), TriedChoice(once)])


def test_trials_above_a_limit_are_avoided() -> None:
    held = [
        TriedChoice(trial.values, trial.objectives, {"chat": 1.0 if float(trial.values[FIRST]) > 0.5 else -1.0})
        for trial in tried()
    ]
    found = [float(asked(held, number)[FIRST]) for number in range(31, 51)]
    free = [float(asked(tried(), number)[FIRST]) for number in range(31, 51)]
    assert sum(weight > 0.5 for weight in free) >= 15
    assert sum(weight > 0.5 for weight in found) <= 5


def test_several_objectives_are_for_all_of_them() -> None:
    both = [TriedChoice(trial.values, (*trial.objectives, -trial.objectives[0])) for trial in tried()]
    values = proposed(CHOICES.parameters, both, 2, 0, 31)
    assert values == proposed(CHOICES.parameters, both, 2, 0, 31)
    assert values != asked(tried())


def test_without_the_package_the_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"pip install 'organ-registry\[evolve\]'"):
        check_extra()
