"""Whether organs of one model work in another: places, shapes, dtypes, headers and lineage."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from organs.registry.amounts import names_text, plural_text, ranges_text, weight_change_text
from organs.registry.anatomy import (
    COMPANIONS,
    OUTPUT_MATRIX,
    Group,
    OrganType,
    Slot,
    Tower,
    companion_slot,
    group_of,
    type_name,
    weight_slot,
)
from organs.registry.catalog.vocabulary import MATRIX_DTYPES_REFUSED, VECTOR_DTYPES
from organs.registry.compose.adapters import check_adapter
from organs.registry.compose.differences import Facts, differences, facts_of
from organs.registry.compose.parents import (
    Parent,
    Part,
    Replacement,
    by_donor,
    effective_shape,
    license_of_parents,
    odd_weights,
    refusal,
    shape_text,
)
from organs.registry.compose.plan import mean_of
from organs.registry.compose.screen import Change, screen
from organs.registry.entities.finding import ARCHITECTURE_DIFFERS, Finding, Severity, in_order
from organs.registry.entities.plan import Compatibility, TypeCompatibility
from organs.registry.gguf.blocks import block_faults
from organs.registry.kinds import WEIGHT_KINDS, FileKind
from organs.registry.similarity import CLOSE, NOISE_LIMIT_OF_KIN, Kinship, Similarity, chance, similarity

TYPES = (OrganType.SKELETON, OrganType.ORGAN, OrganType.EMBED, OrganType.NORM)
"""The types that can be exchanged, in their order on pages and in tables."""
REASONS_SHOWN = 5
_ORGAN_REFUSALS = {"width-differs", "dtype-refused", "partial-group", "scale-apart", "slot-absent"}
"""Codes of refusals of single organs."""


def check_compatibility(base: Parent, donor: Parent) -> Compatibility:
    """Return how much of each type of `donor` fits into `base`, with all findings.

    The types are those of the base, in the order of TYPES. A refusal of one type does not affect the other types. An
    adapter has no types: either all of it fits, or nothing.
    """
    types: tuple[TypeCompatibility, ...] = ()
    if donor.kind in WEIGHT_KINDS:
        facts = facts_of(base), facts_of(donor)
        of_models = differences(base, donor, facts, ())
        fits = [_fit(base, donor, kind, facts, of_models) for kind in TYPES]
        types = tuple(fit for fit in fits if fit.total or fit.findings)
        findings = [*_of_base(base), *of_models]
        if _content(base) == _content(donor):
            sentence = (
                f"{donor.label} is the same model as {base.label}: all tensors are equal, so no graft changes it."
            )
            findings.append(Finding(Severity.INFO, "same-model", sentence, models=(base.label, donor.label)))
        findings += [finding for fit in types for finding in fit.findings]
    elif donor.kind == FileKind.ADAPTER:
        findings = [*_of_base(base), *check_adapter(base, donor)]
    else:
        sentence = f"{donor.label} is of the kind {donor.kind}, not a model: it has no tensors to graft."
        findings = [refusal("nothing-to-graft", sentence, (base, donor))]
        return Compatibility(base=base.label, donor=donor.label, types=(), findings=in_order(findings))
    findings += [*check_withdrawn((base, donor)), *license_of_parents((base, donor)).findings]
    return Compatibility(base=base.label, donor=donor.label, types=types, findings=in_order(dict.fromkeys(findings)))


def _content(model: Parent) -> dict[Slot, tuple[object, ...]]:
    return {part.slot: (part.dtype, part.shape, part.digest) for part in model.parts}


def _fit(
    base: Parent, donor: Parent, kind: OrganType, facts: tuple[Facts, Facts], of_models: Sequence[Finding]
) -> TypeCompatibility:
    """Return how many organs of one type `donor` can replace, with the reasons why others do not fit.

    `of_models` are the differences of the models that affect all types; they are not repeated.
    """
    places = [part for part in base.parts if part.place.type is kind]
    pairs = [(part, donor.by_slot.get(part.slot)) for part in places]
    taken = [Replacement(before, after, donor) for before, after in pairs if after is not None]
    findings = [item for item in _of_donor(base, donor, taken, facts) if item not in of_models] if taken else []
    lacking = [before for before, after in pairs if after is None]
    if lacking and not any(item.code == ARCHITECTURE_DIFFERS for item in of_models):
        slots = names_text(sorted({part.place.slot for part in lacking}))
        lacking_places = plural_text(len(lacking), "place", "places")
        sentence = f"{donor.label} has no tensors for {lacking_places} ({slots}): those of {base.label} stay."
        names = tuple(part.name for part in lacking)
        labels = (base.label, donor.label)
        findings.append(Finding(Severity.INFO, "kept-organs", sentence, models=labels, organs=names))
    # If single organs are refused, the others still fit. Any other refusal affects the whole type.
    of_base = [item for item in _of_base(base) if item.code == "dtype-refused"]
    refused = {item.code for item in (*of_models, *findings) if item.severity is Severity.REFUSE} - _ORGAN_REFUSALS
    fitting = 0 if refused or of_base else sum(item.fits and not _is_dtype_refused(item) for item in taken)
    is_refused = any(finding.severity is Severity.REFUSE for finding in findings)
    changes_made = [Change(item.before, item.after, item.after) for item in taken if item.fits and item.changes]
    elements = sum(part.spec.elements for part in base.parts)
    screened = screen(changes_made, elements) if fitting and changes_made else None
    return TypeCompatibility(
        type=kind.value,
        fitting=fitting,
        total=len(places),
        refused=is_refused or not fitting,
        screen=None if screened is None else msgspec.structs.replace(screened, groups=()),
        findings=in_order(dict.fromkeys(findings)),
    )


def check_replacements(
    base: Parent, replacements: Sequence[Replacement], blended: Sequence[Replacement] = ()
) -> list[Finding]:
    """Return the findings on all replacements together: refusals, warnings and information, a few for each donor.

    `blended` are organs that are blended with those of the base.

    Grafts without a replacement are not checked here. Licenses are checked by `license_of_parents`.
    """
    findings = list(_of_base(base))
    befores = [replacement.before for replacement in replacements]
    foreign = [before.name for before in befores if base.by_name.get(before.name) != before]
    if foreign:
        sentence = f"{base.label} has no {names_text(foreign)}: there is nothing to replace."
        findings.append(refusal("no-such-place", sentence, (base,), foreign))
    # The plan has refused grafts of the same experts of a stack.
    counts = Counter(replacement.before.name for replacement in replacements if not replacement.experts)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        sentence = f"Several grafts replace {names_text(twice)}: keep one of them."
        findings.append(refusal("place-twice", sentence, (base,), twice))
    # The base's own tensors, with the counts of NaN and infinite values without those of replaced experts.
    odd: Counter[str] = Counter()
    for replacement in replacements:
        odd[replacement.before.name] += sum(before.nonfinite or 0 for before, _ in replacement.pairs)
    kept = [part for part in base.parts if part.name not in counts]
    findings += odd_weights(base, (part for part in kept if (part.nonfinite or 0) > odd[part.name]), (base,))
    findings += check_donors(base, replacements)
    findings += check_donors(base, blended, is_blended=True)
    return list(dict.fromkeys([*findings, *_changes(base, replacements)]))


def check_donors(base: Parent, replacements: Sequence[Replacement], *, is_blended: bool = False) -> Iterator[Finding]:
    """Yield the findings on the replacements of each donor, or if `is_blended`, on organs that are blended instead."""
    ours = facts_of(base)
    for donor, taken in by_donor(replacements):
        yield from _of_donor(base, donor, taken, (ours, facts_of(donor)), is_blended=is_blended)


def check_withdrawn(parents: Sequence[Parent]) -> list[Finding]:
    """Return a warning for each model in `parents` that was yanked, or was made from a yanked or removed model.

    A yanked model can still be found by its name, so that existing chimeras keep working. New chimeras should not use
    it.
    """
    return list(dict.fromkeys(finding for parent in parents for finding in parent.withdrawn))


def _of_base(base: Parent) -> Iterator[Finding]:
    """Yield the reasons why the base cannot be the base of a chimera."""
    if base.unassemblable:
        reasons = "; ".join(base.unassemblable[:REASONS_SHOWN])
        sentence = f"Loaders cannot open {base.label}, nor a chimera with its header: {reasons}."
        yield refusal("not-loadable", sentence, (base,))
    if base.kind not in WEIGHT_KINDS:
        sentence = f"{base.label} is of the kind {base.kind}, not a model: choose another base."
        yield refusal("not-loadable", sentence, (base,))
    foreign = sorted({part.dtype.name for part in base.parts if part.dtype.is_foreign})
    if foreign:
        sentence = (
            f"{base.label} has tensors of types that are only kept here ({names_text(foreign)}): "
            "it can be assembled as it is, but not changed."
        )
        yield refusal("dtype-refused", sentence, (base,))
    if not base.complete:
        found = block_faults(base.header, [part.place for part in base.parts])
        faults = "; ".join(fault.sentence for fault in found)
        why = f" ({faults})" if faults else ""
        sentence = f"{base.label} has only some tensors of its model{why}: choose a complete model as the base."
        yield refusal("not-complete", sentence, (base,))


def _of_donor(
    base: Parent,
    donor: Parent,
    replacements: Sequence[Replacement],
    facts: tuple[Facts, Facts],
    *,
    is_blended: bool = False,
) -> Iterator[Finding]:
    """Yield the findings on the replacements from one donor; if `is_blended`, on organs that are blended instead."""
    findings = differences(base, donor, facts, replacements)
    yield from findings
    if any(finding.code == ARCHITECTURE_DIFFERS for finding in findings):
        return
    yield from _of_shapes(base, donor, replacements)
    yield from _of_factors(base, donor, replacements) if is_blended else _misfits(base, donor, replacements)
    organs = [organ for replacement in replacements for organ in replacement.organs]
    yield from odd_weights(donor, [organ.after for organ in organs], (base, donor))
    yield from _relatedness(base, donor, organs, is_blended=is_blended)
    equal = tuple(organ.before.name for organ in organs if not organ.changes)
    if equal and not is_blended:
        sentence = (
            f"{plural_text(len(equal), 'tensor', 'tensors')} of {donor.label} would change nothing: "
            f"{base.label} has the same bytes."
        )
        yield Finding(Severity.INFO, "already-equal", sentence, models=(base.label, donor.label), organs=equal)


def _of_shapes(base: Parent, donor: Parent, replacements: Sequence[Replacement]) -> Iterator[Finding]:
    """Yield a refusal of organs of the donor that have other shapes."""
    unfit = [replacement for replacement in replacements if not replacement.fits]
    if unfit:
        first = unfit[0]
        ours, theirs = first.before.shape, first.after.shape
        difference = f"{shape_text(theirs)}, in {base.label} {shape_text(ours)}"
        if theirs[0] != ours[0]:
            difference = f"{theirs[0]} values in a row, in {base.label} {ours[0]}"
        others = f"; {len(unfit) - 1} more do not fit either" if len(unfit) > 1 else ""
        sentence = f"{first.before.name} of {donor.label} does not fit: it has {difference}{others}."
        yield refusal("width-differs", sentence, (base, donor), [item.before.name for item in unfit])


def _of_factors(base: Parent, donor: Parent, blended: Sequence[Replacement]) -> Iterator[Finding]:
    """Yield a refusal of a blend of weights that the two models store divided by different factors.

    Both models must have the same bytes as the factor, and it is not blended.
    """
    for companion in (companion for companion in COMPANIONS if companion.is_factor):
        apart = [
            item.before.name
            for item in blended
            if weight_slot(item.before.slot, companion) in base.by_slot
            or _differs(base, donor, companion_slot(item.before.slot, companion))
        ]
        if apart:
            sentence = (
                f"{names_text(apart)} and the tensors {companion.suffix!r} of the same names belong together, and a "
                f"blend of {base.label} and {donor.label} would not be that of their products: blend the models from "
                "which they were quantised."
            )
            yield refusal("scale-apart", sentence, (base, donor), apart)


def _misfits(base: Parent, donor: Parent, replacements: Sequence[Replacement]) -> Iterator[Finding]:
    """Return why grafted organs do not work in the base, one finding for each kind of reason; shapes are checked."""
    models = (base, donor)
    foreign = [item.after for item in replacements if item.after.dtype.is_foreign]
    if foreign:
        kept, types = [part.name for part in foreign], sorted({part.dtype.name for part in foreign})
        sentence = (
            f"{donor.label} stores {names_text(kept)} as {names_text(types)}. Such bytes are only kept here: "
            "they cannot be grafted."
        )
        yield refusal("dtype-refused", sentence, models, kept)
    refused = [item for item in replacements if _is_dtype_refused(item) and not item.after.dtype.is_foreign]
    if refused:
        dtypes = " and ".join(sorted({item.after.dtype.name for item in refused}))
        names = [item.after.name for item in refused]
        sentence = (
            f"{donor.label} stores {names_text(names)} as {dtypes}; llama.cpp crashes with this type at these places."
        )
        yield refusal("dtype-refused", sentence, models, names)
    other = [item for item in replacements if item.experts and item.fits and item.before.dtype != item.after.dtype]
    if other:
        names, first = [item.before.name for item in other], other[0]
        sentence = (
            f"{donor.label} stores {names_text(names)} as {first.after.dtype.name}, {base.label} as "
            f"{first.before.dtype.name}: single experts need the same tensor type. Graft the whole stack instead."
        )
        yield refusal("experts-refused", sentence, models, names)
    yield from _of_groups(base, donor, replacements)
    yield from _of_companions(base, donor, replacements)
    # Organs that belong to a graft and have no place in the base, except an output matrix.
    places = [replacement.before.place for replacement in replacements if not replacement.by_slot]
    touched = {(place.type, place.tower, place.block) for place in places}
    surplus = [
        part
        for part in donor.parts
        if part.place != OUTPUT_MATRIX
        and (part.place.type, part.place.tower, part.place.block) in touched
        and part.slot not in base.by_slot
    ]
    if surplus:
        slots = sorted({part.place.slot for part in surplus})
        at = plural_text(len(surplus), "place", "places")
        sentence = f"{donor.label} has {names_text(slots)} in {at}; {base.label} has no such slot there."
        yield refusal("slot-absent", sentence, models, [part.name for part in surplus])


def _is_dtype_refused(replacement: Replacement) -> bool:
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
        yield refusal("partial-group", sentence, (base, donor), [part.name for part in left])


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
            yield Finding(*kind, sentence, models=(base.label, donor.label), organs=tuple(names))


def _differs(base: Parent, donor: Parent, slot: Slot) -> bool:
    """Return whether the two models have different tensors in `slot`, or only one has one there."""
    ours, theirs = base.by_slot.get(slot), donor.by_slot.get(slot)
    if theirs is None:
        return ours is not None and donor.complete
    return ours is None or ours.digest != theirs.digest


def _changes(base: Parent, replacements: Sequence[Replacement]) -> Iterator[Finding]:
    """Yield information about all replacements together; nothing without replacements.

    The codes are `changed-share`, `size-changes`, `theta-changes` (one for each type) and `dtype-differs`.
    """
    changed = [organ for replacement in replacements for organ in replacement.organs if organ.changes]
    if not replacements:
        return

    def info(code: str, sentence: str, organs: Iterable[str] = (), field: str = "") -> Finding:
        return Finding(Severity.INFO, code, sentence, field, (base.label,), tuple(organs))

    elements = math.fsum(part.spec.elements for part in base.parts)
    share = math.fsum(change.before.spec.elements for change in changed) / elements if elements else 0.0
    experts = [change for change in changed if change.experts]
    whole = len(changed) - len(experts)
    parts = [f"{whole} of {len(base.parts)} tensors"] if whole or not experts else []
    if experts:
        stacks = len({change.before.slot for change in experts})
        parts.append(f"{plural_text(len(experts), 'expert', 'experts')} in {plural_text(stacks, 'stack', 'stacks')}")
    sentence = f"{' and '.join(parts)} of {base.label} will be replaced, {share:.1%} of its parameters."
    yield info("changed-share", sentence, [change.before.name for change in changed])
    growth = sum(change.after.size_bytes - change.before.size_bytes for change in changed)
    if growth:
        total = sum(part.size_bytes for part in base.parts)
        sentence = f"The tensors will take {total + growth:,} bytes; those of {base.label} take {total:,}."
        yield info("size-changes", sentence)
    dtypes = Counter((change.before.dtype.name, change.after.dtype.name) for change in changed)
    converted = {pair: count for pair, count in dtypes.items() if pair[0] != pair[1]}
    if converted:
        listed = ", ".join(f"{count} from {ours} to {theirs}" for (ours, theirs), count in sorted(converted.items()))
        names = [change.before.name for change in changed if change.before.dtype != change.after.dtype]
        yield info(
            "dtype-differs", f"{plural_text(len(names), 'tensor', 'tensors')} will change dtype: {listed}.", names
        )
    after = {change.before.name: change.after for change in changed if not change.experts}
    for kind in OrganType:
        names = [change.before.name for change in changed if change.before.place.type is kind]
        own = [part for part in base.parts if part.place.type is kind] if names else []
        ours, theirs = (
            mean_of(part.theta for part in parts) for parts in (own, [after.get(part.name, part) for part in own])
        )
        if ours is not None and theirs is not None and f"{ours:.1f}" != f"{theirs:.1f}":
            sentence = f"The mean θ of {type_name(kind)} will be {theirs:.1f}°; in {base.label} it is {ours:.1f}°."
            yield info("theta-changes", sentence, names, kind.value)


def _relatedness(
    base: Parent, donor: Parent, replacements: Sequence[Replacement], *, is_blended: bool
) -> Iterator[Finding]:
    """Yield findings on the lineage of the organs of one donor; nothing if no organ changes or fits.

    `unrelated-lineage` (warn): the matrices of a type in a block are no more similar than by chance. `lineage-unknown`
    (warn): they cannot be compared. `related-lineage` (info): the largest change of a block, with the types as its
    field. A few matrices of relatives may look like chance (0.33 for a single one): they are judged by the complete
    models. Vectors give no information about lineage: if only vectors are taken, the complete models are compared too.
    """
    changed = [replacement for replacement in replacements if replacement.fits and replacement.changes]
    labels = (base.label, donor.label)
    pair = f"{donor.label} and {base.label}"
    act, done = ("be blended with", "blended") if is_blended else ("replace", "replaced")
    experience = "" if is_blended else "; grafts between unrelated models gave garbage"
    groups: dict[tuple[OrganType, Tower, int | None], list[Replacement]] = {}
    for change in (change for change in changed if change.before.organ.is_matrix):
        place = change.before.place
        groups.setdefault((place.type, place.tower, place.block), []).append(change)
    compared = [(group, _similarity(group)) for group in groups.values()]

    def of_models() -> Similarity:
        ours, theirs = ({part.slot: part.organ for part in parent.parts} for parent in (base, donor))
        return similarity(ours, theirs)

    if changed and not compared:
        likeness = of_models()
        if likeness.kinship is Kinship.UNRELATED:
            sentence = (
                f"{pair} are unrelated: {likeness.organ_count} matrices have a mean correlation of "
                f"{likeness.mean or 0.0:.2f}. Unrelated models have 0.00, fine-tunes {CLOSE} and more."
            )
            yield Finding(Severity.WARN, "unrelated-lineage", sentence, models=labels, organs=_names(changed))
        return
    unknown = [change for group, found in compared if found.kinship is Kinship.INCOMPARABLE for change in group]
    unrelated = [(group, found) for group, found in compared if found.kinship is Kinship.UNRELATED]
    if unrelated and of_models().kinship in (Kinship.CLOSE, Kinship.KIN):
        limits = [chance(found.organ_count, NOISE_LIMIT_OF_KIN) for _, found in unrelated]
        unrelated = [
            (group, found)
            for (group, found), limit in zip(unrelated, limits, strict=True)
            if found.mean is None or found.mean < limit
        ]
    related = [one for one in compared if one not in unrelated and one[1].kinship is not Kinship.INCOMPARABLE]
    if unrelated:
        values = [value for _, found in unrelated for value in found.by_organ.values()]
        sentence = (
            f"{pair} are unrelated: {plural_text(len(values), 'matrix', 'matrices')} and those that they would {act} "
            f"have a mean correlation of {sum(values) / len(values):.2f}. Unrelated models have 0.00, fine-tunes "
            f"{CLOSE} and more{experience}."
        )
        names = _names(change for group, _ in unrelated for change in group)
        yield Finding(Severity.WARN, "unrelated-lineage", sentence, models=labels, organs=names)
    if unknown:
        experts = sum(bool(change.experts) for change in unknown)
        reasons = []
        if experts < len(unknown):
            matrices = plural_text(len(unknown) - experts, "matrix", "matrices")
            reasons.append(f"{matrices} that would be {done} have no fingerprints")
        if experts:
            reasons.append(
                f"{plural_text(experts, 'expert', 'experts')} that would be replaced are not known one by one, because "
                "an older version registered their model (ingest its file again), or because they are too small or too "
                "many"
            )
        sentence = f"{pair} cannot be compared: {'; '.join(reasons)}."
        yield Finding(Severity.WARN, "lineage-unknown", sentence, models=labels, organs=_names(unknown))
    if related:
        matrices = plural_text(sum(found.organ_count for _, found in related), "matrix", "matrices")
        largest = max((found for _, found in related), key=lambda found: found.distance)
        where = ", in the block that differs most" if len(related) > 1 else ""
        change_text = weight_change_text(largest.change.mean, largest.mean)
        sentence = f"{pair} are related: the change of {matrices} is {change_text}{where} (2: unrelated)."
        kinds = ", ".join(dict.fromkeys(group[0].before.place.type.value for group, _ in related))
        names = _names(change for group, _ in related for change in group)
        yield Finding(Severity.INFO, "related-lineage", sentence, kinds, labels, names)


def _similarity(group: Sequence[Replacement]) -> Similarity:
    """Return the similarity of the matrices of one type in a block to those that they replace."""
    keys = [(*item.before.slot[:2], item.before.name) for item in group]  # experts of one stack have one slot
    before = {key: item.before.organ for key, item in zip(keys, group, strict=True)}
    return similarity(before, {key: item.after.organ for key, item in zip(keys, group, strict=True)})


def _names(changed: Iterable[Replacement]) -> tuple[str, ...]:
    return tuple(change.before.name for change in changed)
