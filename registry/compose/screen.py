"""The screen: what the weights say about a composition before it is made. It is free, and grades nothing.

It says how the changed organs are related to those that they replace, how large the change is, and what was measured
for such changes. No formula of weights gives the cost of a change: see `docs/design/validation.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

from msgspec import structs

from organs.registry.amounts import CHANGE_MIN, names_text, plural_text, weight_change_text
from organs.registry.anatomy import OrganType, Tower
from organs.registry.compose.layers import Layers
from organs.registry.compose.parents import Part
from organs.registry.compose.plan import PlannedComputation, PlannedPart, mean_of
from organs.registry.entities.plan import Screen, ScreenGroup
from organs.registry.similarity import CLOSE, FINGERPRINT_ROUNDING, RELATED, changes, correlation, is_fine

ENERGY_MAX = 100.0
"""Limit of the energy moved, over the energy before. It keeps sums finite."""
SIZE_MAX = 1e100
"""Organs with a larger root mean square count as if they had no energy."""
RESOLUTION = 2.0 * FINGERPRINT_ROUNDING
"""Changes below this share of the energy cannot be seen in the coarse fingerprints of earlier versions."""
FRACTAL_ENERGY = 0.105
"""Energy that fractal purification moves in a matrix: 0.096 to 0.132 for the matrices of two models."""
SMALL = 0.1
"""Changes below this share are computed from the values of fingerprints, larger ones from moments and correlation."""


class ChangeKind(StrEnum):
    """A kind of change, as far as measurements tell kinds apart."""

    STRANGER = "stranger"
    """Organs below RELATED, as in unrelated models."""
    ARRANGED = "arranged"
    """Blocks that are repeated, dropped or moved."""
    MERGED = "merged"
    """Organs that are blended with those of other models."""
    ADAPTER = "adapter"
    PURIFIED = "purified"
    PRUNED = "pruned"
    """Mixtures that lose experts."""
    FAR_KIN = "far kin"
    """Organs of relatives with much training in between."""
    EMBEDDINGS = "embeddings"
    """Embeddings of kin."""
    UNKNOWN = "unknown"
    """Organs that cannot be compared with those that they replace."""
    OUTSIDE = "outside"
    """Organs of kin of which no kind was measured: vectors, experts, other towers and types."""
    KIN = "kin"
    """Other organs of at least the likeness CLOSE: of fine-tunes and quantisations."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a kind of change."""

    lead: str
    """What the change is, with {change} or {scale}."""
    advice: str
    measured: str = ""
    """Changes of the perplexity that were measured for such changes."""
    model: str = ""
    """The model on which they were measured."""

    @property
    def sentence(self) -> str:
        figures = f" Measured on {self.model}: {self.measured}." if self.measured else ""
        return f"{self.lead}: {self.advice}.{figures}"


