"""Whether organs of one model work in another: all findings, and the candidates for a cell."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from sqlalchemy.orm import Session

from organs.registry.amounts import names_text, plural_text, weight_change_text
from organs.registry.anatomy import OrganType, Slot, Tower, type_name
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.queries.organs import cell_organs
from organs.registry.catalog.queries.relatives import likenesses, models_by_id
from organs.registry.compose.fitting import (
    check_adapter,
    is_dtype_refused,
    kept_organs,
    misfits,
    misplaced,
    odd_weights,
)
from organs.registry.compose.parents import (
    HeaderFacts,
    Library,
    Parent,
    Part,
    PerBlock,
    Replacement,
    Value,
    by_donor,
    facts_of,
    license_of_parents,
)
from organs.registry.compose.plan import PlannedPart, mean_of
from organs.registry.compose.screen import Change, screen
from organs.registry.entities.finding import ARCHITECTURE_DIFFERS, Finding, Severity, in_order
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.entities.plan import (
    AdapterChoice,
    Candidate,
    Candidates,
    CellOrgan,
    CellTotals,
    Compatibility,
    TypeCompatibility,
    TypeTotals,
)
from organs.registry.errors import TooCostly
from organs.registry.gguf.blocks import block_faults
from organs.registry.kinds import WEIGHT_KINDS, FileKind
from organs.registry.names import parse_model_name
from organs.registry.search.language import MODELS, parse_query
from organs.registry.search.models import search_models
from organs.registry.search.rows import search_organs
from organs.registry.similarity import (
    CLOSE,
    NOISE_LIMIT_OF_KIN,
    ComparableOrgan,
    Kinship,
    Similarity,
    chance,
    similarity,
)

KEYS_SHOWN = 6
"""Differing keys in a sentence."""
NUMBERS_SHOWN = 8
TEXT_SHOWN = 60
TOLERANCE = 1e-6
"""Relative tolerance; a float32 that was written as decimal text and read again differs by less."""

Values = Mapping[str, Value | None]


@dataclass(frozen=True, slots=True)
class Taken:
    """The types that are taken from a donor, and their blocks in the text tower."""

    types: frozenset[OrganType]
    blocks: frozenset[int]

    @classmethod
    def of(cls, replacements: Iterable[Replacement]) -> Taken:
        """Return the types and blocks of `replacements`, which are all from one donor."""
        places = [replacement.before.place for replacement in replacements]
        blocks = {place.block for place in places if place.block is not None and place.tower is Tower.TEXT}
        return cls(frozenset(place.type for place in places), frozenset(blocks))


@dataclass(frozen=True, slots=True)
class _DifferenceRule:
    """One kind of difference, and the types that it affects."""

    severity: Severity
    code: str
    types: frozenset[OrganType]
    """The rule applies if an organ of these types is taken; empty for all types."""
    values: Callable[[HeaderFacts], Values]
    """Return the values to compare, by key. None, a value that a model does not state, never counts as a difference."""
    sentence: str
    """A template for the finding, with {donor}, {base} and {figures}."""


def differences(base: HeaderFacts, donor: HeaderFacts, taken: Taken, labels: tuple[str, str]) -> list[Finding]:
    """Return one finding for each kind of difference that affects `taken`; `labels` are the base's and the donor's.

    If the architectures differ, nothing else is compared.
    """
    if base.architecture is None or base.architecture != donor.architecture:
        ours, theirs = (facts.architecture or "not stated" for facts in (base, donor))
        sentence = f"{theirs} and {ours} are different architectures: no organ of {labels[1]} fits {labels[0]}."
        if base.architecture is None or donor.architecture is None:
            names = f"{labels[1]}: {theirs}; {labels[0]}: {ours}"
            sentence = f"The architectures are not known ({names}); organs fit only within one architecture."
        return [Finding(Severity.REFUSE, ARCHITECTURE_DIFFERS, sentence, "general.architecture", labels)]
    rules = [rule for rule in _RULES if not rule.types or rule.types & taken.types]
    return [finding for rule in rules if (finding := _apply(rule, base, donor, taken, labels)) is not None]


def _apply(
    rule: _DifferenceRule, base: HeaderFacts, donor: HeaderFacts, taken: Taken, labels: tuple[str, str]
) -> Finding | None:
    ours, theirs = rule.values(base), rule.values(donor)
    figures = []
    for key in sorted(ours.keys() & theirs.keys()):
        own, other = (_in_blocks(value, taken.blocks) for value in (ours[key], theirs[key]))
        if own is not None and other is not None and not _equal(own, other):
            figures.append((key, f"{key} {_value_text(other)}, not {_value_text(own)}"))
    if not figures:
        return None
    more = [f"{len(figures) - KEYS_SHOWN} more"] if len(figures) > KEYS_SHOWN else []
    listed = "; ".join([text for _, text in figures[:KEYS_SHOWN]] + more)
    sentence = rule.sentence.format(base=labels[0], donor=labels[1], figures=listed)
    return Finding(rule.severity, rule.code, sentence, _field(figures[0][0], base), labels)


def _field(key: str, facts: HeaderFacts) -> str:
    """Return the complete metadata key of `key`; empty if `key` is not one."""
    if key.startswith(("general.", "tokenizer.")):
        return key
    return "" if " " in key else f"{facts.architecture}.{key}"


def _in_blocks(value: Value | None, blocks: frozenset[int]) -> Value | None:
    """Return the numbers of `blocks` in a value with one number for each block; all numbers if `blocks` has none.

    Equal numbers become one number. Other values are returned unchanged.
    """
    if not isinstance(value, tuple):
        return value
    numbers = [value[block] for block in sorted(blocks) if block < len(value)] or value
    return numbers[0] if len(set(numbers)) == 1 else tuple(numbers)


def _equal(first: Value, second: Value) -> bool:
    if isinstance(first, float) or isinstance(second, float):
        both = [value for value in (first, second) if isinstance(value, int | float)]
        return len(both) == 2 and math.isclose(*both, rel_tol=TOLERANCE)
    return first == second


def _value_text(value: Value) -> str:
    if isinstance(value, tuple):
        more = ["…"] if len(value) > NUMBERS_SHOWN else []
        return f"[{', '.join([str(number) for number in value[:NUMBERS_SHOWN]] + more)}]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)[:TEXT_SHOWN]


def _heads(facts: HeaderFacts) -> Values:
    return {
        **dict(facts.mixing),
        "attention.head_count": facts.head_count,
        "attention.head_count_kv": facts.head_count_kv,
        "attention.key_length": facts.key_length,
        "attention.value_length": facts.value_length,
    }


def _rope(facts: HeaderFacts) -> Values:
    return {"rope.dimension_count": facts.rope_dimensions, "rope.dimension_sections": facts.rope_sections}


def _windows(facts: HeaderFacts) -> Values:
    pattern: PerBlock | None = facts.window_pattern
    return {"attention.sliding_window": facts.window or 0, "attention.sliding_window_pattern": pattern}


def _rope_scaling(facts: HeaderFacts) -> Values:
    usual: dict[str, Value] = {"rope.scaling.type": "none", "rope.scaling.factor": 1.0}
    return {**usual, **dict(facts.rope_settings), "factors in a tensor": facts.rope_factors or "none"}


def _tied(facts: HeaderFacts) -> Values:
    return {"output matrix": None if facts.tied_embeddings is None else ("its own", "tied")[facts.tied_embeddings]}


def _tokenizer(facts: HeaderFacts) -> Values:
    return {
        "digest of tokens": facts.vocabulary[:12] if facts.vocabulary else "none",
        "number of tokens": facts.vocabulary_size,
        "tokenizer.ggml.model": facts.tokenizer_model,
        "tokenizer.ggml.pre": facts.tokenizer_pre,
    }


def _scale(facts: HeaderFacts) -> Values:
    known = {"block_count": facts.block_count, "embedding_length": facts.embedding_length}
    is_stated = all(value is not None for value in known.values())
    return known if is_stated else {**known, "general.size_label": facts.size_label}


_ANY: frozenset[OrganType] = frozenset()
_SKELETON, _ORGAN, _EMBED = (frozenset({kind}) for kind in (OrganType.SKELETON, OrganType.ORGAN, OrganType.EMBED))

_RULES = (
    _DifferenceRule(
        *(Severity.REFUSE, "heads-differ", _SKELETON, _heads),
        "The attention heads of {donor} and {base} differ, so the result would load but produce garbage: {figures}.",
    ),
    _DifferenceRule(
        *(Severity.REFUSE, "rope-differs", _SKELETON, _rope),
        "RoPE applies to other dimensions in {donor} than in {base}: {figures}.",
    ),
    _DifferenceRule(
        *(Severity.REFUSE, "window-differs", _SKELETON, _windows),
        "The attention windows of {donor} and {base} differ (0: no window): {figures}.",
    ),
    _DifferenceRule(
        *(Severity.REFUSE, "experts-differ", _ORGAN, lambda facts: dict(facts.experts)),
        "The experts of {donor} and {base} are arranged or selected differently: {figures}.",
    ),
    _DifferenceRule(
        *(Severity.REFUSE, "tied-embeddings", _EMBED, _tied),
        "Only one of {donor} and {base} has an output matrix of its own, so their embeddings cannot be exchanged: "
        "{figures}.",
    ),
    _DifferenceRule(
        *(Severity.WARN, "tokenizer-differs", _EMBED, _tokenizer),
        "{donor} numbers tokens differently from {base}, so its embeddings belong to other tokens: {figures}.",
    ),
    _DifferenceRule(
        *(Severity.WARN, "other-scale", _ANY, _scale),
        "{donor} is of the same family as {base}, but of another size: {figures}.",
    ),
    _DifferenceRule(
        *(Severity.WARN, "rope-base-differs", _ANY, lambda facts: {"rope.freq_base": facts.rope_base}),
        "{donor} was trained with another RoPE base frequency than {base}: {figures}.",
    ),
    _DifferenceRule(
        *(Severity.WARN, "rope-scaling-differs", _ANY, _rope_scaling),
        "{donor} was trained with another RoPE scaling than {base}; the chimera keeps that of {base}: {figures}.",
    ),
    _DifferenceRule(
        *(Severity.WARN, "epsilon-differs", _ANY, lambda facts: {"norm epsilon": facts.epsilon}),
        "{donor} was trained with another norm epsilon than {base}: {figures}.",
    ),
    _DifferenceRule(
        *(Severity.WARN, "context-differs", _ANY, lambda facts: {"context_length": facts.context_length}),
        "{donor} was trained for another context length than {base}; the chimera keeps that of {base}: {figures}.",
    ),
    _DifferenceRule(
        *(Severity.WARN, "activation-differs", _ORGAN, lambda facts: dict(facts.activations)),
        "The feed-forward of {donor} uses another activation than that of {base}: {figures}.",
    ),
)


_ORGANS = ("organ", "organs")
_EXPERTS = ("expert", "experts")


def changes(base: Parent, replacements: Sequence[Replacement]) -> Iterator[Finding]:
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
    parts = [f"{whole} of {len(base.parts)} organs"] if whole or not experts else []
    if experts:
        stacks = len({change.before.slot for change in experts})
        parts.append(f"{plural_text(len(experts), *_EXPERTS)} in {plural_text(stacks, 'stack', 'stacks')}")
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
        yield info("dtype-differs", f"{plural_text(len(names), *_ORGANS)} will change dtype: {listed}.", names)
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


def already_equal(base: Parent, donor: Parent, replacements: Sequence[Replacement]) -> Iterator[Finding]:
    """Yield `already-equal` if organs of the donor have the same bytes as the base's own."""
    names = [replacement.before.name for replacement in replacements if not replacement.changes]
    if names:
        organs = plural_text(len(names), *_ORGANS)
        sentence = f"{organs} of {donor.label} would change nothing: {base.label} has the same bytes."
        yield Finding(Severity.INFO, "already-equal", sentence, models=(base.label, donor.label), organs=tuple(names))


