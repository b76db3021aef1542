"""What a composition is predicted to come to before it is run, from measurements alone. Pure.

What is known of a group (the organs that change of one type in one block: `registry.compose.survival`) is its survival,
from 0 to 1, and its distortion. Two numbers are predicted, the two that a verdict is made of, and one out of both:

    loss      = unit · Σ over groups of weight · ((1 - survival)^power + distortion cost · distortion)
    recovered = mean survival of what was grafted, over the groups that have one
    score     = min(ln 1.25 / loss, recovered / 0.2), of the first alone where nothing was grafted

The loss is ln(p / p0), in nats a token, on the worst text; a score of 1 and more means usable. Form and constants were
found on 155 grafts between the models of the zoo, of 2 million parameters. `python -m bench.prediction` tries them
again, docs/design/prediction.md tells what else was tried. Nothing is known of large models; and where the base was
hardly trained itself, it fails.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from organs.registry.anatomy import OrganType
from organs.registry.compose.survival import Change, Group, groups_of, part_correlation

LOSS_LIMIT = math.log(1.25)
"""From here on a verdict says `degraded`."""
RECOVERED_LIMIT = 0.2
"""Below this a verdict says `inert`."""
LOSS_FITTED_MAX = 1.0
"""Beyond this the predicted figure is not told: it says that a model breaks, and not how badly."""
LOSS_MIN = 0.001
"""Keeps the score finite where nothing is lost."""
SCORE_MAX = 1.0 / RECOVERED_LIMIT
"""Of a graft that survives whole; what has no survival to speak of has no more."""


@dataclass(frozen=True, slots=True)
class Constants:
    """What was fitted; the limits above are the verdict's."""

    unit: float = 0.2
    """Nats lost where one group of an inner block does not survive: the zoo's blocks are worth 0.1 to 0.3 each. From
    0.15 to 0.3, 140 to 142 of the 149 grafts that could be judged are predicted rightly."""
    first: float = 10.0
    """Weight of the feed-forward organs and norms of block 0, whose output all later blocks read. With 1 the AUC is
    0.970 and 136 are right; with 5 to 20 it is 0.980 to 0.987."""
    embedding: float = 40.0
    """Weight of embeddings. In the models tried one matrix is what all blocks read and what the answer is read from.
    With 1 the AUC is 0.958 and 137 are right; from 20 on 0.980 and more."""
    distortion: float = 0.5
    """What energy moved by purifying and merging costs, against a group that does not survive. With 0 the AUC is 0.832,
    for nothing else tells how much was purified; with 0.25 to 2 it is 0.974 to 0.991."""
    power: float = 1.5
    """The first tenths that a group loses cost less than the last. With 1 or 2 the AUC is 0.978 or 0.982, but 137 or
    138 are right."""


CONSTANTS = Constants()


@dataclass(frozen=True, slots=True)
class Effect:
    """What one group contributes."""

    group: Group
    loss: float
    """Nats a token."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A prediction and the plain numbers beside it. What nothing tells is None.

    The plain numbers are of the organs that change: alone they predict worse, and θ and the spectral signal nothing.
    """

    loss: float | None
    """Nats a token on the worst text: ln of the chimera's perplexity over the base's. 0 where nothing changes."""
    recovered: float | None
    """The share of what the replaced organs did that is still done; None where no matrix was replaced."""
    provisional: bool
    """Whether organs that are still to be computed are counted by estimates."""
    uncounted: int
    """Organs that change and of which nothing tells what that does."""
    effects: tuple[Effect, ...]
    similarity: float | None
    """Mean correlation of the matrices that give way with those that replace them, -1 to 1."""
    compared: int
    """Of how many matrices that is the mean."""
    change: float | None
    """The sum over blocks of 1 less the mean correlation there: 1 is one block of a stranger."""
    theta_before: float | None
    """Mean θ, in degrees, of the organs that give way, and of those that replace them."""
    theta_after: float | None
    spectral_before: float | None
    """Mean spectral signal, likewise."""
    spectral_after: float | None
    share: float | None
    """Of the base's parameters, how many change, 0 to 1."""

    @property
    def score(self) -> float | None:
        """From 0 to 5; None where nothing that changes could be counted."""
        return None if self.loss is None else score_of(self.loss, self.recovered)

    @property
    def is_usable(self) -> bool | None:
        """Whether a verdict of `gains` or `coherent` is predicted."""
        return None if self.score is None else self.score >= 1.0

    def sentence(self) -> str:
        """What is predicted, and on what it rests, for people."""
        if self.loss is None:
            return "Nothing can be predicted: no organ that changes can be compared with the one that gives way to it."
        if not self.effects:
            return "Nothing changes, so nothing is lost."
        kept = "" if self.recovered is None else f", and {self.recovered:.0%} of what the replaced organs did is kept"
        likely = "Likely usable" if self.is_usable else "Likely not usable"
        return f"{likely}: {_loss_text(self.loss)}{kept}. {self._basis()}"

    def values(self) -> dict[str, Any]:
        """All of it as plain values for JSON, the score and the sentence among them."""
        effects = [
            {**asdict(effect.group), "type": effect.group.type.value, "survival": effect.group.survival}
            | {"loss": effect.loss}
            for effect in self.effects
        ]
        more = {"score": self.score, "usable": self.is_usable, "sentence": self.sentence(), "effects": effects}
        return asdict(self) | more

    def _basis(self) -> str:
        matrices = "no matrix" if not self.compared else f"{self.compared} of the matrices that change"
        what = "an estimate of what computing changes" if self.provisional else "measurements"
        left = f"; {_organs(self.uncounted)} that cannot be compared left out" if self.uncounted else ""
        return f"It rests on {what}, with {matrices} compared{left}; nothing was run."


