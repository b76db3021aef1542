"""What trials are worth: from their scores beside those of the base, on the same windows. Pure.

A trial has for each text the differences of its windows: -ln of the probabilities of the tokens by the trial, less that
by the base, in nats for each token. The mean of a text is the logarithm of the ratio of the perplexities.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from organs.registry.entities.base import Entity
from organs.registry.entities.evolution import PartEffect, TextChange
from organs.registry.evolving.space import SearchSpace
from organs.registry.validation.intervals import MeanInterval, interval_of, student_quantile

NOT_FINITE = 20.0
"""The difference of a window that has no finite score, in nats: more than any other has."""
ALPHA = 0.1
"""The intervals have the level 90%."""
LEAST_WINDOWS = 2
"""With so many windows of each text, a trial can be stopped."""

Differences = Mapping[str, Sequence[float]]
"""By the names of the texts, for each window in the order of ranks."""


class TrialResult(Entity, omit_defaults=True):
    """What was measured of a trial."""

    differences: dict[str, tuple[float, ...]]
    """From the window `first` on."""
    first: int = 0
    """The rank of the first window."""
    is_stopped: bool = False
    same_as: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Objective:
    """What counts in an evolution: the texts with their weights, their limits, and the goal."""

    weights: Mapping[str, float]
    """By the names of the texts that are to become better."""
    limits: Mapping[str, float]
    """In nats: the most of the mean difference, by the names of the texts with a limit."""
    is_front: bool = False

    @classmethod
    def of(cls, space: SearchSpace, names: Sequence[str]) -> Objective:
        """Return the objective of a settled space, whose texts have these names."""
        limits = space.limits or {}
        guards = set(limits) - set(space.texts)
        wanted = [name for name in names if name not in guards]
        return cls(
            {name: space.weights.get(name, 1.0) for name in wanted},
            {name: math.log1p(percent / 100.0) for name, percent in limits.items()},
            space.goal == "front",
        )

    @property
    def count(self) -> int:
        """How many values are to become small."""
        return len(self.weights) if self.is_front else 1

    def means(self, differences: Differences) -> dict[str, float]:
        """Return the mean of each text that has windows: a short one has none that are only for checks."""
        return {name: fmean(found) for name, found in differences.items() if found}

    def change(self, differences: Differences) -> float:
        """Return the weighted mean of the texts that are to become better."""
        means = self.means(differences)
        weights = {name: weight for name, weight in self.weights.items() if name in means}
        total = math.fsum(weights.values())
        return math.fsum(weight * means[name] for name, weight in weights.items()) / total if weights else NOT_FINITE

    def values(self, differences: Differences) -> tuple[float, ...]:
        """Return what is to become small: the change, or each text for itself."""
        if not self.is_front:
            return (self.change(differences),)
        means = self.means(differences)
        return tuple(means.get(name, NOT_FINITE) for name in self.weights)

    def excesses(self, differences: Differences) -> dict[str, float]:
        """Return by how much each limit is exceeded; 0 or less if it holds."""
        means = self.means(differences)
        return {name: means[name] - limit for name, limit in self.limits.items() if name in means}

    def is_allowed(self, differences: Differences) -> bool:
        """Return whether all limits hold."""
        return all(excess <= 0.0 for excess in self.excesses(differences).values())

    def beside(self, differences: Differences, other: Differences) -> MeanInterval | None:
        """Return the interval of the change from another trial, paired by window; None with too few windows.

        The deviation within the texts is taken as one.
        """
        total, mean, squares, variance, freedom = math.fsum(self.weights.values()), 0.0, 0.0, 0.0, 0
        for name, weight in self.weights.items():
            pairs = [ours - theirs for ours, theirs in zip(differences[name], other[name], strict=False)]
            if not pairs:
                return None
            own = fmean(pairs)
            mean += weight / total * own
            squares += math.fsum((pair - own) ** 2 for pair in pairs)
            variance += (weight / total) ** 2 / len(pairs)
            freedom += len(pairs) - 1
        if freedom < 2:
            return None
        error = math.sqrt(squares / freedom * variance)
        count = freedom + len(self.weights)
        return MeanInterval(mean, student_quantile(1.0 - ALPHA / 2.0, freedom) * error, error, count)

    def is_hopeless(self, differences: Differences, best: Differences | None) -> bool:
        """Return whether a trial is probably worse than the best one, or exceeds a limit, by its windows so far.

        The windows of a text that both have are compared, if there are equally many of each text, at least
        LEAST_WINDOWS. The intervals are looked at after each such round, so they are less certain than their level.
        """
        windows = {len(found) for found in differences.values()}
        if len(windows) > 1 or min(windows) < LEAST_WINDOWS:
            return False
        for name, limit in self.limits.items():
            found = interval_of(differences[name], 1, ALPHA, LEAST_WINDOWS)
            if found is None or found.low > limit:
                return True
        if best is None or self.is_front:
            return False
        interval = self.beside(differences, best)
        return interval is not None and interval.low > 0.0

    def estimated(self, differences: Differences, best: Differences | None) -> tuple[float, ...]:
        """Return the values of a stopped trial: those of the best one, and the differences on their common windows."""
        if best is None:
            return self.values(differences)
        common = {name: best[name][: len(found)] for name, found in differences.items()}
        return tuple(
            whole + ours - theirs
            for whole, ours, theirs in zip(
                self.values(best), self.values(differences), self.values(common), strict=True
            )
        )


def text_changes(objective: Objective, differences: Differences) -> tuple[TextChange, ...]:
    """Return the changes of a trial on all texts."""
    changes = []
    for name, found in differences.items():
        interval = interval_of(found, 1, ALPHA, 3)
        mean = fmean(found) if found else None
        ratio = None if mean is None or mean >= NOT_FINITE / 2 else math.exp(mean)
        limit = objective.limits.get(name)
        changes.append(
            TextChange(
                text=name,
                ratio=ratio,
                margin=None if interval is None or ratio is None else ratio * math.expm1(min(interval.margin, 50.0)),
                windows=len(found),
                limit=None if limit is None else round(100.0 * math.expm1(limit), 6),
            )
        )
    return tuple(changes)


def front_of(points: Mapping[int, Sequence[float]]) -> tuple[int, ...]:
    """Return the keys of the points of which no other one is better in one value and as good in all."""

    def beats(first: Sequence[float], second: Sequence[float]) -> bool:
        return all(a <= b for a, b in zip(first, second, strict=True)) and tuple(first) != tuple(second)

    return tuple(key for key, values in points.items() if not any(beats(other, values) for other in points.values()))


def effect_of(objective: Objective, part: str, without: Differences, best: Differences) -> PartEffect:
    """Return what a part of the best trial does: how much worse it is without it."""
    interval = objective.beside(without, best)
    if interval is None:
        return PartEffect(part=part, change=objective.change(without) - objective.change(best), margin=None)
    return PartEffect(part=part, change=interval.mean, margin=interval.margin)
