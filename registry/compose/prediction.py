"""The prediction of the quality of a composition before it is run, from measurements only. No input or output.

The changed organs of one type in one block are a group. Two numbers describe a group: its survival (the share of its
function that remains, 0 to 1) and its distortion. Two predictions are computed from them, and the predicted verdict
from these: see the note on prediction in `docs/design`.
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
"""Limit of the energy moved, over the energy before. A ratio of 10 already breaks any model; the limit keeps sums
finite."""


@dataclass(frozen=True, slots=True)
class Change:
    """One place of a result that differs from the base."""

    before: Part
    """The base's organ."""
    source: Part
    """The organ of the donor; `before` itself if the base's own organ is computed."""
    after: Part | None
    """The organ of the result: `source` if nothing is computed, None before it is computed."""
    moved: float | None = None
    """An estimate of the energy that computing moves, over the energy of `source`; None if unknown."""

    @property
    def is_computed(self) -> bool:
        return self.after is not self.source

    @property
    def is_grafted(self) -> bool:
        """Whether `source` is not the base's own organ."""
        before, source = self.before, self.source
        return (before.digest, before.dtype, before.shape) != (source.digest, source.dtype, source.shape)

    @property
    def is_matrix(self) -> bool:
        return self.before.organ.is_matrix


@dataclass(frozen=True, slots=True)
class Group:
    """The changes of one type in one block. Vectors count only if no matrix changes, as in norms."""

    type: OrganType
    tower: str
    block: int | None
    organs: int
    """Number of changed organs."""
    uncounted: int = 0
    """Number of changed organs whose change cannot be measured."""
    similarity: float | None = None
    """Mean correlation of the matrices with the replaced matrices, before organs are computed."""
    scale: float = 1.0
    """Product of the ratios of standard deviations, after over before, each at most 1."""
    distortion: float = 0.0
    """Energy moved over the energy before. For matrices: the mean of the energy that computing moves. For vectors: the
    largest energy that all changes together move."""

    grafted_similarity: float | None = None
    """`similarity` of the grafted matrices only; None if none can be compared."""
    grafted_scale: float = 1.0
    """`scale` of the grafted matrices only."""

    @property
    def survival(self) -> float | None:
        """The share of the group's function that remains, 0 to 1; None if no matrix can be compared."""
        return _survival(self.similarity, self.scale)

    @property
    def grafted_survival(self) -> float | None:
        """`survival` of the grafted matrices only; None if none can be compared."""
        return _survival(self.grafted_similarity, self.grafted_scale)


def groups_of(changes: Iterable[Change]) -> list[Group]:
    """Return the changes by type, tower and block, in the order of the first change of each group."""
    by_group: dict[tuple[OrganType, str, int | None], list[Change]] = {}
    for change in changes:
        place = change.before.place
        by_group.setdefault((place.type, place.tower.value, place.block), []).append(change)
    return [_group(*key, members) for key, members in by_group.items()]


def part_correlation(first: Part, second: Part) -> float | None:
    """Return the correlation of two organs at one place, -1 to 1; None if they cannot be compared.

    It is 1 for the same bytes, and 0 if `second` is constant and `first` is not.
    """
    if (first.digest, first.dtype, first.shape) == (second.digest, second.dtype, second.shape):
        return 1.0
    if _deviation(first) and _deviation(second) == 0.0:
        return 0.0
    if first.fingerprint is None or second.fingerprint is None or first.shape != second.shape:
        return None
    return correlation(first.fingerprint, second.fingerprint)


