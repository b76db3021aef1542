"""The prediction of the quality of a composition before it is run, from measurements only. No input or output.

The changed organs of one type in one block are a group. Two numbers describe a group: its survival (the share of its
function that remains, 0 to 1) and its distortion. Two predictions are computed from them, and the predicted verdict
from these: see the note on prediction in `docs/design`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import TypeAlias

from organs.registry.amounts import count_text, plural_text
from organs.registry.anatomy import OUTPUT_MATRIX, OrganType, Place, Tower
from organs.registry.compose.models import Part
from organs.registry.entities.plan import Effect, Prediction
from organs.registry.lineage import correlation

ENERGY_MAX = 100.0
"""Limit of the energy moved, over the energy before. A ratio of 10 already breaks any model; the limit keeps sums
finite."""

SCALE_MAX = 2.0
"""Limit of the ratio of standard deviations. Weights grow in training, so a larger scale makes up for some of a lower
correlation, but not for none."""


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
    is_adapted: bool = False
    """Whether an adapter is merged into the organ."""
    share: float = 1.0
    """The share of its tensor that changes: below 1 for an expert of a stack."""

    @property
    def is_expert(self) -> bool:
        return self.share < 1.0

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
    """The changes of one type in one block; each embedding is a group of its own. Vectors count only if no matrix
    changes, as in norms.
    """

    type: OrganType
    tower: str
    block: int | None
    slot: str | None
    """Of an embedding; None for other types."""
    organs: int
    """Number of changed organs."""
    uncounted: int = 0
    """Number of changed organs whose change cannot be measured."""
    similarity: float | None = None
    """Mean correlation of the matrices with the replaced matrices, before organs are computed."""
    scale: float = 1.0
    """Product of the ratios of standard deviations, after over before, at most SCALE_MAX. Experts of one stack count
    with their mean."""
    distortion: float = 0.0
    """Energy moved over the energy before. For matrices: the mean of the energy that computing moves. For vectors: the
    largest energy that all changes together move."""

    grafted_similarity: float | None = None
    """`similarity` of the grafted matrices only; None if none can be compared."""
    grafted_scale: float = 1.0
    """`scale` of the grafted matrices only."""
    is_adapted: bool = False
    """Whether an adapter is merged into one of the organs."""
    share: float = 1.0
    """The share of the experts that change; 1 for whole tensors."""

    @property
    def survival(self) -> float | None:
        """The share of the group's function that remains, 0 to 1; None if no matrix can be compared."""
        return _survival(self.similarity, self.scale)

    @property
    def grafted_survival(self) -> float | None:
        """`survival` of the grafted matrices only; None if none can be compared."""
        return _survival(self.grafted_similarity, self.grafted_scale)


def groups_of(changes: Iterable[Change]) -> list[Group]:
    """Return the changes by type, tower and block, in the order of the first change of each group.

    Single experts are groups of their own.
    """
    by_group: dict[tuple[OrganType, str, int | None, str | None, bool], list[Change]] = {}
    for change in changes:
        place = change.before.place
        slot = place.slot if place.type is OrganType.EMBED else None
        key = (place.type, place.tower.value, place.block, slot, change.is_expert)
        by_group.setdefault(key, []).append(change)
    return [_group(members) for members in by_group.values()]


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


def _group(members: Sequence[Change]) -> Group:
    place = members[0].before.place
    slot = place.slot if place.type is OrganType.EMBED else None
    group = (place.type, place.tower.value, place.block, slot, len(members))
    matrices = [change for change in members if change.is_matrix]
    if not matrices:
        energies = [energy for change in members if (energy := _whole_energy(change)) is not None]
        worst = max(energies, default=0.0)
        return Group(*group, len(members) - len(energies), distortion=worst)
    compared = [(change, r) for change in matrices if (r := part_correlation(change.before, change.source)) is not None]
    computed = [(change, _computed_energy(change)) for change, _ in compared]
    known = [energy for _, energy in computed if energy is not None]
    grafted = [(change, r) for change, r in compared if change.is_grafted]
    return Group(
        *group,
        len(matrices) - len(known),
        _mean_similarity(compared),
        _scales(compared),
        fmean(known) if known else 0.0,
        _mean_similarity(grafted),
        _scales(grafted),
        any(change.is_adapted for change in members),
        _share(members),
    )


def _share(members: Iterable[Change]) -> float:
    """Return the largest share of a tensor that changes: a token uses the same experts of all stacks of a block."""
    shares: dict[Place, float] = {}
    for change in members:
        shares[change.before.place] = shares.get(change.before.place, 0.0) + change.share
    return min(1.0, max(shares.values()))


def _mean_similarity(compared: Sequence[tuple[Change, float]]) -> float | None:
    return fmean(r for _, r in compared) if compared else None