def same_model(base: Parent, donor: Parent) -> Iterator[Finding]:
    """Yield `same-model` if all organs of the two models are equal."""
    if base.by_slot.keys() == donor.by_slot.keys() and all(
        (part.dtype, part.shape, part.digest) == (other.dtype, other.shape, other.digest)
        for part, other in ((part, donor.by_slot[slot]) for slot, part in base.by_slot.items())
    ):
        sentence = f"{donor.label} is the same model as {base.label}: all organs are equal, so no graft changes it."
        yield Finding(Severity.INFO, "same-model", sentence, models=(base.label, donor.label))


_MATRICES = ("matrix", "matrices")


@dataclass(frozen=True, slots=True)
class _BlockSimilarity:
    """The matrices of one type in one block, compared with the matrices that they replace."""

    replacements: list[Replacement]
    similarity: Similarity

    @property
    def is_like_kin(self) -> bool:
        """Whether the matrices are similar enough, if the two models are related as a whole."""
        mean, count = self.similarity.mean, self.similarity.organ_count
        return mean is not None and mean >= chance(count, NOISE_LIMIT_OF_KIN)


def relatedness(base: Parent, donor: Parent, replacements: Sequence[Replacement]) -> Iterator[Finding]:
    """Yield findings on the lineage of the organs of one donor; nothing if no organ changes or fits.

    `unrelated-lineage` (warn): the matrices of a type in a block are no more similar than by chance. `lineage-unknown`
    (warn): they cannot be compared. `related-lineage` (info): the largest change of a block, with the types as its
    field. A few matrices of relatives may look like chance (0.33 for a single one): they are judged by the complete
    models. Vectors give no information about lineage: if only vectors are taken, the complete models are compared too.
    """
    changed = [replacement for replacement in replacements if replacement.fits and replacement.changes]
    labels = (base.label, donor.label)
    pair = f"{donor.label} and {base.label}"
    judged = _compare_by_block(changed)
    if changed and not judged:
        likeness = similarity(_organs(base), _organs(donor))
        if likeness.kinship is Kinship.UNRELATED:
            sentence = (
                f"{pair} are unrelated: {likeness.organ_count} matrices have a mean correlation of "
                f"{likeness.mean or 0.0:.2f}. Unrelated models have 0.00, fine-tunes {CLOSE} and more."
            )
            names = tuple(change.before.name for change in changed)
            yield Finding(Severity.WARN, "unrelated-lineage", sentence, models=labels, organs=names)
        return
    unknown = [item for item in judged if item.similarity.kinship is Kinship.INCOMPARABLE]
    unrelated = [item for item in judged if item.similarity.kinship is Kinship.UNRELATED]
    if unrelated and similarity(_organs(base), _organs(donor)).kinship in (Kinship.CLOSE, Kinship.KIN):
        unrelated = [item for item in unrelated if not item.is_like_kin]
    related = [item for item in judged if item not in unrelated and item not in unknown]
    if unrelated:
        values = [value for item in unrelated for value in item.similarity.by_organ.values()]
        sentence = (
            f"{pair} are unrelated: {plural_text(len(values), *_MATRICES)} and those that they would replace have a "
            f"mean correlation of {sum(values) / len(values):.2f}. Unrelated models have 0.00, fine-tunes {CLOSE} and "
            "more; grafts between unrelated models gave garbage."
        )
        yield Finding(Severity.WARN, "unrelated-lineage", sentence, models=labels, organs=_names(unrelated))
    if unknown:
        names = _names(unknown)
        experts = sum(bool(replacement.experts) for item in unknown for replacement in item.replacements)
        reasons = []
        if experts < len(names):
            matrices = plural_text(len(names) - experts, *_MATRICES)
            reasons.append(f"{matrices} that would be replaced have no fingerprints")
        if experts:
            reasons.append(
                f"{plural_text(experts, *_EXPERTS)} that would be replaced are not known one by one, because an older "
                "version registered their model (ingest its file again), or because they are too small or too many"
            )
        sentence = f"{pair} cannot be compared: {'; '.join(reasons)}."
        yield Finding(Severity.WARN, "lineage-unknown", sentence, models=labels, organs=names)
    if related:
        count = sum(item.similarity.organ_count for item in related)
        largest = max(related, key=lambda item: item.similarity.distance).similarity
        where = ", in the block that differs most" if len(related) > 1 else ""
        change = weight_change_text(largest.change.mean, largest.mean)
        sentence = (
            f"{pair} are related: the change of {plural_text(count, *_MATRICES)} is {change}{where} (2: unrelated)."
        )
        kinds = ", ".join(dict.fromkeys(item.replacements[0].before.place.type.value for item in related))
        yield Finding(Severity.INFO, "related-lineage", sentence, kinds, labels, _names(related))


