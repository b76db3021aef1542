"""The next choice of an evolution: Optuna proposes it from the trials so far.

A study is made anew for each proposal, from the trials of the catalog, with a sampler whose seed depends on the
evolution and on the number of the trial. So nothing of Optuna is stored, and the same trials give the same proposal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from organs.registry.errors import MissingExtra
from organs.registry.evolving.space import STEP, SearchParameter, Values

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

EXTRA = "evolve"
RANDOM_TRIALS = 10
"""With fewer trials, values are at random."""
TRIALS_BY_GROUP = 6
"""The first trials, so many for each group of numbers, have one value for each group."""
CANDIDATES = 64
"""The points of which the estimator proposes the best."""


@dataclass(frozen=True, slots=True)
class TriedChoice:
    """A choice that is known to the sampler."""

    values: Values
    objectives: tuple[float, ...] = ()
    """What is to become small; empty while it runs."""
    excesses: Mapping[str, float] = field(default_factory=dict)
    """By the names of the texts with a limit: how much it is exceeded, in nats; 0 or less if it holds."""


def check_extra() -> None:
    """Raise MissingExtra without the package `optuna`."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        message = f"an evolution needs the package optuna: pip install 'organ-registry[{EXTRA}]'"
        raise MissingExtra(message, EXTRA) from error


def proposed(
    parameters: Sequence[SearchParameter],
    tried: Iterable[TriedChoice],
    objectives: int,
    seed: int,
    number: int,
    *,
    is_random: bool = False,
) -> dict[str, float | str]:
    """Return a choice for the trial `number`, for an evolution with this `seed` and number of `objectives`.

    J. Bergstra and others, "Algorithms for hyper-parameter optimization" (2011), in its multivariate form; of several
    objectives Y. Ozaki and others, "Multiobjective tree-structured Parzen estimator" (2022). First each group of
    parameters has one value, such as the weight of a donor, then each parameter its own. Raises MissingExtra.
    """
    check_extra()
    tried = list(tried)
    groups = {one.group: one for one in parameters}
    if not is_random and len(groups) < len(parameters):
        coarse = [
            TriedChoice(shared, one.objectives, one.excesses)
            for one in tried
            if (shared := _by_group(parameters, one.values))
        ]
        if len(coarse) < max(RANDOM_TRIALS, TRIALS_BY_GROUP * sum(not one.words for one in groups.values())):
            by_group = proposed(
                [replace(one, key=group) for group, one in groups.items()], coarse, objectives, seed, number
            )
            return {one.key: by_group[one.group] for one in parameters}
    import optuna
    from optuna.samplers import RandomSampler, TPESampler

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    own_seed = int.from_bytes(sha256(f"{seed}/{number}".encode()).digest()[:4])
    sampler = (
        RandomSampler(seed=own_seed)
        if is_random
        else TPESampler(seed=own_seed, multivariate=True, n_startup_trials=RANDOM_TRIALS, n_ei_candidates=CANDIDATES)
    )
    study = optuna.create_study(directions=["minimize"] * objectives, sampler=sampler)
    space = {one.key: _distribution(one) for one in parameters}
    study.add_trials([_frozen(trial, space) for trial in tried])
    found = study.ask(space).params
    return {one.key: found[one.key] if one.words else one.rounded(found[one.key]) for one in parameters}


def _by_group(parameters: Sequence[SearchParameter], values: Values) -> dict[str, float | str] | None:
    """Return the value of each group; None if a group has several."""
    found: dict[str, float | str] = {}
    return found if all(found.setdefault(one.group, values[one.key]) == values[one.key] for one in parameters) else None


def _distribution(parameter: SearchParameter) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if parameter.words:
        return CategoricalDistribution(parameter.words)
    return FloatDistribution(parameter.low, parameter.high, step=STEP)


def _frozen(trial: TriedChoice, space: Mapping[str, BaseDistribution]) -> FrozenTrial:
    from optuna.trial import TrialState, create_trial

    return create_trial(
        state=TrialState.COMPLETE if trial.objectives else TrialState.RUNNING,
        values=list(trial.objectives) or None,
        params=dict(trial.values),
        distributions=dict(space),
        constraints=dict(trial.excesses) or None,
    )