REAL_MODEL = "SmolLM2-135M-Instruct"
SMALL_MODELS = "small Llama models of this project"
KNOWN: Mapping[ChangeKind, Known] = {
    ChangeKind.STRANGER: Known(
        "Unrelated tensors (change {change})",
        "in all blocks they break a model",
        "attention or feed-forward of a stranger in a single block cost +40% to +1,673% perplexity",
        REAL_MODEL,
    ),
    ChangeKind.ARRANGED: Known(
        "Blocks are repeated, dropped or moved ({change})",
        "a model is rarely better without training after it; measure it",
        "four blocks a second time gave +28% to +46% perplexity, two blocks less +43% to 13 times",
        REAL_MODEL,
    ),
    ChangeKind.MERGED: Known("A blend (change {change})", "worth trying; measure it"),
    ChangeKind.ADAPTER: Known(
        "An adapter at scale {scale}",
        "the size of its change does not say what it costs; measure it",
        "scale 1 to 2 gave −16% to +3% perplexity, 3 +14% to +34%, 8 +836% to +1,508%, −1 +158%",
        REAL_MODEL,
    ),
    ChangeKind.PURIFIED: Known(
        "Purified tensors",
        "this usually raises the perplexity; measure it",
        "all feed-forward tensors, keeping 97% of the energy, gave +114% to +320% perplexity, keeping 99% +21% to +32%",
        REAL_MODEL,
    ),
    ChangeKind.PRUNED: Known(
        "Fewer experts", "what it costs depends on the texts, and on which experts stay; measure it"
    ),
    ChangeKind.FAR_KIN: Known(
        "Distantly related (change {change})",
        "measure it",
        "all feed-forward tensors with a change of 0.28 cost +55% to +58% perplexity, of 0.73 to 1 +70% to 10 times",
        SMALL_MODELS,
    ),
    ChangeKind.EMBEDDINGS: Known(
        "Embeddings of a relative (change {change})",
        "measure it",
        "+4% to +28% perplexity for those of a fine-tune that drifted, although the change looked small",
        REAL_MODEL,
    ),
    ChangeKind.UNKNOWN: Known("The tensors cannot be compared with those that they replace", "measure it"),
    ChangeKind.OUTSIDE: Known("Outside what was ever measured", "measure it"),
    ChangeKind.KIN: Known(
        "Related (change {change})",
        "worth trying; measure it",
        "feed-forward of light fine-tunes gave −25% to −3% perplexity, and +2.5% in chat; all tensors of one that "
        "drifted +5% to +27%",
        REAL_MODEL,
    ),
}
"""All that was measured, by kind of change: the extremes of `bench/grafts.json`, and of an earlier family of the same
base (`bench/results/validation.md`). The screen names kinds in this order."""
USUAL = (
    "On a real model it was 5e-6 for a light fine-tune, 2.5e-4 for one that cost up to +27%, and 0.0018 for rounding "
    "to 4 bits, which costs almost nothing: the size alone does not say the cost"
)
"""The usual sizes of changes: the energy of the difference as a share of the energy of the weights."""


@dataclass(frozen=True)  # without slots, because of the cached properties
class Change:
    """One place of a result that differs from the base."""

    before: Part
    """The base's organ."""
    source: Part
    """The organ of the donor; `before` itself if the base's own organ is computed."""
    after: Part | None
    """The organ of the result: `source` if nothing is computed, None before it is computed."""
    estimate: float | None = None
    """An estimate of the energy that computing moves, over the energy of `source`; None if unknown."""
    scales: tuple[float, ...] = ()
    """The scales of the adapters that are merged into the organ."""
    is_purified: bool = False
    is_merged: bool = False
    """Whether it is blended with other organs."""
    is_expert: bool = False
    """Whether it is an expert of a stack, and the other experts stay."""
    left_out: float = 0.0
    """The share of the organ that is left out, if nothing else changes it."""

    @property
    def is_grafted(self) -> bool:
        """Whether `source` is not the base's own organ."""
        before, source = self.before, self.source
        return (before.digest, before.dtype, before.shape) != (source.digest, source.dtype, source.shape)

    @property
    def elements(self) -> float:
        """The values of the base that change."""
        return self.before.spec.elements * (self.left_out or 1.0)

    @property
    def is_computed(self) -> bool:
        return self.after is not self.source

    @property
    def graft(self) -> Change:
        """The change to the donor's organ as it is, before adapters and purification."""
        return replace(self, after=self.source)

    @cached_property
    def likeness(self) -> float | None:
        """The correlation of a grafted matrix with the matrix that it replaces; None for other organs."""
        is_compared = self.is_grafted and self.before.organ.is_matrix
        return part_correlation(self.before, self.source) if is_compared else None

    @cached_property
    def moved(self) -> float | None:
        """The energy that the change moves, over the energy before; None if it is unknown.

        Before an organ is computed, and if the measured change is below `resolution`, the estimate counts.
        """
        if self.left_out:  # the organs have different shapes
            return None
        measured = None if self.after is None else moved_energy(self.before, self.after)
        if self.after is not None and measured is not None and measured >= resolution(self.before, self.after):
            return measured
        computed, grafted = _finite(self.estimate), moved_energy(self.before, self.source) if self.is_grafted else 0.0
        if not self.is_computed or computed is None or computed < 0.0 or grafted is None:
            return measured
        return min(ENERGY_MAX, grafted + computed)


