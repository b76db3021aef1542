"""How much of what a group of organs did is still done after some of them were replaced or computed anew. Pure.

A *group* is what changes of one type in one block. Its matrices act one after the other (gate and up, then down;
queries and keys, then values, then output), so a group is judged as one: by the mean correlation of its matrices with
those that they replace, and by the product of their scales.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from organs.registry.anatomy import OrganType
from organs.registry.compose.parent import Part
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
        _similarity(found),
        _scales(found),
        fmean(known) if known else 0.0,
        _similarity(grafted),
        _scales(grafted),
    )


def _similarity(found: Sequence[tuple[Change, float]]) -> float | None:
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