def _names(judged: Sequence[_BlockSimilarity]) -> tuple[str, ...]:
    return tuple(replacement.before.name for item in judged for replacement in item.replacements)


def _compare_by_block(changed: Sequence[Replacement]) -> list[_BlockSimilarity]:
    """Return the changed matrices by type, tower and block, compared with the matrices that they replace."""
    groups: dict[tuple[str, str, int | None], list[Replacement]] = {}
    for change in changed:
        if change.before.organ.is_matrix:
            place = change.before.place
            groups.setdefault((place.type.value, place.tower.value, place.block), []).append(change)
    judged = []
    for group in groups.values():
        keys = [(*item.before.slot[:2], item.before.name) for item in group]  # experts of one stack have one slot
        before = {key: item.before.organ for key, item in zip(keys, group, strict=True)}
        after = {key: item.after.organ for key, item in zip(keys, group, strict=True)}
        judged.append(_BlockSimilarity(group, similarity(before, after)))
    return judged


def _organs(parent: Parent) -> dict[Slot, ComparableOrgan]:
    return {part.slot: part.organ for part in parent.parts}


__all__ = [
    "check_adapter",
    "check_compatibility",
    "check_pair",
    "check_replacements",
    "check_withdrawn",
    "fit_by_type",
]

TYPES = (OrganType.SKELETON, OrganType.ORGAN, OrganType.EMBED, OrganType.NORM)
"""The types that can be exchanged, in their order on pages and in tables."""
REASONS_SHOWN = 5