def _scales(compared: Sequence[tuple[Change, float]]) -> float:
    by_place: dict[Place, list[float]] = {}
    for change, _ in compared:
        by_place.setdefault(change.before.place, []).append(_scale(change))
    return min(SCALE_MAX, math.prod(fmean(scales) for scales in by_place.values()))


def _survival(similarity: float | None, scale: float) -> float | None:
    return None if similarity is None else min(1.0, max(0.0, similarity) * scale)


def _scale(change: Change) -> float:
    """Return the ratio of standard deviations, after over before, at most SCALE_MAX; 1 if either is unknown."""
    before, after = _deviation(change.before), _deviation(change.source)
    return 1.0 if not before or after is None else min(SCALE_MAX, after / before)


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
LOSS_SHOWN_MAX = 1.0
"""The largest limit of an interval, which means so much or more: the model breaks, but it is not known how much."""
LOSS_MIN = 0.001
"""The smallest loss in a score; it keeps the score finite if nothing is lost."""
SCORE_MAX = 1.0 / RECOVERED_LIMIT
"""The score of a graft with a survival of 1, and of changes without a survival."""
LOSS_SCALE = 0.02
"""Errors of a prediction are differences of asinh(loss / LOSS_SCALE): absolute for losses below about 2%, relative for
larger ones."""
FITTED_ELEMENTS = (1_000_000, 10_000_000)
"""The sizes of models, in parameters, for which the figures of the prediction were measured, with some room."""
FITTED_BLOCKS = (2, 12)
BLOCKS_USUAL = 4
"""The constants for blocks other than the first are those of a model with so many blocks; they are worth less in a
model with more."""


@dataclass(frozen=True, slots=True)
class Constants:
    """The fitted constants of the prediction (`python -m bench.prediction`); the limits above are those of verdicts.

    The first eight are the nats that are lost if a group does not survive.
    """

    feed_forward: float = 0.124
    first_feed_forward: float = 1.63
    """Of block 0: all later blocks read its output."""
    attention: float = 0.223
    first_attention: float = 0.0545
    token_embedding: float = 1.33
    """If the model has an output matrix of its own."""
    output_matrix: float = 3.13
    tied_embedding: float = 4.78
    """The token embedding of a model in which it is the output matrix too."""
    norm: float = 1.4
    power: float = 3.41
    """Exponent of the lost survival: the first tenths cost less than the last."""
    slope: float = 0.323
    """The share of the lost survival that counts without the exponent, for small changes."""
    distortion: float = 0.91
    """The cost of the energy moved by purifying and merging, relative to a group that does not survive."""
    distortion_power: float = 1.39


CONSTANTS = Constants()


class Relation(StrEnum):
    """The relation of the grafted matrices to the replaced matrices, by their mean correlation."""

    CLOSE = "close"
    """At least CLOSE_FROM: fine-tunes, quantizations, late checkpoints."""
    APART = "apart"
    """Relatives with much training in between."""
    STRANGER = "stranger"
    """Below APART_FROM: as unrelated models."""
    ADAPTED = "adapted"
    """No grafted matrix, but merged adapters."""
    OWN = "own"
    """Neither: purified organs, grafted vectors."""


CLOSE_FROM = 0.9
APART_FROM = 0.15
Errors: TypeAlias = Mapping[Relation, tuple[float, float, float]]
ERRORS: Errors = {
    Relation.CLOSE: (-0.57, 0.09, 1.17),
    Relation.APART: (-0.46, -0.02, 0.38),
    Relation.STRANGER: (-0.73, 0.12, 0.35),
    Relation.ADAPTED: (-1.05, -0.02, 0.88),
    Relation.OWN: (-0.55, 0.05, 0.57),
}
"""The 10th, 50th and 90th percentile of the errors of `fitted_loss`, measured minus fitted, by relation. See LOSS_SCALE
for their unit."""


@dataclass(frozen=True, slots=True)
class BaseShape:
    """The properties of a base that the prediction depends on."""

    elements: int
    blocks: int
    """The largest number of blocks of a tower."""
    has_output: bool
    """Whether it has an output matrix; otherwise its embeddings are tied."""

    @classmethod
    def of(cls, parts: Iterable[Part]) -> BaseShape:
        """Return the properties of the model with these tensors."""
        known = list(parts)
        blocks = {(part.place.tower, part.place.block) for part in known if part.place.block is not None}
        return cls(
            sum(part.spec.elements for part in known),
            max(Counter(tower for tower, _ in blocks).values(), default=0),
            any(part.place == OUTPUT_MATRIX for part in known),
        )


