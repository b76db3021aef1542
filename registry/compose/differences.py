"""Differences of the headers of two models that matter for organs of one in the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from organs.registry.anatomy import OUTPUT_MATRIX, TOKEN_EMBEDDING, OrganType, Tower
from organs.registry.compose.parents import Parent, Replacement
from organs.registry.digest import Digest
from organs.registry.entities.finding import ARCHITECTURE_DIFFERS, Finding, Severity
from organs.registry.gguf import ByteSource, Field, ValueType, read_array
from organs.registry.gguf.blocks import stated_blocks
from organs.registry.gguf.header import range_digest
from organs.registry.gguf.tokenizer import TOKENS_KEY, VOCABULARY_MAX_BYTES
from organs.registry.recent import RecentValues

CACHED_MAX = 256
"""Vocabulary digests in the cache; each takes some hundred bytes."""
PER_BLOCK_MAX = 4096
"""Elements of an array with one number for each block; the deepest models have some hundred blocks."""
TEXT_MAX = 200
"""Characters of a text; longer texts are not names and count as missing."""
ROPE_BASE_DEFAULT = 10_000.0
"""The default of llama.cpp if a header does not state it."""
KEYS_SHOWN = 6
"""Differing keys in a sentence."""
NUMBERS_SHOWN = 8
TEXT_SHOWN = 60
TOLERANCE = 1e-6
"""Relative tolerance; a float32 that was written as decimal text and read again differs by less."""

Value: TypeAlias = int | float | bool | str | tuple[int, ...]
"""A tuple has one number for each block. An array of equal numbers becomes one number."""
Facts: TypeAlias = Mapping[str, Mapping[str, Value | None]]
"""The values of a header that are compared, by the code of their difference and by key.