def check_compatibility(base: Parent, donor: Parent) -> Compatibility:
    """Return how much of each type of `donor` fits into `base`, with all findings.

    A refusal of one type does not affect the other types. An adapter has no types: either all of it fits, or nothing.
    """
    return Compatibility(
        base=base.label,
        donor=donor.label,
        types=() if donor.kind not in WEIGHT_KINDS else tuple(fit_by_type(base, donor)),
        findings=in_order(check_pair(base, donor)),
    )


def check_pair(base: Parent, donor: Parent) -> list[Finding]:
    """Return all findings on the two models: on the complete models first, then by type, then on licenses.

    A refusal of one type does not affect the other types: `fit_by_type` has the findings of each type. An adapter is
    checked by the rules of adapters.
    """
    if donor.kind not in (*WEIGHT_KINDS, FileKind.ADAPTER):
        sentence = f"{donor.label} is of the kind {donor.kind}, not a model: it has no organs to graft."
        return [Finding(Severity.REFUSE, "nothing-to-graft", sentence, models=(base.label, donor.label))]
    licenses = license_of_parents((base, donor)).findings
    of_both = [*check_withdrawn((base, donor)), *licenses]
    if donor.kind == FileKind.ADAPTER:
        return _without_repeats([*_of_base(base), *check_adapter(base, donor), *of_both])
    facts = facts_of(base), facts_of(donor)
    nothing = Taken(frozenset(), frozenset())
    findings = [*_of_base(base), *differences(*facts, nothing, (base.label, donor.label))]
    findings += same_model(base, donor)
    for fit in fit_by_type(base, donor, facts):
        findings += fit.findings
    return _without_repeats([*findings, *of_both])