def screened(
    parts: Sequence[PlannedPart],
    computed: Mapping[str, Part] | None = None,
    *,
    layers: Layers | None = None,
    edited: Sequence[str] = (),
    quantised: str = "",
) -> Screen:
    """Return the screen of a plan's `parts` and `layers`; `computed` has the measured computed organs by name.

    `edited` are the keys that change if only the header does. `quantised` says which types are written; rounding to
    them is no change of the screen.
    """
    elements = sum(part.before.spec.elements for part in parts)
    found = screen(changes_of(parts, computed or {}), elements, "" if layers is None else layers.sentence)
    if quantised:
        is_only = found.relation == "same"
        sentence = quantised if is_only else f"{found.sentence} {quantised}"
        return structs.replace(found, sentence=sentence, relation=ChangeKind.KIN.value if is_only else found.relation)
    if not edited:
        return found
    keys = names_text(edited)
    return structs.replace(found, sentence=f"The weights stay the same. Changed in the header: {keys}.")


def changes_of(parts: Iterable[PlannedPart], computed: Mapping[str, Part]) -> list[Change]:
    """Return the changes: grafted experts, parts whose source is not the base's own organ, and computed parts."""
    found: list[Change] = []
    for part in parts:
        grafts, computation = part.expert_grafts, part.computation
        experts = (organ for graft in grafts for organ in graft.organs)
        found += [Change(organ.before, organ.after, organ.after, is_expert=True) for organ in experts]
        if computation is None:
            found.append(Change(part.before, part.source, part.source))
        elif computation.blend or computation.additions or computation.method:
            # The measured change of the stack has that of grafted experts, which would count twice.
            measured = None if grafts else computed.get(part.before.name)
            scales = tuple(addition.scale for addition in computation.additions)
            energy = _estimated_energy(computation, part.moved)
            acts = computation.method is not None, computation.blend is not None
            found.append(Change(part.before, part.source, measured, energy, scales, *acts))
        elif computation.kept_experts:
            kept, count = computation.pruned
            after = computed.get(part.before.name)
            found.append(Change(part.before, part.source, after, left_out=1.0 - kept / count))
    return [change for change in found if change.is_grafted or change.is_computed]


def _estimated_energy(computation: PlannedComputation, moved: float | None) -> float | None:
    """Return the estimated energy that computing moves, over the energy of the source; None without moments.

    `moved` is what a trial measured for blends and adapters. Without it, blends, DoRAs and whole tensors have no
    estimate, and the two factors
    of an adapter are assumed to be independent: each value of B·A is a sum of as many products as the rank. For the
    zoo's adapter, this gives 0.86 to 1.00 of the energy. The result of spectral purification has the correlation r with
    the original, the root of the kept share, and is scaled to the length of the original: around the mean, it moves
    2 - 2 r of the variance.
    """
    source = computation.source
    size, spread = _size(source), source.standard_deviation
    if not size or spread is None:
        return None
    if moved is None and computation.blend is not None:
        return None
    energy = moved or 0.0
    for addition in computation.additions if moved is None else ():
        if addition.b is None or addition.magnitude is not None:
            return None
        first, second, rank = _size(addition.a), _size(addition.b), addition.b.shape[0]
        if first is None or second is None or rank < 1:
            return None
        factor = addition.scale * (addition.alpha / rank if addition.alpha else 1.0)
        energy += (abs(factor) * math.sqrt(rank) * first * second / size) ** 2
    if computation.method is not None:
        share = len(computation.purified_experts) / source.shape[-1] if computation.purified_experts else 1.0
        moved = FRACTAL_ENERGY if computation.keep is None else 2.0 - 2.0 * math.sqrt(computation.keep)
        energy += share * moved * (spread / size) ** 2
    return energy


def _size(part: Part) -> float | None:
    """Return the root mean square of an organ's values; None if unknown."""
    if part.mean is None or part.standard_deviation is None:
        return None
    size = math.hypot(part.mean, part.standard_deviation)
    return size if math.isfinite(size) else None


