"""Whether organs and low-rank adapters (LoRA) fit a base: the place exists, the shape and the dtype agree."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from organs.registry.amounts import names_text, plural_text, ranges_text
from organs.registry.anatomy import (
    COMPANIONS,
    LORA_SUFFIXES,
    OUTPUT_MATRIX,
    TOKEN_EMBEDDING,
    Group,
    OrganType,
    Place,
    Slot,
    Tower,
    adapted_tensor,
    companion_slot,
    group_of,
    place_of,
    weight_slot,
)
from organs.registry.catalog.vocabulary import MATRIX_DTYPES_REFUSED, VECTOR_DTYPES
from organs.registry.compose.parents import (
    Parent,
    Part,
    Replacement,
    effective_shape,
    shape_text,
)
from organs.registry.compose.plan import Addition
from organs.registry.entities.finding import ARCHITECTURE_DIFFERS, Finding, Severity
from organs.registry.gguf.quants import can_dequantize
from organs.registry.gguf.types import ValueType
from organs.registry.kinds import FileKind
from organs.registry.transform import misfit

_PLACES = ("place", "places")


def misplaced(base: Parent, replacements: Sequence[Replacement]) -> Iterator[Finding]:
    """Yield `no-such-place` for organs that the base does not have, `place-twice` for those replaced twice."""
    foreign = [
        replacement.before.name
        for replacement in replacements
        if base.by_name.get(replacement.before.name) != replacement.before
    ]
    if foreign:
        sentence = f"{base.label} has no {names_text(foreign)}: there is nothing to replace."
        yield _refusal("no-such-place", sentence, base, None, foreign)
    # The plan has refused grafts of the same experts of a stack.
    counts = Counter(replacement.before.name for replacement in replacements if not replacement.experts)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        yield _refusal(
            "place-twice", f"Several grafts replace {names_text(twice)}: keep one of them.", base, None, twice
        )


def misfits(base: Parent, donor: Parent, replacements: Sequence[Replacement]) -> Iterator[Finding]:
    """Return why organs of the donor do not fit the base, one finding for each kind of reason."""
    yield from _of_shapes(base, donor, [replacement for replacement in replacements if not replacement.fits])
    foreign = [item.after for item in replacements if item.after.dtype.is_foreign]
    if foreign:
        kept, types = [part.name for part in foreign], sorted({part.dtype.name for part in foreign})
        sentence = (
            f"{donor.label} stores {names_text(kept)} as {names_text(types)}. Such bytes are only kept here: "
            "they cannot be grafted."
        )
        yield _refusal("dtype-refused", sentence, base, donor, kept)
    refused = [item for item in replacements if is_dtype_refused(item) and not item.after.dtype.is_foreign]
    if refused:
        dtypes = " and ".join(sorted({item.after.dtype.name for item in refused}))
        names = [item.after.name for item in refused]
        sentence = (
            f"{donor.label} stores {names_text(names)} as {dtypes}; llama.cpp crashes with this type at these places."
        )
        yield _refusal("dtype-refused", sentence, base, donor, names)
    other = [item for item in replacements if item.experts and item.fits and item.before.dtype != item.after.dtype]
    if other:
        names, first = [item.before.name for item in other], other[0]
        sentence = (
            f"{donor.label} stores {names_text(names)} as {first.after.dtype.name}, {base.label} as "
            f"{first.before.dtype.name}: single experts need the same tensor type. Graft the whole stack instead."
        )
        yield _refusal("experts-refused", sentence, base, donor, names)
    yield from _of_groups(base, donor, replacements)
    yield from _of_companions(base, donor, replacements)
    # Organs that belong to a graft and have no place in the base, except an output matrix.
    touched = {_cell_of(replacement.before.place) for replacement in replacements if not replacement.by_slot}
    surplus = [
        part
        for part in donor.parts
        if part.place != OUTPUT_MATRIX and _cell_of(part.place) in touched and part.slot not in base.by_slot
    ]
    if surplus:
        slots = sorted({part.place.slot for part in surplus})
        places = plural_text(len(surplus), *_PLACES)
        sentence = f"{donor.label} has {names_text(slots)} in {places}; {base.label} has no such slot there."
        yield _refusal("slot-absent", sentence, base, donor, [part.name for part in surplus])


def odd_weights(owner: Parent, parts: Iterable[Part], *, base: Parent, donor: Parent | None) -> Iterator[Finding]:
    """Yield `non-finite-weights` if some of `parts`, tensors of `owner`, have weights that are NaN or infinite."""
    odd = [part for part in parts if part.nonfinite]
    if odd:
        sentence = (
            f"{owner.label} has weights that are NaN or infinite in {names_text([part.name for part in odd])}: "
            "the file is probably damaged, and the result would compute only NaN."
        )
        names = tuple(part.name for part in odd)
        yield Finding(Severity.WARN, "non-finite-weights", sentence, models=_labels(base, donor), organs=names)


def kept_organs(base: Parent, donor: Parent, places: Iterable[Place]) -> Iterator[Finding]:
    """Yield `kept-organs` for the base's `places` for which the donor has no organ; the base's own organs stay."""
    lacking = [place for place in places if _slot(place) not in donor.by_slot]
    if lacking:
        slots = sorted({place.slot for place in lacking})
        names = tuple(base.by_slot[_slot(place)].name for place in lacking)
        lacking_places = plural_text(len(names), *_PLACES)
        sentence = (
            f"{donor.label} has no organs for {lacking_places} ({names_text(slots)}): those of {base.label} stay."
        )
        yield Finding(Severity.INFO, "kept-organs", sentence, models=(base.label, donor.label), organs=names)


def is_dtype_refused(replacement: Replacement) -> bool:
    """Return whether runtimes refuse the donor's dtype at the place, or its values are not known here.

    The base's dtype is accepted, except F64.
    """
    dtype = replacement.after.dtype.name
    if replacement.after.dtype.is_foreign:
        return True
    if replacement.after.dtype == replacement.before.dtype and dtype != "F64":
        return False
    is_vector = len(effective_shape(replacement.before.shape)) < 2
    return dtype not in VECTOR_DTYPES if is_vector else dtype in MATRIX_DTYPES_REFUSED


def _of_shapes(base: Parent, donor: Parent, unfit: Sequence[Replacement]) -> Iterator[Finding]:
    if not unfit:
        return
    first = unfit[0]
    ours, theirs = first.before.shape, first.after.shape
    shapes = f"{shape_text(theirs)}, in {base.label} {shape_text(ours)}"
    rows = f"{theirs[0]} values in a row, in {base.label} {ours[0]}"
    difference = rows if theirs[0] != ours[0] else shapes
    others = f"; {len(unfit) - 1} more do not fit either" if len(unfit) > 1 else ""
    sentence = f"{first.before.name} of {donor.label} does not fit: it has {difference}{others}."
    yield _refusal("width-differs", sentence, base, donor, [item.before.name for item in unfit])


def _of_groups(base: Parent, donor: Parent, replacements: Sequence[Replacement]) -> Iterator[Finding]:
    replaced = {replacement.before.name for replacement in replacements}
    groups = (group_of(replacement.before.place) for replacement in replacements if not replacement.by_slot)
    members: dict[Group, list[Part]] = {group: [] for group in groups if group is not None}
    for part in base.parts:
        group = group_of(part.place)
        if group in members:
            members[group].append(part)
    partial = {group: [part for part in parts if part.name not in replaced] for group, parts in members.items()}
    left = [part for parts in partial.values() for part in parts]
    if left:
        names = sorted({group[2] for group, parts in partial.items() if parts})
        blocks = sorted({group[1] for group, parts in partial.items() if parts})
        sentence = (
            f"{donor.label} would replace only part of {names_text(names)} in block {ranges_text(blocks)}, without "
            f"{names_text([part.name for part in left])}. They only work together: graft all, or name the slots."
        )
        yield _refusal("partial-group", sentence, base, donor, [part.name for part in left])


def _of_companions(base: Parent, donor: Parent, replacements: Sequence[Replacement]) -> Iterator[Finding]:
    """Yield findings on weights that would not work with the companions that they have in their model.

    `scale-apart` is a refusal, because the values of a weight are only right with its scale; `companion-apart` is
    information. A donor with only some organs lacks those that are equal to the base's.
    """
    replaced = {replacement.before.slot for replacement in replacements}
    for companion in COMPANIONS:
        weights = {
            slot: replacement
            for replacement in replacements
            if (slot := weight_slot(replacement.before.slot, companion) or replacement.before.slot) in base.by_slot
            and (slot in replaced) != (companion_slot(slot, companion) in replaced)
            and _differs(base, donor, companion_slot(slot, companion))
        }
        if weights:
            names = [base.by_slot[slot].name for slot in weights]
            kind = (Severity.REFUSE, "scale-apart") if companion.is_factor else (Severity.INFO, "companion-apart")
            advice = "Graft both, from a model that has both."
            if any(replacement.experts for replacement in weights.values()):
                advice = f"That of a stack, {companion.suffix!r}, is one for all its experts: graft the whole stack."
            sentence = (
                f"{names_text(names)} and the tensors {companion.suffix!r} of the same names belong together, but only "
                f"one of the two would come from {donor.label}. {advice}"
            )
            yield Finding(*kind, sentence, models=_labels(base, donor), organs=tuple(names))


def _differs(base: Parent, donor: Parent, slot: Slot) -> bool:
    """Return whether the two models have different tensors in `slot`, or only one has one there."""
    ours, theirs = base.by_slot.get(slot), donor.by_slot.get(slot)
    if theirs is None:
        return ours is not None and donor.complete
    return ours is None or ours.digest != theirs.digest


def _cell_of(place: Place) -> tuple[OrganType, Tower, int | None]:
    return place.type, place.tower, place.block


def _slot(place: Place) -> tuple[str, int | None, str]:
    return place.tower.value, place.block, place.slot


def _refusal(
    code: str, sentence: str, base: Parent, other: Parent | None, organs: Iterable[str] = (), field: str = ""
) -> Finding:
    return Finding(Severity.REFUSE, code, sentence, field, _labels(base, other), tuple(organs))


def _labels(base: Parent, donor: Parent | None) -> tuple[str, ...]:
    return (base.label,) if donor is None else (base.label, donor.label)


TYPE_KEY = "adapter.type"
ALPHA_KEY = "adapter.lora.alpha"
INVOCATION_KEY = "adapter.alora.invocation_tokens"
PARENTS_MAX = 64
"""Limit of the declared parents that are read."""


@dataclass(frozen=True, slots=True)
class FactorPair:
    """The two factors for one tensor of the base; None for a missing one."""

    target: str
    a: Part | None
    b: Part | None


def check_adapter(base: Parent, adapter: Parent) -> list[Finding]:
    """Return the findings on merging `adapter` into `base`.

    Refuses `not-an-adapter`, `adapter-not-lora`, `architecture-differs`, `adapter-misfit`, `non-finite-weights` and
    `dtype-refused` (values that cannot be decoded); warns of `adapter-base-differs`; reports `adapter-rank`.
    Licenses are not checked here.
    """
    pairs = factor_pairs(adapter)
    if not pairs and adapter.kind != FileKind.ADAPTER:
        return [_not_an_adapter(base, adapter)]
    findings = [*_of_header(base, adapter), *_of_pairs(base, adapter, pairs)]
    findings += [*_of_dtypes(base, adapter, pairs), *_of_base_name(base, adapter)]
    # The sum of such weights with an organ has no meaning.
    odd = odd_weights(adapter, adapter.parts, base=base, donor=adapter)
    findings += [msgspec.structs.replace(item, severity=Severity.REFUSE) for item in odd]
    ranks = sorted({pair.b.shape[0] for pair in pairs if pair.b is not None})
    if ranks:
        alpha = alpha_of(adapter)
        listed_ranks = names_text([str(rank) for rank in ranks])
        sentence = f"{adapter.label} changes {len(pairs)} tensors at rank {listed_ranks}, with an alpha of {alpha:g}."
        targets = [pair.target for pair in pairs]
        findings.append(
            Finding(Severity.INFO, "adapter-rank", sentence, ALPHA_KEY, _labels(base, adapter), tuple(targets))
        )
    return findings


def factor_pairs(adapter: Parent) -> list[FactorPair]:
    """Return the factors in `adapter` by the tensor that they change, in the order of the file."""
    parts: dict[str, dict[str, Part]] = {}
    for part in adapter.parts:
        target = adapted_tensor(part.name)
        if target is not None:
            parts.setdefault(target, {})[part.name.removeprefix(target)] = part
    first, second = LORA_SUFFIXES
    return [FactorPair(target, halves.get(first), halves.get(second)) for target, halves in parts.items()]


def alpha_of(adapter: Parent) -> float:
    """Return the alpha in the header; 0 if the header has no finite number. With 0, the factor is 1."""
    field = adapter.header.field(ALPHA_KEY)
    value = field.value if field is not None and field.type is not ValueType.BOOL else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0.0
    return float(value) if math.isfinite(value) else 0.0


def _not_an_adapter(base: Parent, adapter: Parent) -> Finding:
    sentence = f"{adapter.label} is not an adapter: its general.type is {_quoted(adapter.header.text('general.type'))}."
    return _refusal("not-an-adapter", sentence, base, adapter, (), "general.type")


def _of_header(base: Parent, adapter: Parent) -> Iterator[Finding]:
    if adapter.kind != FileKind.ADAPTER:
        yield _not_an_adapter(base, adapter)
    method = adapter.header.text(TYPE_KEY)
    if method != "lora":
        sentence = (
            f"{adapter.label} is registered but cannot be merged: its {TYPE_KEY} is {_quoted(method)}, not 'lora'."
        )
        yield _refusal("adapter-not-lora", sentence, base, adapter, (), TYPE_KEY)
    invocation = adapter.header.field(INVOCATION_KEY)
    if invocation is not None and invocation.is_array and invocation.count:
        sentence = (
            f"{adapter.label} is an activated LoRA ({INVOCATION_KEY}): it works only after these tokens, and a merged "
            "one would always work. Load it in the runtime, as an adapter of its base."
        )
        yield _refusal("adapter-not-lora", sentence, base, adapter, (), INVOCATION_KEY)
    ours, theirs = base.header.architecture, adapter.header.architecture
    if ours is None or ours != theirs:
        sentence = f"{adapter.label} is for the architecture {_quoted(theirs)}; {base.label} has {_quoted(ours)}."
        yield _refusal(ARCHITECTURE_DIFFERS, sentence, base, adapter, (), "general.architecture")
    field = adapter.header.field(ALPHA_KEY)
    if field is not None and isinstance(field.value, float) and not math.isfinite(field.value):
        sentence = f"{adapter.label} has an alpha of {field.value}: it must be a finite number."
        yield _refusal("adapter-misfit", sentence, base, adapter, (), ALPHA_KEY)


def _of_pairs(base: Parent, adapter: Parent, pairs: Sequence[FactorPair]) -> Iterator[Finding]:
    unpaired = [part.name for part in adapter.parts if adapted_tensor(part.name) is None]
    if unpaired or not pairs:
        problem = f"has {names_text(unpaired)}, which cannot be merged" if unpaired else "has no factors"
        sentence = f"{adapter.label} {problem}: an adapter consists of pairs of {' and '.join(LORA_SUFFIXES)}."
        yield _refusal("adapter-misfit", sentence, base, adapter, unpaired)
    halves = [pair.target for pair in pairs if pair.a is None or pair.b is None]
    if halves:
        yield _refusal(
            "adapter-misfit",
            f"{adapter.label} has only one of two factors for {names_text(halves)}.",
            base,
            adapter,
            halves,
        )
    if not any(part.place == OUTPUT_MATRIX for part in base.parts):
        tied = [pair.target for pair in pairs if place_of(pair.target) in (TOKEN_EMBEDDING, OUTPUT_MATRIX)]
        if tied:
            sentence = f"{adapter.label} changes {names_text(tied)}, but {base.label} uses one matrix for both."
            yield _refusal("adapter-misfit", sentence, base, adapter, tied)
    yield from _of_scaled_weights(base, adapter, pairs)
    absent = [pair.target for pair in pairs if pair.target not in base.by_name]
    if absent:
        sentence = f"{adapter.label} changes {names_text(absent)}, but {base.label} has no such tensor."
        yield _refusal("adapter-misfit", sentence, base, adapter, absent)
    reasons = {pair.target: reason for pair in pairs if (reason := _shape_reason(base, pair)) is not None}
    if reasons:
        first = next(iter(reasons))
        others = f" and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        sentence = f"{adapter.label} does not fit {base.label} at {first}{others}: {reasons[first]}."
        yield _refusal("adapter-misfit", sentence, base, adapter, list(reasons))


def _of_scaled_weights(base: Parent, adapter: Parent, pairs: Sequence[FactorPair]) -> Iterator[Finding]:
    """Yield a refusal for weights that `base` stores divided by a scale: what an adapter adds is not divided."""
    slots = {pair.target: base.by_name[pair.target].slot for pair in pairs if pair.target in base.by_name}
    for companion in (companion for companion in COMPANIONS if companion.is_factor):
        scaled = [name for name, slot in slots.items() if companion_slot(slot, companion) in base.by_slot]
        if scaled:
            sentence = (
                f"{base.label} stores {names_text(scaled)} divided by a scale ({companion.suffix}): no adapter can be "
                "merged there. Merge it into the model from which this one was quantised."
            )
            yield _refusal("adapter-misfit", sentence, base, adapter, scaled)


def _shape_reason(base: Parent, pair: FactorPair) -> str | None:
    target = base.by_name.get(pair.target)
    if target is None or pair.a is None or pair.b is None:
        return None
    return misfit(target.shape, pair.a.shape, pair.b.shape, target.place == TOKEN_EMBEDDING)


def _of_dtypes(base: Parent, adapter: Parent, pairs: Sequence[FactorPair]) -> Iterator[Finding]:
    targets = [base.by_name.get(pair.target) for pair in pairs]
    parts = [part for part in (*targets, *adapter.parts) if part is not None]
    undecodable = [part for part in parts if not can_dequantize(part.dtype)]
    if undecodable:
        dtypes = " and ".join(sorted({part.dtype.name for part in undecodable}))
        names = [part.name for part in undecodable]
        sentence = f"{names_text(names)} cannot be merged: values of {dtypes} cannot be decoded here."
        yield _refusal("dtype-refused", sentence, base, adapter, names)


def _of_base_name(base: Parent, adapter: Parent) -> Iterator[Finding]:
    """Yield a warning if the adapter names another base, and the base does not declare this model as a parent."""
    declared = _declared(adapter)
    own = {name for name in (base.header.text("general.name"), *_declared(base)) if name is not None}
    if declared and own and not any(_is_same(first, second) for first in declared for second in own):
        sentence = (
            f"{adapter.label} names {names_text(declared)} as its base; the name of {base.label} is "
            f"{base.header.text('general.name') or 'not stated'}, and it declares no such parent."
        )
        field = "general.base_model.0.name"
        yield Finding(Severity.WARN, "adapter-base-differs", sentence, field, _labels(base, adapter))


def _declared(parent: Parent) -> list[str]:
    names = (parent.header.text(f"general.base_model.{number}.name") for number in range(PARENTS_MAX))
    return [name for name in names if name]


def _is_same(first: str, second: str) -> bool:
    """Return whether two names mean the same model: the letters and digits of one contain those of the other."""
    letters = ("".join(filter(str.isalnum, name.casefold())) for name in (first, second))
    short, long = sorted(letters, key=len)
    return bool(short) and short in long


def _quoted(value: str | None) -> str:
    return "not stated" if value is None else repr(value[:80])


def additions_of(adapter: Parent, scale: float) -> dict[str, Addition]:
    """Return the additions of `adapter`, `scale` times, by the name of the tensor that each is added to.

    Incomplete pairs are left out: the findings refuse them.
    """
    alpha = alpha_of(adapter)
    return {
        pair.target: Addition(adapter, pair.a, pair.b, alpha, scale)
        for pair in factor_pairs(adapter)
        if pair.a is not None and pair.b is not None
    }