def check_withdrawn(parents: Sequence[Parent]) -> list[Finding]:
    """Return a warning for each model in `parents` that was yanked, or was made from a yanked or removed model.

    A yanked model can still be found by its name, so that existing chimeras keep working. New chimeras should not use
    it.
    """
    return list(dict.fromkeys(finding for parent in parents for finding in parent.withdrawn))


def fit_by_type(
    base: Parent, donor: Parent, facts: tuple[HeaderFacts, HeaderFacts] | None = None
) -> list[TypeCompatibility]:
    """Return for each type of the base how many organs `donor` can replace, with the reasons why others do not fit.

    The types are those of the base, in the order skeleton, organ, embed, norm. `facts` has the facts of the base and of
    the donor; they are read if it is None.
    """
    ours, theirs = facts if facts is not None else (facts_of(base), facts_of(donor))
    fits = [_fit(base, donor, kind, (ours, theirs)) for kind in TYPES]
    return [fit for fit in fits if fit.total or fit.findings]


def check_replacements(base: Parent, replacements: Sequence[Replacement]) -> list[Finding]:
    """Return the findings on all replacements together: refusals, warnings and information, a few for each donor.

    Grafts without a replacement are not checked here. Licenses are checked by `license_of_parents`.
    """
    ours = facts_of(base)
    kept = _kept(base, replacements)
    findings = [*_of_base(base), *misplaced(base, replacements), *odd_weights(base, kept, base=base, donor=None)]
    for donor, taken in by_donor(replacements):
        findings += _of_donor(base, donor, taken, (ours, facts_of(donor)))
    return _without_repeats([*findings, *changes(base, replacements)])