def screen(changed: Sequence[Change], elements: int, arrangement: str = "") -> Screen:
    """Return the screen of the places `changed` of a base that has `elements` parameters.

    `arrangement` says which blocks it has, if they were repeated, dropped or moved.
    """
    kinds = _kinds(changed)
    if arrangement:
        kinds = {ChangeKind.ARRANGED: KNOWN[ChangeKind.ARRANGED].sentence.format(change=arrangement), **kinds}
    share = min(1.0, sum(change.elements for change in changed) / elements) if elements else None
    provisional = any(change.after is None for change in changed)
    totals = _totals(changed)
    relation = next(
        (kind.value for kind in (ChangeKind.STRANGER, ChangeKind.FAR_KIN) if kind in kinds), ChangeKind.KIN.value
    )
    groups = []
    for members in _grouped(changed):
        place = members[0].before.place
        slot = place.slot if place.type is OrganType.EMBED else None
        at = {"type": place.type.value, "tower": place.tower.value, "block": place.block, "slot": slot}
        groups.append(ScreenGroup(**at | _totals(members)))
    return Screen(
        sentence=" ".join(kinds.values()) or "Nothing changes.",
        size=_size_text(changed, totals, share) if changed else "",
        relation=(relation if totals["likeness"] is not None else None) if changed or arrangement else "same",
        compared=sum(change.likeness is not None for change in changed),
        share=share,
        provisional=provisional,
        groups=tuple(groups),
        **totals,
    )


def _kinds(changed: Sequence[Change]) -> dict[ChangeKind, str]:
    """Return the kinds of the places `changed` in the order of KNOWN, each with what is known of it."""
    grafts = _grafts(changed)
    scale = max((scale for change in changed for scale in change.scales), key=abs, default=None)
    found = {*grafts, *([ChangeKind.ADAPTER] if scale is not None else [])}
    found |= {ChangeKind.PURIFIED} if any(change.is_purified for change in changed) else set()
    found |= {ChangeKind.PRUNED} if any(change.left_out for change in changed) else set()
    merged = [change for change in changed if change.is_merged]
    found |= {ChangeKind.MERGED} if merged else set()
    if changed and not found:  # only vectors
        found = {ChangeKind.OUTSIDE}
    plain = {kind: [change.graft for change in members] for kind, members in grafts.items()}
    plain |= {ChangeKind.MERGED: merged} if merged else {}
    sizes = {kind: _moved_text(_totals(members), members) for kind, members in plain.items()}
    return {
        kind: known.sentence.format(change=sizes.get(kind), scale=f"{scale or 0.0:g}")
        for kind, known in KNOWN.items()
        if kind in found
    }


def _grafts(changed: Sequence[Change]) -> dict[ChangeKind, list[Change]]:
    """Return the grafted matrices by their kind.

    Each group is a stranger's or not. All others are judged by their mean, because a single matrix says little.
    """
    grafts: dict[ChangeKind, list[Change]] = {}
    related: list[Change] = []
    for members in _grouped(change for change in changed if change.is_grafted and change.before.organ.is_matrix):
        mean = mean_of(change.likeness for change in members)
        if mean is None:
            grafts.setdefault(ChangeKind.UNKNOWN, []).extend(members)
        elif mean < RELATED:
            grafts.setdefault(ChangeKind.STRANGER, []).extend(members)
        else:
            related += members
    is_close = (mean_of(change.likeness for change in related) or 0.0) >= CLOSE
    for change in related:
        grafts.setdefault(_kind_of_kin(change) if is_close else ChangeKind.FAR_KIN, []).append(change)
    return grafts


def _kind_of_kin(change: Change) -> ChangeKind:
    place = change.before.place
    if change.is_expert or place.tower is not Tower.TEXT:
        return ChangeKind.OUTSIDE
    if place.type is OrganType.EMBED:
        return ChangeKind.EMBEDDINGS
    return ChangeKind.KIN if place.type in (OrganType.ORGAN, OrganType.SKELETON) else ChangeKind.OUTSIDE


def _grouped(changed: Iterable[Change]) -> list[list[Change]]:
    """Return the places `changed` by type, tower and block, in the order of the first change of each group.

    Each embedding is a group of its own, and so are the single experts of a block.
    """
    by_group: dict[tuple[OrganType, str, int | None, str | None, bool], list[Change]] = {}
    for change in changed:
        place = change.before.place
        slot = place.slot if place.type is OrganType.EMBED else None
        by_group.setdefault((place.type, place.tower.value, place.block, slot, change.is_expert), []).append(change)
    return list(by_group.values())


