"""Whether organs and low-rank adapters (LoRA) fit a base: the place exists, the shape and the dtype agree."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from organs.registry.anatomy import (
    LORA_SUFFIXES,
    OUTPUT_MATRIX,
    TOKEN_EMBEDDING,
    Group,
    OrganType,
    Place,
    Tower,
    adapted_tensor,
    group_of,
    place_of,
)
from organs.registry.catalog.vocabulary import MATRIX_DTYPES_REFUSED, VECTOR_DTYPES
from organs.registry.compose.findings import counted, listed, runs
from organs.registry.compose.models import (
    Parent,
    Part,
    Replacement,
    effective_shape,
)
from organs.registry.compose.plan import (
    Addition,
    Ingredient,
)
from organs.registry.entities.finding import Finding, Severity
from organs.registry.gguf.quants import can_dequantize
from organs.registry.gguf.types import ValueType
from organs.registry.transform import misfit

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


TYPE_KEY = "adapter.type"
ALPHA_KEY = "adapter.lora.alpha"
PARENTS_MAX = 64
"""Declared parents that are looked at."""


@dataclass(frozen=True, slots=True)
class FactorPair:
    """The two factors for one tensor of the base, as far as they are there."""

    target: str
    a: Part | None
    b: Part | None


def check_adapter(base: Parent, adapter: Parent) -> list[Finding]:
    """All that is to be said of merging `adapter` into `base`.

    Refuses `not-an-adapter`, `adapter-not-lora`, `architecture-differs`, `adapter-misfit`, `non-finite-weights` and
    `dtype-refused` (values that cannot be read here); warns of `adapter-base-differs`; reports `adapter-rank`.
    Licences are checked elsewhere.
    """
    pairs = factor_pairs(adapter)
    if not pairs and adapter.header.text("general.type") != "adapter":
        return [_not_an_adapter(base, adapter)]
    found = [*_of_header(base, adapter), *_of_pairs(base, adapter, pairs)]
    found += [*_of_dtypes(base, adapter, pairs), *_of_base_name(base, adapter)]
    odd = odd_weights(adapter, adapter.parts, base=base, donor=adapter)
    found += [msgspec.structs.replace(one, severity=Severity.REFUSE) for one in odd]  # they cannot be computed with
    ranks = sorted({pair.b.shape[0] for pair in pairs if pair.b is not None})
    if ranks:
        alpha = alpha_of(adapter)
        listed_ranks = listed([str(rank) for rank in ranks])
        sentence = f"{adapter.label} changes {len(pairs)} tensors at rank {listed_ranks}, with an alpha of {alpha:g}."
        targets = [pair.target for pair in pairs]
        found.append(_finding(Severity.INFO, "adapter-rank", sentence, base, adapter, targets, ALPHA_KEY))
    return found


def factor_pairs(adapter: Parent) -> list[FactorPair]:
    """The factors in `adapter` by the tensor that they change, in the order of the file."""
    parts: dict[str, dict[str, Part]] = {}
    for part in adapter.parts:
        target = adapted_tensor(part.name)
        if target is not None:
            parts.setdefault(target, {})[part.name.removeprefix(target)] = part
    first, second = LORA_SUFFIXES
    return [FactorPair(target, halves.get(first), halves.get(second)) for target, halves in parts.items()]


def alpha_of(adapter: Parent) -> float:
    """Alpha as the header says it; 0, which means a factor of 1, where it says none or no number."""
    field = adapter.header.field(ALPHA_KEY)
    value = field.value if field is not None and field.type is not ValueType.BOOL else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if math.isfinite(value) else 0.0


def _not_an_adapter(base: Parent, adapter: Parent) -> Finding:
    sentence = f"{adapter.label} is no adapter: its general.type is {_said(adapter.header.text('general.type'))}."
    return _finding(Severity.REFUSE, "not-an-adapter", sentence, base, adapter, (), "general.type")


def _of_header(base: Parent, adapter: Parent) -> Iterator[Finding]:
    if adapter.header.text("general.type") != "adapter":
        yield _not_an_adapter(base, adapter)
    method = adapter.header.text(TYPE_KEY)
    if method != "lora":
        sentence = (
            f"{adapter.label} is kept as it is, but cannot be merged: its {TYPE_KEY} is {_said(method)}, not lora."
        )
        yield _finding(Severity.REFUSE, "adapter-not-lora", sentence, base, adapter, (), TYPE_KEY)
    ours, theirs = base.header.architecture, adapter.header.architecture
    if ours is None or ours != theirs:
        sentence = f"{adapter.label} is for the architecture {_said(theirs)}, {base.label} is of {_said(ours)}."
        yield _finding(Severity.REFUSE, "architecture-differs", sentence, base, adapter, (), "general.architecture")
    field = adapter.header.field(ALPHA_KEY)
    if field is not None and isinstance(field.value, float) and not math.isfinite(field.value):
        sentence = f"{adapter.label} has an alpha of {field.value}: nothing can be scaled by that."
        yield _finding(Severity.REFUSE, "adapter-misfit", sentence, base, adapter, (), ALPHA_KEY)


def _of_pairs(base: Parent, adapter: Parent, pairs: Sequence[FactorPair]) -> Iterator[Finding]:
    strange = [part.name for part in adapter.parts if adapted_tensor(part.name) is None]
    if strange or not pairs:
        what = f"has {listed(strange)}, which would be lost" if strange else "holds no factors"
        sentence = f"{adapter.label} {what}: an adapter is made of pairs of {' and '.join(LORA_SUFFIXES)}."
        yield _misfit(sentence, base, adapter, strange)
    halves = [pair.target for pair in pairs if pair.a is None or pair.b is None]
    if halves:
        yield _misfit(f"{adapter.label} has one factor of two for {listed(halves)}.", base, adapter, halves)
    absent = [pair.target for pair in pairs if pair.target not in base.by_name]
    if absent:
        sentence = f"{adapter.label} changes {listed(absent)}, and {base.label} has no such tensor."
        yield _misfit(sentence, base, adapter, absent)
    reasons = {pair.target: reason for pair in pairs if (reason := _shape_reason(base, pair)) is not None}
    if reasons:
        first = next(iter(reasons))
        others = f", nor {len(reasons) - 1} more" if len(reasons) > 1 else ""
        sentence = f"{adapter.label} does not fit {base.label} at {first}{others}: {reasons[first]}."
        yield _misfit(sentence, base, adapter, list(reasons))


def _shape_reason(base: Parent, pair: FactorPair) -> str | None:
    target = base.by_name.get(pair.target)
    if target is None or pair.a is None or pair.b is None:
        return None
    return misfit(target.shape, pair.a.shape, pair.b.shape, target.place == TOKEN_EMBEDDING)


def _of_dtypes(base: Parent, adapter: Parent, pairs: Sequence[FactorPair]) -> Iterator[Finding]:
    targets = [base.by_name.get(pair.target) for pair in pairs]
    parts = [part for part in (*targets, *adapter.parts) if part is not None]
    closed = [part for part in parts if not can_dequantize(part.dtype)]
    if closed:
        dtypes = " and ".join(sorted({part.dtype.name for part in closed}))
        names = [part.name for part in closed]
        sentence = f"No values can be read here of {dtypes}, and {listed(names)} would have to be added up."
        yield _finding(Severity.REFUSE, "dtype-refused", sentence, base, adapter, names)


def _of_base_name(base: Parent, adapter: Parent) -> Iterator[Finding]:
    """A warning where the adapter names its base and the base goes by another name, and names no such parent itself."""
    meant = _declared(adapter)
    own = {name for name in (base.header.text("general.name"), *_declared(base)) if name is not None}
    if meant and own and not any(_is_same(one, other) for one in meant for other in own):
        sentence = (
            f"{adapter.label} says that it was made for {listed(meant)}; {base.label} calls itself "
            f"{base.header.text('general.name') or 'nothing'} and names no such parent."
        )
        field = "general.base_model.0.name"
        yield _finding(Severity.WARN, "adapter-base-differs", sentence, base, adapter, (), field)


def _declared(parent: Parent) -> list[str]:
    names = (parent.header.text(f"general.base_model.{number}.name") for number in range(PARENTS_MAX))
    return [name for name in names if name]


def _is_same(first: str, second: str) -> bool:
    """Whether two names mean one model, as far as letters and digits tell: one may say more than the other."""
    one, other = ("".join(char for char in name.casefold() if char.isalnum()) for name in (first, second))
    return bool(one and other) and (one in other or other in one)


def _said(value: str | None) -> str:
    return "not said" if value is None else repr(value[:80])


def _misfit(sentence: str, base: Parent, adapter: Parent, organs: Sequence[str]) -> Finding:
    return _finding(Severity.REFUSE, "adapter-misfit", sentence, base, adapter, organs)


def _finding(
    severity: Severity,
    code: str,
    sentence: str,
    base: Parent,
    adapter: Parent,
    organs: Sequence[str] = (),
    field: str = "",
) -> Finding:
    return Finding(severity, code, sentence, field, (base.label, adapter.label), tuple(organs))


def additions_of(adapter: Parent, scale: float) -> dict[str, Addition]:
    """The additions of `adapter`, `scale` times, by the name of the tensor that each is added to.

    What is incomplete is left out: compatibility has refused it.
    """
    alpha = alpha_of(adapter)
    return {
        pair.target: Addition(_ingredient(pair.a), _ingredient(pair.b), alpha, scale)
        for pair in factor_pairs(adapter)
        if pair.a is not None and pair.b is not None
    }


def is_token_embedding(name: str) -> bool:
    """Whether the tensor `name` turns tokens into vectors: its adapters are stored the other way round."""
    return place_of(name) == TOKEN_EMBEDDING


def _ingredient(part: Part) -> Ingredient:
    return Ingredient(part.digest, part.dtype, part.shape, part.name)
