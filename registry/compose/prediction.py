"""Predict what a composition costs before it is run, from measurements alone. Pure.

The organs of one type in one block that change are a group. Two numbers describe a group: its survival, from 0 to 1
(how much of what it did is still done), and its distortion. Two numbers are predicted from them, and from both the
verdict: see the note on prediction in `docs/design`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from organs.registry.anatomy import OrganType
from organs.registry.compose.models import Part
from organs.registry.entities.plan import Effect, Prediction
from organs.registry.lineage import correlation

ENERGY_MAX = 100.0
"""Energy moved, over the energy before, counts up to this. Ten would already break anything; sums stay finite."""


@dataclass(frozen=True, slots=True)
class Change:
    """One place of a result that is not as the base has it."""

    before: Part
    """The base's."""
    source: Part
    """What comes instead, as the model has it that it comes from; `before` itself where the base's own is computed."""
    after: Part | None
    """What stands there in the end: `source` where nothing is computed, None where that is not computed yet."""
    moved: float | None = None
    """An estimate of the energy that computing moves, over the energy of `source`; None where there is none."""

    @property
    def is_computed(self) -> bool:
        return self.after is not self.source

    @property
    def is_grafted(self) -> bool:
        """Whether what comes is not the base's own, to the last byte."""
        before, source = self.before, self.source
        return (before.digest, before.dtype, before.shape) != (source.digest, source.dtype, source.shape)

    @property
    def is_matrix(self) -> bool:
        return self.before.organ.is_matrix


@dataclass(frozen=True, slots=True)
class Group:
    """What changes of one type in one block. Vectors count only where no matrix changes: norms have nothing else."""

    type: OrganType
    tower: str
    block: int | None
    organs: int
    """How many change."""
    uncounted: int = 0
    """Of how many of these nothing tells what the change does."""
    similarity: float | None = None
    """Mean correlation of the matrices with those that they replace, before anything is computed of them."""
    scale: float = 1.0
    """Product of their standard deviations over those before, each at most 1."""
    distortion: float = 0.0
    """Energy moved over the energy before: by computing, in the mean; of vectors by all that is done, the worst."""

    grafted_similarity: float | None = None
    """`similarity` of the matrices that were grafted alone; None where none was that can be compared."""
    grafted_scale: float = 1.0
    """`scale`, likewise."""

    @property
    def survival(self) -> float | None:
        """The share of what the group did that is still done, 0 to 1; None without a matrix that can be compared."""
        return _survival(self.similarity, self.scale)

    @property
    def grafted_survival(self) -> float | None:
        """`survival` of the matrices that were grafted alone; None where none was that can be compared."""
        return _survival(self.grafted_similarity, self.grafted_scale)


def groups_of(changes: Iterable[Change]) -> list[Group]:
    """The changes by type, tower and block, in the order of their first one."""
    gathered: dict[tuple[OrganType, str, int | None], list[Change]] = {}
    for change in changes:
        place = change.before.place
        gathered.setdefault((place.type, place.tower.value, place.block), []).append(change)
    return [_group(*key, members) for key, members in gathered.items()]


def part_correlation(first: Part, second: Part) -> float | None:
    """How alike two organs at one place are, -1 to 1; None where nothing tells.

    1 for the same bytes, and 0 where `second` is a constant and `first` is not: nothing is left of it.
    """
    if (first.digest, first.dtype, first.shape) == (second.digest, second.dtype, second.shape):
        return 1.0
    if _deviation(first) and _deviation(second) == 0.0:
        return 0.0
    if first.fingerprint is None or second.fingerprint is None or first.shape != second.shape:
        return None
    return correlation(first.fingerprint, second.fingerprint)


def moved_energy(first: Part, second: Part, similarity: float | None) -> float | None:
    """|second - first|² over |first|², from their moments and their correlation; None where moments are missing.

    With mean m and standard deviation s: ((m' - m)² + s² + s'² - 2 r s s') / (m² + s²). Without a correlation the
    least that the moments allow, r = 1.
    """
    mean, deviation = _finite(first.mean), _deviation(first)
    mean_after, deviation_after = _finite(second.mean), _deviation(second)
    if mean is None or deviation is None or mean_after is None or deviation_after is None:
        return None
    size = math.hypot(mean, deviation)
    if size == 0.0 or not math.isfinite(size):
        return None
    r = 1.0 if similarity is None else similarity
    apart = (mean_after - mean) / size
    ours, theirs = deviation / size, deviation_after / size
    if max(abs(apart), theirs) > ENERGY_MAX:  # their squares might be too large for a float
        return ENERGY_MAX
    return min(ENERGY_MAX, max(0.0, apart * apart + ours * ours + theirs * theirs - 2.0 * r * ours * theirs))