def predict(changes: Sequence[Change], base: BaseShape, constants: Constants = CONSTANTS) -> Prediction:
    """Return the prediction for `changes` of a base; unmeasured organs are left out."""
    groups = groups_of(changes)
    effects = tuple(_effect(group, group_loss(group, base, constants)) for group in groups)
    uncounted = sum(group.uncounted for group in groups)
    counted = any(group.uncounted < group.organs for group in groups) or not groups
    similar = [(change.before.place.block, r) for change in changes if (r := _similarity(change)) is not None]
    changed = sum(change.before.spec.elements for change in changes)
    after = [change.after for change in changes if change.after is not None]
    after = after if len(after) == len(changes) else []  # a mean of some organs is not comparable with a mean of all
    losses = interval_of(fitted_loss(groups, base, constants), relation_of(groups)) if groups else (0.0, 0.0, 0.0)
    low, loss, high = losses if counted else (None, None, None)
    recovered = recovered_of(groups)
    score = None if loss is None else score_of(loss, recovered)
    provisional = any(change.after is None for change in changes)
    outside = _outside(groups, base)
    basis = _basis(len(similar), uncounted, outside, provisional=provisional)
    cost = "" if low is None or loss is None or high is None or not effects else cost_text(low, loss, high)
    return Prediction(
        sentence=_sentence(cost, _likelihood(low, high), recovered, basis, changes=bool(effects)),
        cost=cost,
        usable=None if score is None else score >= 1.0,
        score=score,
        loss=loss,
        low=low,
        high=high,
        outside=outside,
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
        share=changed / base.elements if base.elements else None,
    )


def fitted_loss(groups: Iterable[Group], base: BaseShape, constants: Constants = CONSTANTS) -> float:
    """Return the sum of the losses of groups, in nats for each token."""
    return math.fsum(group_loss(group, base, constants) for group in groups)


def group_loss(group: Group, base: BaseShape, constants: Constants = CONSTANTS) -> float:
    """Return the loss that one group causes, in nats for each token.

    Experts cause their share of the loss of complete stacks: on average, a token uses this share of them.
    """
    lost = 0.0 if group.survival is None else 1.0 - group.survival
    moved = constants.distortion * math.pow(group.distortion, constants.distortion_power)
    loss = math.pow(lost, constants.power) + constants.slope * lost + moved
    return group.share * _weight(group, base, constants) * loss


def relation_of(groups: Sequence[Group]) -> Relation:
    """Return the relation of the grafted matrices to those that they replace."""
    is_adapted = any(group.is_adapted for group in groups)
    known = [(group.grafted_similarity, group.organs) for group in groups if group.grafted_similarity is not None]
    if not known:
        return Relation.ADAPTED if is_adapted else Relation.OWN
    mean = math.fsum(r * count for r, count in known) / sum(count for _, count in known)
    return Relation.CLOSE if mean >= CLOSE_FROM else Relation.APART if mean >= APART_FROM else Relation.STRANGER


def interval_of(loss: float, relation: Relation, errors: Errors = ERRORS) -> tuple[float, float, float]:
    """Return the lower limit, the most likely value and the upper limit of the real loss, in nats for each token.

    In the measured grafts, four of five real losses lie between the limits. A limit of LOSS_SHOWN_MAX means so much or
    more.
    """
    low, middle, high = (LOSS_SCALE * math.sinh(math.asinh(loss / LOSS_SCALE) + error) for error in errors[relation])
    return min(low, LOSS_SHOWN_MAX), middle, min(high, LOSS_SHOWN_MAX)


def recovered_of(groups: Iterable[Group]) -> float | None:
    """Return the mean survival of the grafted feed-forward matrices over the groups; None if none has a survival.

    Only feed-forward organs count, as in the control of a validation.
    """
    known = [
        group.grafted_survival
        for group in groups
        if group.type is OrganType.ORGAN and group.grafted_survival is not None
    ]
    return fmean(known) if known else None


def score_of(loss: float, recovered: float | None) -> float:
    """Return the distance from the limits of a verdict: below 1, one of the limits is exceeded; 5 is the maximum."""
    recovery = SCORE_MAX if recovered is None else recovered / RECOVERED_LIMIT
    return min(LOSS_LIMIT / max(loss, LOSS_MIN), recovery)


def _weight(group: Group, base: BaseShape, constants: Constants) -> float:
    is_first = group.block == 0
    if group.type is OrganType.EMBED:
        if not base.has_output:
            return constants.tied_embedding
        return constants.output_matrix if group.slot == OUTPUT_MATRIX.slot else constants.token_embedding
    if group.type is OrganType.NORM:
        return constants.norm
    inner = BLOCKS_USUAL / max(1, base.blocks)
    if group.type is OrganType.ORGAN:
        return constants.first_feed_forward if is_first else constants.feed_forward * inner
    return constants.first_attention if is_first else constants.attention * inner