def moved_energy(first: Part, second: Part, similarity: float | None) -> float | None:
    """Return |second - first|² over |first|², from their moments and their correlation; None if moments are missing.

    With mean m and standard deviation s: ((m' - m)² + s² + s'² - 2 r s s') / (m² + s²). Without a correlation, r is 1,
    which gives the smallest value that the moments allow.
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
    compared = [(change, r) for change in matrices if (r := part_correlation(change.before, change.source)) is not None]
    computed = [(change, _computed_energy(change)) for change, _ in compared]
    known = [energy for _, energy in computed if energy is not None]
    grafted = [(change, r) for change, r in compared if change.is_grafted]
    return Group(
        kind,
        tower,
        block,
        len(members),
        len(matrices) - len(known),
        _mean_similarity(compared),
        _scales(compared),
        fmean(known) if known else 0.0,
        _mean_similarity(grafted),
        _scales(grafted),
    )


def _mean_similarity(compared: Sequence[tuple[Change, float]]) -> float | None:
    return fmean(r for _, r in compared) if compared else None


def _scales(compared: Sequence[tuple[Change, float]]) -> float:
    return math.prod(_scale(change) for change, _ in compared)


def _survival(similarity: float | None, scale: float) -> float | None:
    return None if similarity is None else max(0.0, similarity) * scale


def _scale(change: Change) -> float:
    """Return the ratio of standard deviations, after over before, at most 1; 1 if either is unknown."""
    before, after = _deviation(change.before), _deviation(change.source)
    return 1.0 if not before or after is None else min(1.0, after / before)


def _computed_energy(change: Change) -> float | None:
    """Return the energy that computing moves in a matrix, measured or estimated; 0 if nothing is computed."""
    if not change.is_computed:
        return 0.0
    if change.after is not None:
        r = part_correlation(change.source, change.after)
        if r is not None or change.moved is None:
            return moved_energy(change.source, change.after, r)
    return _capped(change.moved)


def _whole_energy(change: Change) -> float | None:
    """Return the energy moved in a vector by all changes at its place."""
    if change.after is not None:
        return moved_energy(change.before, change.after, part_correlation(change.before, change.after))
    grafted = moved_energy(change.before, change.source, part_correlation(change.before, change.source))
    computed = _capped(change.moved)
    return None if grafted is None or computed is None else min(ENERGY_MAX, grafted + computed)


def _capped(energy: float | None) -> float | None:
    known = _finite(energy)
    return None if known is None or known < 0.0 else min(known, ENERGY_MAX)


def _deviation(part: Part) -> float | None:
    """Return the standard deviation; None if it is unknown or invalid."""
    deviation = _finite(part.standard_deviation)
    return None if deviation is None or deviation < 0.0 else deviation


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


LOSS_LIMIT = math.log(1.25)
"""A verdict is `degraded` from this loss, in nats for each token."""
RECOVERED_LIMIT = 0.2
"""A verdict is `inert` below this recovered share."""
LOSS_FITTED_MAX = 1.0
"""The predicted figure is not stated above this loss: it shows that the model breaks, but not how much."""
LOSS_MIN = 0.001
"""The smallest loss in a score; it keeps the score finite if nothing is lost."""
SCORE_MAX = 1.0 / RECOVERED_LIMIT
"""The score of a graft with a survival of 1, and of changes without a survival."""


@dataclass(frozen=True, slots=True)
class Constants:
    """The fitted constants of the prediction; the limits above are those of verdicts."""

    unit: float = 0.2
    """Nats lost if one group of an inner block does not survive: for the blocks of the zoo, 0.1 to 0.3 each. With 0.15
    to 0.3, 140 to 142 of the 149 decided grafts are predicted correctly."""
    first: float = 10.0
    """Weight of the feed-forward and the norms of block 0: all later blocks read their output. With 1 the AUC is 0.970
    and 136 are correct; with 5 to 20 it is 0.980 to 0.987."""
    embedding: float = 40.0
    """Weight of embeddings: in the tested models one matrix is both the input of all blocks and the output matrix. With
    1 the AUC is 0.958 and 137 are correct; with 20 or more it is at least 0.980."""
    distortion: float = 0.5
    """Cost of the energy moved by purifying and merging, relative to a group that does not survive. With 0 the AUC is
    0.832, because no other number measures purification; with 0.25 to 2 it is 0.974 to 0.991."""
    power: float = 1.5
    """Exponent of the lost survival: the first tenths cost less than the last. With 1 or 2 the AUC is 0.978 or 0.982,
    but 137 or 138 are correct."""


CONSTANTS = Constants()


def predict(changes: Sequence[Change], elements: int, constants: Constants = CONSTANTS) -> Prediction:
    """Return the prediction for `changes` of a base of `elements` parameters; unmeasured organs are left out."""
    groups = groups_of(changes)
    effects = tuple(_effect(group, group_loss(group, constants)) for group in groups)
    uncounted = sum(group.uncounted for group in groups)
    counted = any(group.uncounted < group.organs for group in groups) or not groups
    similar = [(change.before.place.block, r) for change in changes if (r := _similarity(change)) is not None]
    changed = sum(change.before.spec.elements for change in changes)
    after = [change.after for change in changes if change.after is not None]
    after = after if len(after) == len(changes) else []  # a mean of some organs is not comparable with a mean of all
    loss = math.fsum(effect.loss for effect in effects) if counted else None
    recovered = recovered_of(groups)
    score = None if loss is None else score_of(loss, recovered)
    provisional = any(change.after is None for change in changes)
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
        theta_before=_mean([change.before.theta for change in changes]),
        theta_after=_mean([part.theta for part in after]),
        spectral_before=_mean([change.before.spectral_signal for change in changes]),
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
    """Return the prediction as text, with its basis."""
    if loss is None:
        return "No prediction: no changed organ can be compared with the one that it replaces."
    if not changes:
        return "Nothing changes, so the perplexity stays the same."
    function = "" if recovered is None else f"; the grafts keep {recovered:.0%} of the replaced organs' function"
    likely = "Likely usable" if score is not None and score >= 1.0 else "Likely not usable"
    return f"{likely}: {_loss_text(loss)}{function}. {basis}"


def _basis(compared: int, uncounted: int, *, provisional: bool) -> str:
    matrices = "without compared matrices" if not compared else f"from {_matrices(compared)}"
    stage = ", made before organs are computed" if provisional else ""
    omitted = f"; {_organs(uncounted)} could not be compared" if uncounted else ""
    return f"An estimate {matrices}{stage}{omitted}; the model was not run."


def group_loss(group: Group, constants: Constants = CONSTANTS) -> float:
    """Return the loss that one group causes, in nats for each token."""
    survival = 1.0 if group.survival is None else group.survival
    lost = math.pow(1.0 - survival, constants.power) + constants.distortion * group.distortion
    return constants.unit * _weight(group, constants) * lost


def recovered_of(groups: Iterable[Group]) -> float | None:
    """Return the mean survival of the grafted matrices over the groups; None if no graft has a survival."""
    known = [group.grafted_survival for group in groups if group.grafted_survival is not None]
    return fmean(known) if known else None


def score_of(loss: float, recovered: float | None) -> float:
    """Return the distance from the limits of a verdict: below 1, one of the limits is exceeded; 5 is the maximum."""
    recovery = SCORE_MAX if recovered is None else recovered / RECOVERED_LIMIT
    return min(LOSS_LIMIT / max(loss, LOSS_MIN), recovery)


def _weight(group: Group, constants: Constants) -> float:
    if group.type is OrganType.EMBED:
        return constants.embedding
    if group.block == 0 and group.type in (OrganType.ORGAN, OrganType.NORM):
        return constants.first
    return 1.0


def _similarity(change: Change) -> float | None:
    """Return the correlation of a matrix with the organ of the result at its place."""
    if not change.is_matrix or change.after is None:
        return None
    return part_correlation(change.before, change.after)


def _change(similar: Sequence[tuple[int | None, float]]) -> float:
    by_block: dict[int | None, list[float]] = {}
    for block, r in similar:
        by_block.setdefault(block, []).append(r)
    return math.fsum(1.0 - fmean(values) for values in by_block.values())


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _loss_text(loss: float) -> str:
    """Return the perplexity relative to the base's as text."""
    if loss > LOSS_FITTED_MAX:
        return "more than 3 times the perplexity of the base"
    times = math.exp(loss)
    if times < 1.005:
        return "about the perplexity of the base"
    if times < 2.0:
        return f"about {times - 1.0:.0%} higher perplexity than the base"
    return f"about {times:.1f} times the perplexity of the base"


def _matrices(count: int) -> str:
    return "1 compared matrix" if count == 1 else f"{count} compared matrices"


def _organs(count: int) -> str:
    return "1 organ" if count == 1 else f"{count} organs"