def _group(kind: OrganType, tower: str, block: int | None, members: Sequence[Change]) -> Group:
    matrices = [change for change in members if change.is_matrix]
    if not matrices:
        energies = [energy for change in members if (energy := _whole_energy(change)) is not None]
        worst = max(energies, default=0.0)
        return Group(kind, tower, block, len(members), len(members) - len(energies), distortion=worst)
    found = [(change, r) for change in matrices if (r := part_correlation(change.before, change.source)) is not None]
    computed = [(change, _computed_energy(change)) for change, _ in found]
    known = [energy for _, energy in computed if energy is not None]
    grafted = [(change, r) for change, r in found if change.is_grafted]
    return Group(
        kind,
        tower,
        block,
        len(members),
        len(matrices) - len(known),
        _mean_similarity(found),
        _scales(found),
        fmean(known) if known else 0.0,
        _mean_similarity(grafted),
        _scales(grafted),
    )


def _mean_similarity(found: Sequence[tuple[Change, float]]) -> float | None:
    return fmean(r for _, r in found) if found else None


def _scales(found: Sequence[tuple[Change, float]]) -> float:
    return math.prod(_scale(change) for change, _ in found)


def _survival(similarity: float | None, scale: float) -> float | None:
    return None if similarity is None else max(0.0, similarity) * scale


def _scale(change: Change) -> float:
    """Standard deviation over that before, at most 1; 1 where one of them is not known."""
    before, after = _deviation(change.before), _deviation(change.source)
    return 1.0 if not before or after is None else min(1.0, after / before)


def _computed_energy(change: Change) -> float | None:
    """Energy that computing moves in a matrix: measured where it was, else estimated; 0 where nothing is computed."""
    if not change.is_computed:
        return 0.0
    if change.after is not None:
        r = part_correlation(change.source, change.after)
        if r is not None or change.moved is None:
            return moved_energy(change.source, change.after, r)
    return _capped(change.moved)


def _whole_energy(change: Change) -> float | None:
    """Energy moved in a vector by all that is done at its place."""
    if change.after is not None:
        return moved_energy(change.before, change.after, part_correlation(change.before, change.after))
    taken = moved_energy(change.before, change.source, part_correlation(change.before, change.source))
    made = _capped(change.moved)
    return None if taken is None or made is None else min(ENERGY_MAX, taken + made)


def _capped(energy: float | None) -> float | None:
    known = _finite(energy)
    return None if known is None or known < 0.0 else min(known, ENERGY_MAX)


def _deviation(part: Part) -> float | None:
    """The standard deviation where it is known and can be one."""
    deviation = _finite(part.standard_deviation)
    return None if deviation is None or deviation < 0.0 else deviation


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


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


def predict(changes: Sequence[Change], elements: int, constants: Constants = CONSTANTS) -> Prediction:
    """Return the prediction for `changes` of a base of `elements` parameters; what was not measured is left out."""
    groups = groups_of(changes)
    effects = tuple(_effect(group, group_loss(group, constants)) for group in groups)
    uncounted = sum(group.uncounted for group in groups)
    counted = any(group.uncounted < group.organs for group in groups) or not groups
    similar = [(one.before.place.block, r) for one in changes if (r := _similarity(one)) is not None]
    changed = sum(one.before.spec.elements for one in changes)
    after = [one.after for one in changes if one.after is not None]
    after = after if len(after) == len(changes) else []  # a mean of some would be compared with one of all
    loss = math.fsum(effect.loss for effect in effects) if counted else None
    recovered = recovered_of(groups)
    score = None if loss is None else score_of(loss, recovered)
    provisional = any(one.after is None for one in changes)
    basis = _basis(len(similar), uncounted, provisional=provisional)
    return Prediction(
        sentence=_sentence(loss, recovered, score, basis, changes=bool(effects)),
        usable=None if score is None else score >= 1.0,
        score=score,
        loss=loss,
        recovered=recovered,
        provisional=provisional,
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


def _effect(group: Group, loss: float) -> Effect:
    return Effect(
        type=group.type.value,
        tower=group.tower,
        block=group.block,
        organs=group.organs,
        uncounted=group.uncounted,
        similarity=group.similarity,
        scale=group.scale,
        distortion=group.distortion,
        grafted_similarity=group.grafted_similarity,
        grafted_scale=group.grafted_scale,
        survival=group.survival,
        loss=loss,
    )


def _sentence(loss: float | None, recovered: float | None, score: float | None, basis: str, *, changes: bool) -> str:
    """Return the prediction in words, with what it is based on."""
    if loss is None:
        return "Nothing can be predicted: no organ that changes can be compared with the one that it replaces."
    if not changes:
        return "Nothing changes, so nothing is lost."
    kept = "" if recovered is None else f", and {recovered:.0%} of what the replaced organs did is kept"
    likely = "Likely usable" if score is not None and score >= 1.0 else "Likely not usable"
    return f"{likely}: {_loss_text(loss)}{kept}. {basis}"


def _basis(compared: int, uncounted: int, *, provisional: bool) -> str:
    matrices = "no matrix" if not compared else f"{compared} of the matrices that change"
    what = "an estimate of what computing changes" if provisional else "measurements"
    left = f"; {_organs(uncounted)} that cannot be compared left out" if uncounted else ""
    return f"It rests on {what}, with {matrices} compared{left}; nothing was run."


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