def _totals(members: Sequence[Change]) -> dict[str, Any]:
    """Return the members that a screen and its groups share."""
    known = [(moved, _energy(change.before)) for change in members if (moved := change.moved) is not None]
    energy = math.fsum(weight for _, weight in known)
    return {
        "organs": len(members),
        "uncounted": len(members) - len(known),
        "likeness": mean_of(change.likeness for change in members),
        "moved": math.fsum(moved * (weight / energy) for moved, weight in known) if energy > 0.0 else None,
    }


def _energy(part: Part) -> float:
    """Return the sum of the squares of an organ's values; 0 if it is unknown or not credible."""
    size = math.hypot(_finite(part.mean) or 0.0, _deviation(part) or 0.0)
    return size * size * part.spec.elements if size <= SIZE_MAX else 0.0


def _moved_text(totals: Mapping[str, Any], changed: Sequence[Change]) -> str:
    """Return the change of `changed` as text, not below the smallest that can be seen in computed organs."""
    moved, least = totals["moved"], max(resolution(change.before, change.after or change.source) for change in changed)
    if moved is not None and moved < least and all(change.after is not None for change in changed):
        return f"less than {least:.2g}"
    return weight_change_text(moved, totals["likeness"])


def _size_text(changed: Sequence[Change], totals: Mapping[str, Any], share: float | None) -> str:
    """Return how large a change is, and how large changes usually are."""
    organs, uncounted = totals["organs"], totals["uncounted"]
    percent = "" if share is None else f"{100.0 * share:.2g}%" if share < 1.0 else f"{100.0 * share:,.0f}%"
    of_all = f", {percent} of the parameters" if percent else ""
    change = f"{plural_text(organs, 'tensor changes', 'tensors change')}{of_all}."
    if uncounted:
        change += f" The change of {plural_text(uncounted, 'tensor', 'tensors')} is not known."
    if totals["moved"] is None:
        return change
    stage = ", estimated before they are computed" if any(one.after is None for one in changed) else ""
    return f"{change} The change of their weights is {_moved_text(totals, changed)}{stage}. {USUAL}."


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


def resolution(first: Part, second: Part) -> float:
    """Return the smallest change of two organs that their fingerprints show, as a share of the energy."""
    prints = (first.fingerprint, second.fingerprint)
    return CHANGE_MIN if all(data is not None and is_fine(data) for data in prints) else RESOLUTION


def moved_energy(first: Part, second: Part) -> float | None:
    """Return |second - first|² over |first|², from their moments and their correlation; None if moments are missing,
    or if two matrices cannot be compared.

    With mean m and standard deviation s: ((m' - m)² + s² + s'² - 2 r s s') / (m² + s²). Vectors without a correlation
    have an r of 1, which gives the smallest value that the moments allow. A change below SMALL is computed from the
    values of the fingerprints. Values below `resolution` mean at most so much.
    """
    r = part_correlation(first, second)
    if r is None and first.organ.is_matrix:
        return None
    mean, deviation = _finite(first.mean), _deviation(first)
    mean_after, deviation_after = _finite(second.mean), _deviation(second)
    if mean is None or deviation is None or mean_after is None or deviation_after is None:
        return None
    size = math.hypot(mean, deviation)
    if size == 0.0 or not math.isfinite(size):
        return None
    apart = (mean_after - mean) / size
    ours, theirs = deviation / size, deviation_after / size
    if max(abs(apart), theirs) > ENERGY_MAX:  # their squares might be too large for a float
        return ENERGY_MAX
    if first.fingerprint and second.fingerprint and first.shape == second.shape:
        (change,) = changes([(first.fingerprint, second.fingerprint)])
        after = math.hypot(mean_after, deviation_after) / size
        if change is not None and change < SMALL:  # of the mean of both energies
            return change * (1.0 + after * after) / 2.0
    energy = apart * apart + ours * ours + theirs * theirs - 2.0 * (1.0 if r is None else r) * ours * theirs
    return min(ENERGY_MAX, max(0.0, energy))


def _deviation(part: Part) -> float | None:
    """Return the standard deviation; None if it is unknown or invalid."""
    deviation = _finite(part.standard_deviation)
    return None if deviation is None or deviation < 0.0 else deviation


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