def _kept(base: Parent, replacements: Sequence[Replacement]) -> list[Part]:
    """Return the base's own tensors, with the counts of NaN and infinite values without those of replaced experts."""
    replaced = {replacement.before.name for replacement in replacements if not replacement.experts}
    odd: Counter[str] = Counter()
    for replacement in replacements:
        odd[replacement.before.name] += sum(before.nonfinite or 0 for before, _ in replacement.pairs)
    kept = (part for part in base.parts if part.name not in replaced)
    return [replace(part, nonfinite=part.nonfinite - odd[part.name]) if part.nonfinite else part for part in kept]


def _of_base(base: Parent) -> Iterator[Finding]:
    """Yield the reasons why the base cannot be the base of a chimera."""
    if base.unassemblable:
        reasons = "; ".join(base.unassemblable[:REASONS_SHOWN])
        sentence = f"Loaders cannot open {base.label}, nor a chimera with its header: {reasons}."
        yield Finding(Severity.REFUSE, "not-loadable", sentence, models=(base.label,))
    if base.kind not in WEIGHT_KINDS:
        sentence = f"{base.label} is of the kind {base.kind}, not a model: choose another base."
        yield Finding(Severity.REFUSE, "not-loadable", sentence, models=(base.label,))
    foreign = sorted({part.dtype.name for part in base.parts if part.dtype.is_foreign})
    if foreign:
        sentence = (
            f"{base.label} has tensors of types that are only kept here ({names_text(foreign)}): "
            "it can be assembled as it is, but not changed."
        )
        yield Finding(Severity.REFUSE, "dtype-refused", sentence, models=(base.label,))
    if not base.complete:
        faults = "; ".join(block_faults(base.header, [part.place for part in base.parts]))
        why = f" ({faults})" if faults else ""
        sentence = f"{base.label} has only some organs of its model{why}: choose a complete model as the base."
        yield Finding(Severity.REFUSE, "not-complete", sentence, models=(base.label,))


def _of_donor(
    base: Parent, donor: Parent, replacements: Sequence[Replacement], facts: tuple[HeaderFacts, HeaderFacts]
) -> Iterator[Finding]:
    """Yield the findings on the replacements from one donor."""
    findings = differences(*facts, Taken.of(replacements), (base.label, donor.label))
    yield from findings
    if any(finding.code == ARCHITECTURE_DIFFERS for finding in findings):
        return
    yield from misfits(base, donor, replacements)
    organs = [organ for replacement in replacements for organ in replacement.organs]
    yield from odd_weights(donor, [organ.after for organ in organs], base=base, donor=donor)
    yield from relatedness(base, donor, organs)
    yield from already_equal(base, donor, organs)


def _fit(base: Parent, donor: Parent, kind: OrganType, facts: tuple[HeaderFacts, HeaderFacts]) -> TypeCompatibility:
    places = [part for part in base.parts if part.place.type is kind]
    pairs = [(part, donor.by_slot.get(part.slot)) for part in places]
    taken = [Replacement(before, after, donor) for before, after in pairs if after is not None]
    of_models = differences(*facts, Taken(frozenset(), frozenset()), (base.label, donor.label))
    of_base = [item for item in _of_base(base) if item.code == "dtype-refused"]
    findings = [item for item in _of_donor(base, donor, taken, facts) if item not in of_models] if taken else []
    if not any(item.code == ARCHITECTURE_DIFFERS for item in of_models):
        findings += kept_organs(base, donor, [part.place for part in places])
    # If single organs are refused, the others still fit. Any other refusal affects the whole type.
    reasons = [*of_models, *findings]
    refused = {item.code for item in reasons if item.severity is Severity.REFUSE} - _ORGAN_REFUSALS
    fitting = 0 if refused or of_base else sum(item.fits and not is_dtype_refused(item) for item in taken)
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
        findings=in_order(_without_repeats(findings)),
    )