def predict(changes: Sequence[Change], elements: int, constants: Constants = CONSTANTS) -> Prediction:
    """The prediction for `changes` of a base of `elements` parameters. Nothing is raised for what was not measured."""
    groups = groups_of(changes)
    effects = tuple(Effect(group, group_loss(group, constants)) for group in groups)
    uncounted = sum(group.uncounted for group in groups)
    counted = any(group.uncounted < group.organs for group in groups) or not groups
    similar = [(one.before.place.block, r) for one in changes if (r := _similarity(one)) is not None]
    changed = sum(one.before.spec.elements for one in changes)
    after = [one.after for one in changes if one.after is not None]
    after = after if len(after) == len(changes) else []  # a mean of some would be compared with one of all
    return Prediction(
        loss=math.fsum(effect.loss for effect in effects) if counted else None,
        recovered=recovered_of(groups),
        provisional=any(one.after is None for one in changes),
        uncounted=uncounted,
        effects=effects,
        similarity=fmean(r for _, r in similar) if similar else None,
        compared=len(similar),
        change=_change(similar) if similar else None,
        theta_before=_mean([one.before.theta for one in changes]),
        theta_after=_mean([part.theta for part in after]),
        spectral_before=_mean([one.before.spectral_signal for one in changes]),
        spectral_after=_mean([part.spectral_signal for part in after]),
        share=changed / elements if elements else None,
    )


def group_loss(group: Group, constants: Constants = CONSTANTS) -> float:
    """Nats a token that are lost because of one group."""
    survival = 1.0 if group.survival is None else group.survival
    lost = math.pow(1.0 - survival, constants.power) + constants.distortion * group.distortion
    return constants.unit * _weight(group, constants) * lost


def recovered_of(groups: Iterable[Group]) -> float | None:
    """The mean survival of what was grafted, of those groups that have one; None where nothing was grafted."""
    known = [group.grafted_survival for group in groups if group.grafted_survival is not None]
    return fmean(known) if known else None


def score_of(loss: float, recovered: float | None) -> float:
    """How far within both limits of a verdict: below 1 outside one of them, 5 at most."""
    kept = SCORE_MAX if recovered is None else recovered / RECOVERED_LIMIT
    return min(LOSS_LIMIT / max(loss, LOSS_MIN), kept)


def _weight(group: Group, constants: Constants) -> float:
    if group.type is OrganType.EMBED:
        return constants.embedding
    if group.block == 0 and group.type in (OrganType.ORGAN, OrganType.NORM):
        return constants.first
    return 1.0


def _similarity(change: Change) -> float | None:
    """The correlation of a matrix with what stands there in the end."""
    if not change.is_matrix or change.after is None:
        return None
    return part_correlation(change.before, change.after)


def _change(similar: Sequence[tuple[int | None, float]]) -> float:
    by_block: dict[int | None, list[float]] = {}
    for block, r in similar:
        by_block.setdefault(block, []).append(r)
    return math.fsum(1.0 - fmean(found) for found in by_block.values())


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _loss_text(loss: float) -> str:
    """How much worse, as people say it."""
    if loss > LOSS_FITTED_MAX:
        return "more than 3 times the base's perplexity"
    times = math.exp(loss)
    if times < 1.005:
        return "about the perplexity of the base"
    if times < 2.0:
        return f"a perplexity about {times - 1.0:.0%} higher than the base's"
    return f"a perplexity about {times:.1f} times the base's"


def _organs(count: int) -> str:
    return "1 organ" if count == 1 else f"{count} organs"
