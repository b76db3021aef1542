"""Whether what a donor gives descends from what it replaces, as far as the weights tell.

Organs of strangers fit in shape and give garbage (docs/relatives.md has figures). So every block and type is judged by
itself: a donor that is a fine-tune but for one foreign block is told by that block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from organs.registry.compose.finding import Finding, Severity
from organs.registry.compose.parent import Parent
from organs.registry.compose.phrases import counted
from organs.registry.compose.replacement import Replacement
from organs.registry.lineage import CLOSE, Kinship, Organ, Similarity, Slot, similarity

Compared = Mapping[Slot, Organ]
_MATRICES = ("matrix", "matrices")


@dataclass(frozen=True, slots=True)
class _Judged:
    """The matrices of one type in one block, before and after."""

    replacements: list[Replacement]
    found: Similarity

    @property
    def kind(self) -> str:
        return self.replacements[0].before.place.type.value

    @property
    def names(self) -> list[str]:
        return [one.before.name for one in self.replacements]


def relatedness(base: Parent, donor: Parent, replacements: Sequence[Replacement]) -> Iterator[Finding]:
    """What is to be said of the lineage of what one donor gives; nothing where it changes nothing, or nothing fits.

    `unrelated-lineage` (warn) where a block's matrices of a type are no more alike than chance; `lineage-unknown`
    (warn) where they cannot be compared; else `related-lineage` (info) with the figure, and the types as its field.
    Where nothing but vectors is taken, which tell nothing, the two models are compared as wholes.
    """
    changed = [one for one in replacements if one.fits and one.changes]
    judged = _judged(changed)
    if changed and not judged:
        yield from _as_wholes(base, donor, changed)
        return
    foreign = [one for one in judged if one.found.kinship is Kinship.UNRELATED]
    unknown = [one for one in judged if one.found.kinship is Kinship.INCOMPARABLE]
    kin = [one for one in judged if one.found.kinship in (Kinship.CLOSE, Kinship.KIN)]
    if foreign:
        yield _of_strangers(base, donor, foreign)
    if unknown:
        yield _of_unknown(base, donor, _names(unknown))
    if kin:
        yield _of_kin(base, donor, kin)


def _of_strangers(base: Parent, donor: Parent, judged: Sequence[_Judged]) -> Finding:
    mean, count = _mean(judged)
    sentence = (
        f"The mean correlation of {counted(count, *_MATRICES)} of {donor.label} with those of {base.label} that they "
        f"would replace is {mean:.2f}: they are not related. Strangers have 0.00, fine-tunes {CLOSE} and more, and "
        "grafts from strangers gave garbage."
    )
    return _finding(Severity.WARN, "unrelated-lineage", sentence, base, donor, _names(judged))


def _of_unknown(base: Parent, donor: Parent, names: Sequence[str]) -> Finding:
    sentence = (
        f"Whether {donor.label} and {base.label} are related cannot be told for {counted(len(names), *_MATRICES)} that "
        "would be replaced: there are no fingerprints to compare."
    )
    return _finding(Severity.WARN, "lineage-unknown", sentence, base, donor, names)


def _of_kin(base: Parent, donor: Parent, judged: Sequence[_Judged]) -> Finding:
    mean, count = _mean(judged)
    lowest = min(value for one in judged for value in [one.found.mean] if value is not None)
    sentence = (
        f"The mean correlation of {counted(count, *_MATRICES)} of {donor.label} with those of {base.label} that they "
        f"would replace is {mean:.3f}, and {lowest:.3f} in the block that differs most: they are related."
    )
    kinds = ", ".join(dict.fromkeys(one.kind for one in judged))
    return replace(_finding(Severity.INFO, "related-lineage", sentence, base, donor, _names(judged)), field=kinds)


def _judged(changed: Sequence[Replacement]) -> list[_Judged]:
    """The changed matrices by type and block, compared."""
    groups: dict[tuple[str, str, int | None], list[Replacement]] = {}
    for one in changed:
        if one.before.organ.is_matrix:
            place = one.before.place
            groups.setdefault((place.type.value, place.tower.value, place.block), []).append(one)
    return [_Judged(group, _compared(group)) for group in groups.values()]


def _compared(group: Sequence[Replacement]) -> Similarity:
    before = {one.before.slot: one.before.organ for one in group}
    return similarity(before, {one.before.slot: one.after.organ for one in group})


def _as_wholes(base: Parent, donor: Parent, changed: Sequence[Replacement]) -> Iterator[Finding]:
    found = similarity(_organs(base), _organs(donor))
    if found.kinship is not Kinship.UNRELATED:
        return
    sentence = (
        f"{donor.label} and {base.label} are not related: the mean correlation of {found.organ_count} matrices is "
        f"{found.mean or 0.0:.2f}, where strangers have 0.00 and fine-tunes {CLOSE} and more."
    )
    names = [one.before.name for one in changed]
    yield _finding(Severity.WARN, "unrelated-lineage", sentence, base, donor, names)


def _organs(parent: Parent) -> Compared:
    return {part.slot: part.organ for part in parent.parts}


def _mean(judged: Sequence[_Judged]) -> tuple[float, int]:
    """The mean correlation over all organs that were compared, and how many these are."""
    values = [value for one in judged for value in one.found.by_organ.values()]
    return sum(values) / len(values), len(values)


def _names(judged: Sequence[_Judged]) -> list[str]:
    return [name for one in judged for name in one.names]


def _finding(
    severity: Severity, code: str, sentence: str, base: Parent, donor: Parent, organs: Sequence[str]
) -> Finding:
    return Finding(severity, code, sentence, base=base.label, donor=donor.label, organs=tuple(organs))