_ORGAN_REFUSALS = {"width-differs", "dtype-refused", "partial-group", "scale-apart", "slot-absent"}
"""Codes of refusals of single organs."""


def _without_repeats(findings: Iterable[Finding]) -> list[Finding]:
    return list(dict.fromkeys(findings))


CANDIDATES_MAX = 12
"""Models in the list of one cell."""
THETA = "-theta"
EXAMINED_MAX = 600
"""Organs that a search for candidates examines, the best first. It is also the limit of organs that fit."""
ADAPTERS_EXAMINED_MAX = 12
ALIKE = "-alike"
"""The order by likeness. All other orders are those of a search for organs."""
COMPARED_MAX = 48
"""Models that are compared for one cell: relatives of the base, then the first models of a search."""
NEWEST_ADAPTERS = 50
"""The newest adapters of all architectures, among which those of the base's architecture are searched."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The organs of one type in one block of a tower; `block` is None outside the blocks."""

    type: str
    block: int | None
    tower: str = "text"

    @classmethod
    def of(cls, part: Part) -> Cell:
        """Return the cell of `part`."""
        return cls(part.place.type.value, part.place.block, part.place.tower.value)

    def __str__(self) -> str:
        block = "none" if self.block is None else str(self.block)
        return f"{self.type}:{block}" + (f":{self.tower}" if self.tower != "text" else "")


def cells_of(parts: Iterable[PlannedPart]) -> tuple[CellTotals, ...]:
    """Return the organs of a plan by cell."""
    cells: dict[Cell, list[PlannedPart]] = {}
    for part in parts:
        cells.setdefault(Cell.of(part.before), []).append(part)
    return tuple(_cell(cell, own) for cell, own in cells.items())


def types_of(parts: Iterable[PlannedPart]) -> tuple[TypeTotals, ...]:
    """Return the organs of a plan by type, over all blocks."""
    types: dict[str, list[PlannedPart]] = {}
    for part in parts:
        types.setdefault(part.before.place.type.value, []).append(part)
    order = [kind.value for kind in OrganType]
    return tuple(TypeTotals(type=kind, **_totals(types[kind])) for kind in sorted(types, key=order.index))


def candidates_for(session: Session, base: Parent, cell: Cell, order: str) -> Candidates:
    """Return the models with organs for the cell of `base`, the best first by `order` (ALIKE, `-theta`).

    Raises BadQuery for an unknown order.
    """
    own = {part.place.slot: part for part in base.parts if Cell.of(part) == cell}
    block = "none" if cell.block is None else cell.block
    query = f"fits:{base.label} type:{cell.type} block:{block} tower:{cell.tower}"
    page = search_organs(session, parse_query(f"{query} sort:{THETA if order == ALIKE else order}"), EXAMINED_MAX)
    alike = _relatives(session, base, query) if order == ALIKE else []
    names = list(dict.fromkeys([*alike, *(organ.model for organ in page.items)]))
    examined = names[: COMPARED_MAX if order == ALIKE else CANDIDATES_MAX]
    ids = [model_by_name(session, parse_model_name(name)).id for name in examined]
    offered: dict[str, list[tuple[PlacedOrgan, bytes | None]]] = {name: [] for name in examined}
    for organ, fingerprint in cell_organs(session, ids, cell.type, cell.tower, cell.block) if ids else ():
        offered[organ.model].append((organ, fingerprint))
    if order == ALIKE:
        examined.sort(key=lambda name: _likeness(own, offered[name]).distance)
    selected = examined[:CANDIDATES_MAX]
    fitting: set[tuple[str, str]] = set()
    if selected:
        fits = search_organs(session, parse_query(f"{query} model:{','.join(selected)}"), EXAMINED_MAX)
        fitting = {(organ.model, organ.slot) for organ in fits.items}
    return Candidates(
        cell=str(cell),
        type=cell.type,
        block=cell.block,
        tower=cell.tower,
        slots=tuple(own),
        query=query,
        items=tuple(_candidate(own, name, offered[name], fitting) for name in selected),
        more=page.next is not None or len(names) > len(selected),
    )