None, a value that the header does not state, never counts as a difference.
"""

_T = TypeVar("_T")

_ANY: frozenset[OrganType] = frozenset()
_SKELETON, _ORGAN, _EMBED = (frozenset({kind}) for kind in (OrganType.SKELETON, OrganType.ORGAN, OrganType.EMBED))
_RULES: tuple[tuple[Severity, str, frozenset[OrganType], str], ...] = (
    (
        *(Severity.REFUSE, "heads-differ", _SKELETON),
        "The attention heads of {donor} and {base} differ, so the result would load but produce garbage: {figures}.",
    ),
    (
        *(Severity.REFUSE, "rope-differs", _SKELETON),
        "RoPE applies to other dimensions in {donor} than in {base}: {figures}.",
    ),
    (
        *(Severity.REFUSE, "window-differs", _SKELETON),
        "The attention windows of {donor} and {base} differ (0: no window): {figures}.",
    ),
    (
        *(Severity.REFUSE, "experts-differ", _ORGAN),
        "The experts of {donor} and {base} are arranged or selected differently: {figures}.",
    ),
    (
        *(Severity.REFUSE, "tied-embeddings", _EMBED),
        (
            "Only one of {donor} and {base} has an output matrix of its own, so their embeddings cannot be exchanged: "
            "{figures}."
        ),
    ),
    (
        *(Severity.WARN, "tokenizer-differs", _EMBED),
        "{donor} numbers tokens differently from {base}, so its embeddings belong to other tokens: {figures}.",
    ),
    (
        *(Severity.WARN, "other-scale", _ANY),
        "{donor} is of the same family as {base}, but of another size: {figures}.",
    ),
    (
        *(Severity.WARN, "rope-base-differs", _ANY),
        "{donor} was trained with another RoPE base frequency than {base}: {figures}.",
    ),
    (
        *(Severity.WARN, "rope-scaling-differs", _ANY),
        "{donor} was trained with another RoPE scaling than {base}; the chimera keeps that of {base}: {figures}.",
    ),
    (
        *(Severity.WARN, "epsilon-differs", _ANY),
        "{donor} was trained with another norm epsilon than {base}: {figures}.",
    ),
    (
        *(Severity.WARN, "context-differs", _ANY),
        "{donor} was trained for another context length than {base}; the chimera keeps that of {base}: {figures}.",
    ),
    (
        *(Severity.WARN, "activation-differs", _ORGAN),
        "The feed-forward of {donor} uses another activation than that of {base}: {figures}.",
    ),
)
"""For each kind of difference: its severity, its code, the types that it affects (empty for all), its sentence."""


def differences(
    base: Parent, donor: Parent, facts: tuple[Facts, Facts], replacements: Sequence[Replacement]
) -> list[Finding]:
    """Return one finding for each kind of difference that affects `replacements`, which are all from `donor`.

    `facts` are the base's and the donor's. Without replacements, only differences that affect all types are returned.
    If the architectures differ, nothing else is compared.
    """
    labels = (base.label, donor.label)
    ours, theirs = (own[ARCHITECTURE_DIFFERS]["general.architecture"] for own in facts)
    if ours is None or theirs is None:
        names = f"{donor.label}: {theirs or 'not stated'}; {base.label}: {ours or 'not stated'}"
        sentence = f"The architectures are not known ({names}); tensors fit only within one architecture."
        return [Finding(Severity.REFUSE, ARCHITECTURE_DIFFERS, sentence, "general.architecture", labels)]
    if ours != theirs:
        sentence = f"{theirs} and {ours} are different architectures: no tensor of {donor.label} fits {base.label}."
        return [Finding(Severity.REFUSE, ARCHITECTURE_DIFFERS, sentence, "general.architecture", labels)]
    places = [replacement.before.place for replacement in replacements]
    types = {place.type for place in places}
    blocks = sorted({place.block for place in places if place.block is not None and place.tower is Tower.TEXT})
    findings = []
    for severity, code, affected, sentence in _RULES:
        own, other = (values[code] for values in facts)
        figures = []
        for key in sorted(own.keys() & other.keys()) if not affected or affected & types else ():
            first, second = _in_blocks(own[key], blocks), _in_blocks(other[key], blocks)
            if first is not None and second is not None and not _equal(first, second):
                figures.append((key, f"{key} {_value_text(second)}, not {_value_text(first)}"))
        if figures:
            more = [f"{len(figures) - KEYS_SHOWN} more"] if len(figures) > KEYS_SHOWN else []
            listed = "; ".join([text for _, text in figures[:KEYS_SHOWN]] + more)
            sentence = sentence.format(base=base.label, donor=donor.label, figures=listed)
            findings.append(Finding(severity, code, sentence, _field(figures[0][0], ours), labels))
    return findings


def _in_blocks(value: Value | None, blocks: Sequence[int]) -> Value | None:
    """Return the numbers of `blocks` in a value with one number for each block; all numbers if `blocks` has none.

    Equal numbers become one number. Other values are returned unchanged.
    """
    if not isinstance(value, tuple):
        return value
    numbers = [value[block] for block in blocks if block < len(value)] or value
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


def _field(key: str, architecture: Value) -> str:
    """Return the complete metadata key of `key`; empty if `key` is not one."""
    if key.startswith(("general.", "tokenizer.")):
        return key
    return "" if " " in key else f"{architecture}.{key}"


_ROPE_NAMED = ("rope.dimension_count", "rope.dimension_sections", "rope.freq_base")
_ATTENTION_NAMED = frozenset(
    f"attention.{name}"
    for name in (
        "head_count",
        "head_count_kv",
        "key_length",
        "value_length",
        "sliding_window",
        "sliding_window_pattern",
    )
)
_MIXING_PREFIXES = ("attention.", "ssm.", "wkv.", "kda.", "shortconv.")
_EXPERT_PREFIXES = ("expert", "moe_", "interleave_moe", "leading_dense_block_count")
_EXPERT_COUNTS = ("expert_count", "expert_used_count", "expert_shared_count")
_WHOLE_TYPES = frozenset(
    {
        *(ValueType.UINT8, ValueType.UINT16, ValueType.UINT32, ValueType.UINT64),
        *(ValueType.INT8, ValueType.INT16, ValueType.INT32, ValueType.INT64),
    }
)


def facts_of(parent: Parent) -> Facts:
    """Return the facts in the header of `parent`, with the defaults of loaders; raises the errors of its source.

    The vocabulary is read once for each header.
    """
    header, places = parent.header, {part.place for part in parent.parts}
    architecture = _bounded(header.architecture)
    prefix = f"{architecture}."
    fields = [field for field in header.fields if architecture and field.key.startswith(prefix)]
    values = {field.key.removeprefix(prefix): _value(field, parent.source) for field in fields}
    if parent.former is not None:
        values = {key: _arranged(value, stated_blocks(header), parent.former) for key, value in values.items()}

    def settings(is_wanted: Callable[[str], bool]) -> dict[str, Value | None]:
        return {key: value for key, value in values.items() if value is not None and is_wanted(key)}

    width = _whole(values.get("embedding_length"))
    heads = _per_block(values.get("attention.head_count"))
    key_value_heads = _per_block(values.get("attention.head_count_kv"))
    head_length = width // heads if width is not None and isinstance(heads, int) and heads else None
    key_length = _either(_whole(values.get("attention.key_length")), head_length)
    mixing = settings(
        lambda key: (
            (key.startswith(_MIXING_PREFIXES) or "softcapping" in key)
            and not (key in _ATTENTION_NAMED or key.endswith("epsilon"))
        )
    )
    scale: dict[str, Value | None] = {"block_count": _whole(values.get("block_count")), "embedding_length": width}
    if None in scale.values():
        scale["general.size_label"] = _bounded(header.text("general.size_label"))
    factors = sorted(
        f"{part.place.slot} {part.digest}"
        for part in parent.parts
        if part.place.block is None and part.place.tower is Tower.TEXT and part.place.type is OrganType.SKELETON
    )
    no_experts: dict[str, Value | None] = dict.fromkeys(_EXPERT_COUNTS, 0)
    tokens = header.field(TOKENS_KEY)
    vocabulary = vocabulary_digest(parent.source, parent.header_digest, tokens)
    token_count = tokens.count if tokens and tokens.is_array else None
    rms_epsilon = _real(values.get("attention.layer_norm_rms_epsilon"))
    output = "tied" if OUTPUT_MATRIX not in places else "its own"
    return {
        ARCHITECTURE_DIFFERS: {"general.architecture": architecture},
        "heads-differ": {
            **mixing,
            "attention.head_count": heads,
            "attention.head_count_kv": heads if key_value_heads is None else key_value_heads,
            "attention.key_length": key_length,
            "attention.value_length": _either(_whole(values.get("attention.value_length")), head_length),
        },
        "rope-differs": {
            "rope.dimension_count": _either(_whole(values.get("rope.dimension_count")), key_length),
            "rope.dimension_sections": _per_block(values.get("rope.dimension_sections")),
        },
        "window-differs": {
            "attention.sliding_window": _per_block(values.get("attention.sliding_window")) or 0,
            "attention.sliding_window_pattern": _per_block(values.get("attention.sliding_window_pattern")),
        },
        "experts-differ": no_experts | settings(lambda key: key.startswith(_EXPERT_PREFIXES)),
        "tied-embeddings": {"output matrix": output if TOKEN_EMBEDDING in places else None},
        "tokenizer-differs": {
            "digest of tokens": vocabulary[:12] if vocabulary else "none",
            "number of tokens": _either(token_count, _whole(values.get("vocab_size"))),
            "tokenizer.ggml.model": _bounded(header.text("tokenizer.ggml.model")),
            "tokenizer.ggml.pre": _bounded(header.text("tokenizer.ggml.pre")),
        },
        "other-scale": scale,
        "rope-base-differs": {"rope.freq_base": _real(values.get("rope.freq_base")) or ROPE_BASE_DEFAULT},
        "rope-scaling-differs": {
            "rope.scaling.type": "none",
            "rope.scaling.factor": 1.0,
            **settings(lambda key: key.startswith("rope.") and key not in _ROPE_NAMED),
            "factors in a tensor": ", ".join(factors) or "none",
        },
        "epsilon-differs": {
            "norm epsilon": _either(rms_epsilon, _real(values.get("attention.layer_norm_epsilon"))),
        },
        "context-differs": {"context_length": _whole(values.get("context_length"))},
        "activation-differs": settings(lambda key: "activation" in key or key.endswith("_act")),
    }


def _value(field: Field, source: ByteSource) -> Value | None:
    """Return the value of a field; None for texts and arrays that are too large, and for other types."""
    if field.is_array:
        is_whole = field.element_type in _WHOLE_TYPES or field.element_type is ValueType.BOOL
        if not is_whole or not 1 <= field.count <= PER_BLOCK_MAX:
            return None
        return tuple(int(number) for number in read_array(source, field))
    value = field.value
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    # A boolean that is neither 0 nor 1 is no value.
    is_boolean = field.type is ValueType.BOOL
    return value if isinstance(value, int) and isinstance(value, bool) == is_boolean else None


def _arranged(value: Value | None, count: int | None, former: Sequence[int]) -> Value | None:
    """Return a value with one number for each of `count` blocks in their new order; other values are unchanged."""
    if not isinstance(value, tuple) or len(value) != count:
        return value
    return tuple(value[number] for number in former if number < count)


def _whole(value: Value | None) -> int | None:
    """Return a non-negative integer, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _real(value: Value | None) -> float | None:
    """Return a number above 0 as a float, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if value > 0 else None


def _per_block(value: Value | None) -> int | tuple[int, ...] | None:
    """Return a non-negative integer, or an array, as one number if all are equal; else None."""
    if isinstance(value, tuple):
        return value[0] if len(set(value)) == 1 else value
    return _whole(value)


def _bounded(text: str | None) -> str | None:
    return text if text and len(text) <= TEXT_MAX else None


def _either(first: _T | None, second: _T | None) -> _T | None:
    return second if first is None else first


_vocabularies = RecentValues[tuple[Digest, int, int], Digest](CACHED_MAX)


def vocabulary_digest(source: ByteSource, header_digest: Digest, tokens: Field | None) -> Digest | None:
    """Return the SHA-256 of the array `tokens` with its lengths; None without an array, or above 64 MiB.

    A vocabulary is read once for each header: `header_digest` also covers the bytes of the vocabulary.
    """
    if tokens is None or tokens.element_type is not ValueType.STRING or tokens.size_bytes > VOCABULARY_MAX_BYTES:
        return None
    offset, size_bytes = tokens.offset, tokens.size_bytes
    key = (header_digest, offset, size_bytes)
    return _vocabularies.get(key, lambda: range_digest(source, offset, size_bytes))
