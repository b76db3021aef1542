"""Whether organs fit the places that they are to take: the place is there, the shape, the dtype, the whole group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from organs.registry.anatomy import OUTPUT_MATRIX, Group, OrganType, Place, Tower, group_of
from organs.registry.catalog.vocabulary import MATRIX_DTYPES_REFUSED, VECTOR_DTYPES
from organs.registry.compose.findings import counted, listed, runs
from organs.registry.compose.models import (
    Parent,
    Part,
    Replacement,
    effective_shape,
)
from organs.registry.entities.finding import Finding, Severity

_PLACES = ("place", "places")


def misplaced(base: Parent, replacements: Sequence[Replacement]) -> Iterator[Finding]:
    """`no-such-place` and `place-twice`: what is to be replaced is not in the base, or is replaced by two."""
    foreign = [one.before.name for one in replacements if base.by_name.get(one.before.name) != one.before]
    if foreign:
        sentence = f"{base.label} has no {listed(foreign)}: there is nothing to replace."
        yield _refusal("no-such-place", sentence, base, None, foreign)
    counts = Counter(one.before.name for one in replacements)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        yield _refusal("place-twice", f"More than one graft is for {listed(twice)}.", base, None, twice)


def misfits(base: Parent, donor: Parent, replacements: Sequence[Replacement]) -> Iterator[Finding]:
    """All that keeps what is taken from one donor from fitting the base, one finding a kind."""
    yield from _of_shapes(base, donor, [one for one in replacements if not one.fits])
    refused = [one for one in replacements if is_dtype_refused(one)]
    if refused:
        dtypes = " and ".join(sorted({one.after.dtype.name for one in refused}))
        names = [one.after.name for one in refused]
        sentence = f"{donor.label} keeps {listed(names)} as {dtypes}, with which llama.cpp crashes there."
        yield _refusal("dtype-refused", sentence, base, donor, names)
    yield from _of_groups(base, donor, replacements)
    surplus = _surplus(base, donor, replacements)
    if surplus:
        slots = sorted({part.place.slot for part in surplus})
        places = counted(len(surplus), *_PLACES)
        sentence = f"{donor.label} has {listed(slots)} in {places} where {base.label} has no such slot."
        yield _refusal("slot-absent", sentence, base, donor, [part.name for part in surplus])


def odd_weights(owner: Parent, parts: Iterable[Part], *, base: Parent, donor: Parent | None) -> Iterator[Finding]:
    """`non-finite-weights`: which of `parts`, tensors of `owner`, have weights that are NaN or infinite."""
    odd = [part for part in parts if part.nonfinite]
    if odd:
        sentence = (
            f"{owner.label} has weights that are NaN or infinite in {listed([part.name for part in odd])}: "
            "most likely the file is damaged, and the result will compute nothing but NaN."
        )
        names = tuple(part.name for part in odd)
        yield Finding(Severity.WARN, "non-finite-weights", sentence, models=_labels(base, donor), organs=names)


def kept(base: Parent, donor: Parent, places: Iterable[Place]) -> Iterator[Finding]:
    """`kept-organs`: those of the base's `places` that the donor has nothing for; they stay as they are."""
    lacking = [place for place in places if _slot(place) not in donor.by_slot]
    if lacking:
        slots = sorted({place.slot for place in lacking})
        names = tuple(base.by_slot[_slot(place)].name for place in lacking)
        how_many = counted(len(names), *_PLACES)
        sentence = f"{donor.label} has nothing for {how_many} ({listed(slots)}): {base.label} keeps its own."
        yield Finding(Severity.INFO, "kept-organs", sentence, models=(base.label, donor.label), organs=names)


def is_dtype_refused(one: Replacement) -> bool:
    """Whether a runtime cannot take the dtype at that place; what the base has there itself is its own matter."""
    dtype = one.after.dtype.name
    if one.after.dtype == one.before.dtype and dtype != "F64":
        return False
    is_vector = len(effective_shape(one.before.shape)) < 2
    return dtype not in VECTOR_DTYPES if is_vector else dtype in MATRIX_DTYPES_REFUSED


def _of_shapes(base: Parent, donor: Parent, unfit: Sequence[Replacement]) -> Iterator[Finding]:
    if not unfit:
        return
    first = unfit[0]
    ours, theirs = first.before.shape, first.after.shape
    both = f"{_shape(theirs)} where {base.label} has {_shape(ours)}"
    what = f"{theirs[0]} values a row where {base.label} has {ours[0]}" if theirs[0] != ours[0] else both
    others = f", and {len(unfit) - 1} more do not fit either" if len(unfit) > 1 else ""
    sentence = f"{donor.label} has {what}, at {first.before.name}{others}."
    yield _refusal("width-differs", sentence, base, donor, [one.before.name for one in unfit])


def _of_groups(base: Parent, donor: Parent, replacements: Sequence[Replacement]) -> Iterator[Finding]:
    taken = {one.before.name for one in replacements}
    groups = (group_of(one.before.place) for one in replacements if not one.by_slot)
    members: dict[Group, list[Part]] = {group: [] for group in groups if group is not None}
    for part in base.parts:
        group = group_of(part.place)
        if group in members:
            members[group].append(part)
    partial = {group: [part for part in parts if part.name not in taken] for group, parts in members.items()}
    left = [part for parts in partial.values() for part in parts]
    if left:
        names = sorted({group[2] for group, parts in partial.items() if parts})
        blocks = sorted({group[1] for group, parts in partial.items() if parts})
        sentence = (
            f"Only a part of the {listed(names)} of block {runs(blocks)} would come from {donor.label}, without "
            f"{listed([part.name for part in left])}: these only work together. Name the slots to do it all the same."
        )
        yield _refusal("partial-group", sentence, base, donor, [part.name for part in left])


def _surplus(base: Parent, donor: Parent, replacements: Sequence[Replacement]) -> list[Part]:
    """What of the donor would have to come along and has no place in the base; but for an output matrix of its own."""
    touched = {_whereabouts(one.before.place) for one in replacements if not one.by_slot}
    return [
        part
        for part in donor.parts
        if part.place != OUTPUT_MATRIX and _whereabouts(part.place) in touched and part.slot not in base.by_slot
    ]


def _whereabouts(place: Place) -> tuple[OrganType, Tower, int | None]:
    return place.type, place.tower, place.block


def _slot(place: Place) -> tuple[str, int | None, str]:
    return place.tower.value, place.block, place.slot


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(str(length) for length in shape)


def _refusal(code: str, sentence: str, base: Parent, donor: Parent | None, organs: Iterable[str]) -> Finding:
    return Finding(Severity.REFUSE, code, sentence, models=_labels(base, donor), organs=tuple(organs))


def _labels(base: Parent, donor: Parent | None) -> tuple[str, ...]:
    return (base.label,) if donor is None else (base.label, donor.label)
