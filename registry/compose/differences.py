"""Where two headers differ in a way that matters for the organs that are taken from one for the other.

Shapes tell only half: attention with other heads but equal widths loads, and babbles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from organs.registry.anatomy import OrganType, Tower
from organs.registry.compose.facts import Facts, PerBlock, Value
from organs.registry.compose.finding import Finding, Severity
from organs.registry.compose.replacement import Replacement

SHOWN_MAX = 6
"""Differing keys that a sentence names."""
NUMBERS_SHOWN = 8
TEXT_SHOWN = 60
TOLERANCE = 1e-6
"""Relative; a float32 that was written as decimal text and read again is closer."""

Values = Mapping[str, Value | None]


@dataclass(frozen=True, slots=True)
class Taken:
    """What is taken from a donor: of which types, and in which blocks of the text tower."""

    types: frozenset[OrganType]
    blocks: frozenset[int]

    @classmethod
    def of(cls, replacements: Iterable[Replacement]) -> Taken:
        """What `replacements`, all of one donor, take."""
        places = [one.before.place for one in replacements]
        blocks = {place.block for place in places if place.block is not None and place.tower is Tower.TEXT}
        return cls(frozenset(place.type for place in places), frozenset(blocks))


@dataclass(frozen=True, slots=True)
class _Rule:
    """One kind of difference, and whom it concerns."""

    severity: Severity
    code: str
    types: frozenset[OrganType]
    """It counts only where one of these is taken; empty for whatever is taken."""
    values: Callable[[Facts], Values]
    """What is compared, by key; what one of the two does not say (None) is no difference."""
    sentence: str
    """With {donor}, {base} and {figures}."""


def differences(base: Facts, donor: Facts, taken: Taken, labels: tuple[str, str]) -> list[Finding]:
    """One finding for each kind of difference that concerns what is `taken`; `labels` are the base's and the donor's.

    Models of two architectures are not compared any further.
    """
    if base.architecture is None or base.architecture != donor.architecture:
        return [_of_architectures(base, donor, labels)]
    rules = [rule for rule in _RULES if not rule.types or rule.types & taken.types]
    return [finding for rule in rules if (finding := _applied(rule, base, donor, taken, labels)) is not None]


def _of_architectures(base: Facts, donor: Facts, labels: tuple[str, str]) -> Finding:
    ours, theirs = (facts.architecture or "no architecture that it names" for facts in (base, donor))
    sentence = f"{labels[1]} is of {theirs}, {labels[0]} of {ours}: no organ of one has its place in the other."
    return Finding(Severity.REFUSE, "architecture-differs", sentence, "general.architecture", labels[0], labels[1])


def _applied(rule: _Rule, base: Facts, donor: Facts, taken: Taken, labels: tuple[str, str]) -> Finding | None:
    ours, theirs = rule.values(base), rule.values(donor)
    figures = []
    for key in sorted(ours.keys() & theirs.keys()):
        one, other = (_in_blocks(value, taken.blocks) for value in (ours[key], theirs[key]))
        if one is not None and other is not None and not _equal(one, other):
            figures.append((key, f"{key} {_shown(other)}, not {_shown(one)}"))
    if not figures:
        return None
    more = [f"{len(figures) - SHOWN_MAX} more"] if len(figures) > SHOWN_MAX else []
    listed = "; ".join([text for _, text in figures[:SHOWN_MAX]] + more)
    sentence = rule.sentence.format(base=labels[0], donor=labels[1], figures=listed)
    return Finding(rule.severity, rule.code, sentence, _field(figures[0][0], base), labels[0], labels[1])


def _field(key: str, facts: Facts) -> str:
    """The metadata key that `key` stands for; empty where it stands for none."""
    if key.startswith(("general.", "tokenizer.")):
        return key
    return "" if " " in key else f"{facts.architecture}.{key}"


def _in_blocks(value: Value | None, blocks: frozenset[int]) -> Value | None:
    """Of numbers that stand one a block, those of `blocks`; all where none of them is meant."""
    if not isinstance(value, tuple):
        return value
    numbers = [value[block] for block in sorted(blocks) if block < len(value)] or value
    return numbers[0] if len(set(numbers)) == 1 else tuple(numbers)


def _equal(first: Value, second: Value) -> bool:
    if isinstance(first, float) or isinstance(second, float):
        both = [value for value in (first, second) if isinstance(value, int | float)]
        return len(both) == 2 and math.isclose(*both, rel_tol=TOLERANCE)
    return first == second


def _shown(value: Value) -> str:
    if isinstance(value, tuple):
        more = ["…"] if len(value) > NUMBERS_SHOWN else []
        return f"[{', '.join([str(number) for number in value[:NUMBERS_SHOWN]] + more)}]"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)[:TEXT_SHOWN]


def _heads(facts: Facts) -> Values:
    return {
        **dict(facts.mixing),
        "attention.head_count": facts.head_count,
        "attention.head_count_kv": facts.head_count_kv,
        "attention.key_length": facts.key_length,
        "attention.value_length": facts.value_length,
    }


def _rope(facts: Facts) -> Values:
    return {"rope.dimension_count": facts.rope_dimensions, "rope.dimension_sections": facts.rope_sections}


def _windows(facts: Facts) -> Values:
    pattern: PerBlock | None = facts.window_pattern
    return {"attention.sliding_window": facts.window or 0, "attention.sliding_window_pattern": pattern}


def _rope_scaling(facts: Facts) -> Values:
    usual: dict[str, Value] = {"rope.scaling.type": "none", "rope.scaling.factor": 1.0}
    return {**usual, **dict(facts.rope_settings), "factors in a tensor": facts.rope_factors or "none"}


def _tied(facts: Facts) -> Values:
    return {"output matrix": None if facts.tied_embeddings is None else ("its own", "tied")[facts.tied_embeddings]}


def _tokenizer(facts: Facts) -> Values:
    return {
        "digest of tokens": facts.vocabulary[:12] if facts.vocabulary else "none",
        "number of tokens": facts.vocabulary_size,
        "tokenizer.ggml.model": facts.tokenizer_model,
        "tokenizer.ggml.pre": facts.tokenizer_pre,
    }


def _scale(facts: Facts) -> Values:
    known = {"block_count": facts.block_count, "embedding_length": facts.embedding_length}
    said = all(value is not None for value in known.values())
    return known if said else {**known, "general.size_label": facts.size_label}


_ANY: frozenset[OrganType] = frozenset()
_SKELETON, _ORGAN, _EMBED = (frozenset({kind}) for kind in (OrganType.SKELETON, OrganType.ORGAN, OrganType.EMBED))

_RULES = (
    _Rule(
        *(Severity.REFUSE, "heads-differ", _SKELETON, _heads),
        "Attention is divided otherwise in {donor} than in {base}, so it would load and babble: {figures}.",
    ),
    _Rule(
        *(Severity.REFUSE, "rope-differs", _SKELETON, _rope),
        "Positions are turned into other parts of attention in {donor} than in {base}: {figures}.",
    ),
    _Rule(
        *(Severity.REFUSE, "window-differs", _SKELETON, _windows),
        "Attention looks back over another window in {donor} than in {base}, 0 for all: {figures}.",
    ),
    _Rule(
        *(Severity.REFUSE, "experts-differ", _ORGAN, lambda facts: dict(facts.experts)),
        "Experts are laid out or chosen otherwise in {donor} than in {base}: {figures}.",
    ),
    _Rule(
        *(Severity.REFUSE, "tied-embeddings", _EMBED, _tied),
        "The way back to tokens is made otherwise in {donor} than in {base}, so their embeddings cannot be exchanged: "
        "{figures}.",
    ),
    _Rule(
        *(Severity.WARN, "tokenizer-differs", _EMBED, _tokenizer),
        "Embeddings go by the numbers of tokens, and {donor} numbers them otherwise than {base}: {figures}.",
    ),
    _Rule(
        *(Severity.WARN, "other-scale", _ANY, _scale),
        "{donor} is of the family of {base} but of another size: {figures}.",
    ),
    _Rule(
        *(Severity.WARN, "rope-base-differs", _ANY, lambda facts: {"rope.freq_base": facts.rope_base}),
        "{donor} was trained with positions that turn at another speed than those of {base}: {figures}.",
    ),
    _Rule(
        *(Severity.WARN, "rope-scaling-differs", _ANY, _rope_scaling),
        "{donor} stretches positions otherwise than {base}, whose way the chimera will have: {figures}.",
    ),
    _Rule(
        *(Severity.WARN, "epsilon-differs", _ANY, lambda facts: {"norm epsilon": facts.epsilon}),
        "{donor} was trained with norms of another epsilon than {base}: {figures}.",
    ),
    _Rule(
        *(Severity.WARN, "context-differs", _ANY, lambda facts: {"context_length": facts.context_length}),
        "{donor} was made for another context length than {base}, whose length the chimera will have: {figures}.",
    ),
    _Rule(
        *(Severity.WARN, "activation-differs", _ORGAN, lambda facts: dict(facts.activations)),
        "The feed-forward organs of {donor} work with another activation than those of {base}: {figures}.",
    ),
)
