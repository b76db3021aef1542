"""What a GGUF header says that decides whether organs of one model work in another.

Headers come from outside: a value of the wrong type, out of range or not finite counts as absent. Where loaders have a
default, the default stands here, so that a header that says it and one that leaves it out are equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from organs.registry.anatomy import OUTPUT_MATRIX, TOKEN_EMBEDDING, OrganType, Tower
from organs.registry.compose.parent import Parent
from organs.registry.compose.vocabulary import vocabulary_digest
from organs.registry.digest import Digest
from organs.registry.gguf import ByteSource, Field, Header, ValueType, read_array
from organs.registry.gguf.tokenizer import TOKENS_KEY

PER_BLOCK_MAX = 4096
"""Elements of an array that has one number a block; the deepest models have some hundreds of blocks."""
TEXT_MAX = 200
"""Longer texts are no names of anything; they count as absent."""
ROPE_BASE_DEFAULT = 10_000.0
"""What llama.cpp takes where a header says nothing."""

PerBlock: TypeAlias = int | tuple[int, ...]
"""One number for all blocks, or one for each; an array of equal numbers is one number."""
Value: TypeAlias = int | float | bool | str | tuple[int, ...]
Setting: TypeAlias = tuple[str, Value]
"""A key without the architecture before it, and its value."""

_T = TypeVar("_T")

_WHOLE_TYPES = frozenset(
    {
        *(ValueType.UINT8, ValueType.UINT16, ValueType.UINT32, ValueType.UINT64),
        *(ValueType.INT8, ValueType.INT16, ValueType.INT32, ValueType.INT64),
    }
)
_REAL_TYPES = frozenset((ValueType.FLOAT32, ValueType.FLOAT64))
_ROPE_NAMED = frozenset(("rope.dimension_count", "rope.dimension_sections", "rope.freq_base"))
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
_EXPERT_COUNTS = ("expert_count", "expert_used_count", "expert_shared_count")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is compared. None is what the header does not say."""

    architecture: str | None
    block_count: int | None
    embedding_length: int | None
    feed_forward_length: PerBlock | None
    context_length: int | None
    head_count: PerBlock | None
    head_count_kv: PerBlock | None
    """As many as `head_count` where it is not said."""
    key_length: int | None
    """The embedding length by the heads where it is not said."""
    value_length: int | None
    rope_dimensions: int | None
    """The key length where it is not said."""
    rope_sections: PerBlock | None
    rope_base: float
    rope_settings: tuple[Setting, ...]
    """All else under `rope.`: the scaling to longer contexts."""
    rope_factors: str | None
    """Which tensors outside the blocks stretch positions, by their digests."""
    window: PerBlock | None
    """The sliding window of attention; None without one."""
    window_pattern: PerBlock | None
    mixing: tuple[Setting, ...]
    """All else that mixing tokens goes by: `attention.*` without epsilons, `ssm.*`, `wkv.*` ..."""
    epsilon: float | None
    """Of the norms."""
    experts: tuple[Setting, ...]
    """The counts (0 where they are not said), and all else that says how experts are laid out and chosen."""
    activations: tuple[Setting, ...]
    vocabulary: Digest | None
    """Of the tokens as they are stored."""
    vocabulary_size: int | None
    tokenizer_model: str | None
    tokenizer_pre: str | None
    tied_embeddings: bool | None
    """Whether the token embedding is the output matrix, too; None for what has no token embedding."""
    licence: str | None
    size_label: str | None
    """How large the model is called: `7B`."""


def facts_of(parent: Parent) -> Facts:
    """The facts of `parent`. Reads the vocabulary, once for each header; raises what the source does."""
    said = _Said(parent.header, parent.source)
    width = said.whole("embedding_length")
    heads = said.per_block("attention.head_count")
    key_value_heads = said.per_block("attention.head_count_kv")
    head_length = width // heads if width is not None and isinstance(heads, int) and heads else None
    key_length = _either(said.whole("attention.key_length"), head_length)
    tokens = parent.header.field(TOKENS_KEY)
    return Facts(
        architecture=said.architecture,
        block_count=said.whole("block_count"),
        embedding_length=width,
        feed_forward_length=said.per_block("feed_forward_length"),
        context_length=said.whole("context_length"),
        head_count=heads,
        head_count_kv=heads if key_value_heads is None else key_value_heads,
        key_length=key_length,
        value_length=_either(said.whole("attention.value_length"), head_length),
        rope_dimensions=_either(said.whole("rope.dimension_count"), key_length),
        rope_sections=said.per_block("rope.dimension_sections"),
        rope_base=said.real("rope.freq_base") or ROPE_BASE_DEFAULT,
        rope_settings=said.settings(lambda key: key.startswith("rope.") and key not in _ROPE_NAMED),
        rope_factors=_rope_factors(parent),
        window=said.per_block("attention.sliding_window") or None,
        window_pattern=said.per_block("attention.sliding_window_pattern"),
        mixing=said.settings(_is_mixing),
        epsilon=_either(said.real("attention.layer_norm_rms_epsilon"), said.real("attention.layer_norm_epsilon")),
        experts=said.settings(_is_expert, dict.fromkeys(_EXPERT_COUNTS, 0)),
        activations=said.settings(lambda key: "activation" in key or key.endswith("_act")),
        vocabulary=vocabulary_digest(parent.source, parent.header_digest, tokens),
        vocabulary_size=_either(tokens.count if tokens and tokens.is_array else None, said.whole("vocab_size")),
        tokenizer_model=_text(parent.header, "tokenizer.ggml.model"),
        tokenizer_pre=_text(parent.header, "tokenizer.ggml.pre"),
        tied_embeddings=_is_tied(parent),
        licence=_bounded(parent.license),
        size_label=_text(parent.header, "general.size_label"),
    )