def adapters_for(session: Session, base: Parent, library: Library) -> tuple[AdapterChoice, ...]:
    """Return the newest adapters that can be merged into `base`, each with its findings.

    Only adapters of the base's architecture are examined, as many as the budget of `library` allows. Raises StoreError.
    """
    newest = search_models(session, parse_query("kind:adapter", MODELS), NEWEST_ADAPTERS).items
    same = [model.name for model in newest if model.architecture == base.header.architecture]
    choices = []
    for name in same[:ADAPTERS_EXAMINED_MAX]:
        try:
            adapter = library.parent(name)
        except TooCostly:
            break
        findings = check_adapter(base, adapter)
        if not any(finding.severity is Severity.REFUSE for finding in findings):
            choices.append(AdapterChoice(model=name, findings=in_order(findings)))
    return tuple(choices)


def _cell(cell: Cell, parts: Sequence[PlannedPart]) -> CellTotals:
    donors = [part.donor.label for part in parts if part.donor is not None]
    adapters = [adapter.label for part in parts for adapter in part.adapters]
    return CellTotals(
        cell=str(cell),
        type=cell.type,
        block=cell.block,
        tower=cell.tower,
        slots=tuple(part.before.place.slot for part in parts),
        models=tuple(dict.fromkeys([*donors, *adapters])),
        purified=sum(part.computation is not None and part.computation.method is not None for part in parts),
        **_totals(parts),
    )


def _totals(parts: Sequence[PlannedPart]) -> dict[str, Any]:
    """Return the members of Totals."""
    to_compute = sum(part.computation is not None for part in parts)
    taken = mean_of([part.source.theta for part in parts])
    return {
        "organs": len(parts),
        "changed": sum(bool(part.acts) for part in parts),
        "to_compute": to_compute,
        "theta_before": mean_of([part.before.theta for part in parts]),
        "theta": None if to_compute else taken,
        "theta_taken": taken,
        "size_bytes_before": sum(part.before.size_bytes for part in parts),
        "size_bytes": sum(part.spec.size_bytes for part in parts),
    }


def _relatives(session: Session, base: Parent, query: str) -> list[str]:
    """Return the known relatives of the base whose organs the query finds, the most similar first."""
    alike = likenesses(session, base.model_id or 0)
    models = models_by_id(session, heapq.nlargest(COMPARED_MAX, alike, key=lambda item: alike[item]))
    if not models:
        return []
    names = {model.full_name: alike[model_id] for model_id, model in models.items()}
    page = search_organs(session, parse_query(f"{query} model:{','.join(names)}"), EXAMINED_MAX)
    return sorted({organ.model for organ in page.items}, key=lambda name: (-names[name], name))


def _candidate(
    own: dict[str, Part], model: str, organs: Sequence[tuple[PlacedOrgan, bytes | None]], fitting: set[tuple[str, str]]
) -> Candidate:
    """Return the organs of one model for the places `own` of the base, by slot."""
    placed = {organ.slot: organ for organ, _ in organs if organ.slot in own}
    equal = {
        slot
        for slot, organ in placed.items()
        if (own[slot].digest, own[slot].dtype.name, own[slot].shape) == (organ.digest, organ.dtype, organ.shape)
    }
    fits = {slot for slot in placed if (model, slot) in fitting}
    likeness = _likeness(own, organs)
    return Candidate(
        model=model,
        license=next((organ.license for organ, _ in organs), None),
        fitting=len(fits),
        equal=len(equal),
        total=len(own),
        whole=fits | equal == own.keys(),
        theta=mean_of([organ.theta for organ in placed.values()]),
        spectral_signal=mean_of([organ.spectral_signal for organ in placed.values()]),
        likeness=likeness.mean,
        change=likeness.change.mean,
        size_bytes=sum(organ.size_bytes for organ in placed.values()),
        organs=tuple(
            CellOrgan(name=item.name, slot=item.slot, digest=item.digest, dtype=item.dtype, theta=item.theta)
            for item in placed.values()
        ),
    )


def _likeness(own: dict[str, Part], organs: Sequence[tuple[PlacedOrgan, bytes | None]]) -> Similarity:
    """Return the similarity of the organs of a model to the base's `own` organs at the same places."""
    theirs: dict[Slot, ComparableOrgan] = {
        ("text", None, organ.slot): ComparableOrgan("", organ.shape, organ.dtype, fingerprint, organ.digest)
        for organ, fingerprint in organs
        if organ.slot in own
    }
    return similarity({slot: own[slot[2]].organ for slot in theirs}, theirs)