def _effect(group: Group, loss: float) -> Effect:
    return Effect(
        type=group.type.value,
        tower=group.tower,
        block=group.block,
        slot=group.slot,
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


def _outside(groups: Sequence[Group], base: BaseShape) -> str:
    """Return why the changes or the base are outside of what the prediction was fitted to; empty if they are not."""
    fitted = (OrganType.SKELETON, OrganType.ORGAN, OrganType.EMBED, OrganType.NORM)
    smallest, largest = FITTED_ELEMENTS
    reasons = [
        f"{count_text(base.elements)} parameters" if not smallest <= base.elements <= largest else "",
        plural_text(base.blocks, "block", "blocks") if not FITTED_BLOCKS[0] <= base.blocks <= FITTED_BLOCKS[1] else "",
        "grafts of single experts" if any(group.share < 1.0 for group in groups) else "",
        "organs of other types" if any(group.type not in fitted for group in groups) else "",
        "several towers" if any(group.tower != Tower.TEXT for group in groups) else "",
    ]
    return ", ".join(filter(None, reasons))


def _sentence(cost: str, likelihood: str, recovered: float | None, basis: str, *, changes: bool) -> str:
    """Return the prediction as text, with its basis."""
    if not changes:
        return "Nothing changes, so the perplexity stays the same."
    if not cost:
        return "No prediction: no changed organ can be compared with the one that it replaces."
    kept = "" if recovered is None else f"{recovered:.0%} of the replaced organs' function"
    if likelihood != NOT_USABLE and recovered is not None and recovered < RECOVERED_LIMIT:
        return f"{NOT_USABLE}, because the grafts keep only {kept}: {cost}. {basis}"
    return f"{likelihood}: {cost}{f'; the grafts keep {kept}' if kept else ''}. {basis}"


NOT_USABLE = "Likely not usable"


def _likelihood(low: float | None, high: float | None) -> str:
    if low is not None and low > LOSS_LIMIT:
        return NOT_USABLE
    return "Likely usable" if high is not None and high <= LOSS_LIMIT else "May be usable"


def _basis(compared: int, uncounted: int, outside: str, *, provisional: bool) -> str:
    matrices = "without compared matrices" if not compared else f"from {_matrices(compared)}"
    stage = ", made before organs are computed" if provisional else ""
    omitted = f"; {_organs(uncounted)} could not be compared" if uncounted else ""
    basis = f"An estimate {matrices}, for the kind of text that loses most{stage}{omitted}; the model was not run."
    if not outside:
        return basis
    return f"{basis} Expect larger errors: it was fitted to models of 2 to 4 million parameters, not to {outside}."


def cost_text(low: float, likely: float, high: float) -> str:
    """Return a predicted interval of losses, in nats for each token, as text: `costs 1% to 9%, most likely 3%`."""
    if low >= LOSS_SHOWN_MAX:
        return "more than 3 times the perplexity of the base"
    if high <= math.log(2.0):
        begin, middle, end = (_percent(math.expm1(loss)) for loss in (low, likely, high))
        if begin == end:
            return f"changes the perplexity by about {middle}"
        if low < 0.0:
            return f"changes the perplexity by {begin} to {end}, most likely {middle}"
        return f"costs {begin} to {end} of perplexity, most likely {middle}"
    begin, middle, end = map(_times, (low, likely, high))
    if high >= LOSS_SHOWN_MAX:
        return f"at least {begin} times the perplexity of the base, most likely {middle}"
    return f"{begin} to {end} times the perplexity of the base, most likely {middle}"


def brief_cost_text(low: float, likely: float, high: float) -> str:
    """Return a predicted interval of losses as text for a table: `1% to 9%, likely 3%`."""
    if low >= LOSS_SHOWN_MAX:
        return f"{_times(low)} times"
    if high <= math.log(2.0):
        begin, middle, end = (_percent(math.expm1(loss)) for loss in (low, likely, high))
        return f"about {middle}" if begin == end else f"{begin} to {end}, likely {middle}"
    begin, middle, end = map(_times, (low, likely, high))
    bounds = f"at least {begin}" if high >= LOSS_SHOWN_MAX else f"{begin} to {end}"
    return f"{bounds} times, likely {middle}"


def _percent(share: float) -> str:
    digits = 1 if abs(share) < 0.0095 else 0
    return f"{round(100.0 * share, digits) + 0.0:.{digits}f}%".replace("-", "−")


def _times(loss: float) -> str:
    return "more than 3" if loss >= LOSS_SHOWN_MAX else f"{math.exp(loss):.1f}"


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


def _matrices(count: int) -> str:
    return "1 compared matrix" if count == 1 else f"{count:,} compared matrices"


def _organs(count: int) -> str:
    return "1 organ" if count == 1 else f"{count} organs"