class _Said:
    """What a header says under its own architecture's keys."""

    def __init__(self, header: Header, source: ByteSource) -> None:
        self.architecture = _text(header, "general.architecture")
        prefix = f"{self.architecture or ''}."
        self._source = source
        self._fields = {
            field.key.removeprefix(prefix): field
            for field in header.fields
            if self.architecture and field.key.startswith(prefix)
        }

    def whole(self, key: str) -> int | None:
        """A whole number that is not negative."""
        value = self._value(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

    def real(self, key: str) -> float | None:
        """A number above 0; a whole number will do."""
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if value > 0 else None

    def per_block(self, key: str) -> PerBlock | None:
        """A whole number, or an array of such or of yes and no."""
        value = self._value(key)
        if isinstance(value, tuple):
            return value[0] if len(set(value)) == 1 else value
        return self.whole(key)

    def settings(self, wanted: Callable[[str], bool], defaults: dict[str, int] | None = None) -> tuple[Setting, ...]:
        """All values of the keys that are `wanted`, in the order of the keys."""
        found: dict[str, Value] = dict(defaults or {})
        for key in filter(wanted, self._fields):
            value = self._value(key)
            if value is not None:
                found[key] = value
        return tuple(sorted(found.items(), key=lambda setting: setting[0]))

    def _value(self, key: str) -> Value | None:
        field = self._fields.get(key)
        if field is None:
            return None
        return _numbers(self._source, field) if field.is_array else _scalar(field)


def _scalar(field: Field) -> int | float | bool | str | None:
    value = field.value
    if field.type is ValueType.STRING:
        return value if isinstance(value, str) and len(value) <= TEXT_MAX else None
    if field.type is ValueType.BOOL:
        return value if isinstance(value, bool) else None
    if field.type in _REAL_TYPES:
        return value if isinstance(value, float) and math.isfinite(value) else None
    return value if isinstance(value, int) else None


def _numbers(source: ByteSource, field: Field) -> tuple[int, ...] | None:
    is_whole = field.element_type in _WHOLE_TYPES or field.element_type is ValueType.BOOL
    if not is_whole or not 1 <= field.count <= PER_BLOCK_MAX:
        return None
    numbers: Sequence[int] = [int(number) for number in read_array(source, field)]
    return tuple(numbers)


def _text(header: Header, key: str) -> str | None:
    return _bounded(header.text(key))


def _bounded(text: str | None) -> str | None:
    return text if text and len(text) <= TEXT_MAX else None


def _either(first: _T | None, second: _T | None) -> _T | None:
    return second if first is None else first


def _rope_factors(parent: Parent) -> str | None:
    parts = [part for part in parent.parts if part.place.block is None and part.place.tower is Tower.TEXT]
    factors = sorted(f"{part.place.slot} {part.digest}" for part in parts if part.place.type is OrganType.SKELETON)
    return ", ".join(factors) or None


def _is_tied(parent: Parent) -> bool | None:
    places = {part.place for part in parent.parts if part.place in (TOKEN_EMBEDDING, OUTPUT_MATRIX)}
    return OUTPUT_MATRIX not in places if TOKEN_EMBEDDING in places else None


def _is_mixing(key: str) -> bool:
    if key in _ATTENTION_NAMED or key.endswith("epsilon"):
        return False
    return key.startswith(("attention.", "ssm.", "wkv.", "kda.", "shortconv.")) or "softcapping" in key


def _is_expert(key: str) -> bool:
    return key.startswith(("expert", "moe_", "interleave_moe", "leading_dense_block_count"))
