"""Parents: the models of a composition, from the registry or from files, with the facts in their headers."""

from __future__ import annotations

import hashlib
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias, TypeVar

from sqlalchemy.orm import Session

from organs.registry.amounts import names_text
from organs.registry.anatomy import OUTPUT_MATRIX, TOKEN_EMBEDDING, OrganType, Place, Slot, Tower, place_of
from organs.registry.assembly import first_header
from organs.registry.catalog.queries.chimeras import names_of_chimeras
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.queries.organs import TensorRow, expert_tensor_rows, models_in_common, tensor_rows
from organs.registry.catalog.queries.relatives import models_by_id, parents_of
from organs.registry.catalog.tables import ModelRow
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.compose.cost import (
    CANDIDATE_COST,
    COMMON_COST,
    COMPARED_COST,
    QUERY_COST,
    TENSOR_COST,
    Budget,
    read_cost,
)
from organs.registry.compose.licenses import Combined, combined_license
from organs.registry.compose.recipe import Graft, Recipe
from organs.registry.digest import Digest
from organs.registry.entities.finding import Finding
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.entities.published import LICENSE_MAX
from organs.registry.errors import NotAssemblable
from organs.registry.gguf import ByteSource, Field, Header, TensorSpec, ValueType, dtype_by_name, read_array
from organs.registry.gguf.tokenizer import TOKENS_KEY, VOCABULARY_MAX_BYTES
from organs.registry.gguf.types import DType
from organs.registry.relatives.lineage import withdrawn, withdrawn_findings
from organs.registry.search.gains import DonorGain, gains_of_donors
from organs.registry.search.language import parse_query
from organs.registry.search.rows import organs_in_order
from organs.registry.similarity import ComparableOrgan
from organs.registry.store import BlobStore


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of a parent, or one to compute for a chimera."""

    name: str
    place: Place
    dtype: DType
    shape: tuple[int, ...]
    """Lengths of the dimensions, row length first."""
    digest: Digest
    """SHA-256 of its bytes."""
    theta: float | None = None
    spectral_signal: float | None = None
    fingerprint: bytes | None = field(default=None, repr=False)
    mean: float | None = None
    standard_deviation: float | None = None
    nonfinite: int | None = None
    """Number of values that are NaN or infinite; None if not counted."""

    @property
    def slot(self) -> Slot:
        return (self.place.tower.value, self.place.block, self.place.slot)

    @property
    def spec(self) -> TensorSpec:
        return TensorSpec(self.name, self.shape, self.dtype)

    @property
    def size_bytes(self) -> int:
        return self.spec.size_bytes

    @property
    def organ(self) -> ComparableOrgan:
        """The tensor as comparisons of models use it."""
        return ComparableOrgan(self.place.type.value, self.shape, self.dtype.name, self.fingerprint, self.digest)


@dataclass(frozen=True, slots=True)
class Parent:
    """A base, a donor or an adapter."""

    label: str
    """The name for display: `acme/tiny@1`, or the name of a file."""
    header: Header = field(repr=False)
    """The header of its first file."""
    source: ByteSource = field(repr=False)
    """The source of `header`; it has only the bytes of the header."""
    header_digest: Digest
    """SHA-256 from the magic to the last tensor info of the first file."""
    parts: tuple[Part, ...] = field(repr=False)
    """The tensors of all files, in file order."""
    unassemblable: tuple[str, ...] = ()
    """Reasons why loaders cannot open the model; empty for most models."""
    complete: bool = True
    model_id: int | None = None
    """The id of the row in the catalog; None for a file."""
    withdrawn: tuple[Finding, ...] = ()
    """The warnings that the model was yanked, or was made from models that were yanked or removed."""
    stated_license: str | None = None
    """The license that the contributor stated, if it differs from the header."""
    by_name: Mapping[str, Part] = field(init=False, repr=False, compare=False)
    by_slot: Mapping[Slot, Part] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # The class is frozen; these indexes are built once.
        object.__setattr__(self, "by_name", {part.name: part for part in self.parts})
        object.__setattr__(self, "by_slot", {part.slot: part for part in self.parts})

    @property
    def kind(self) -> str:
        """The kind of the model, a value of `FileKind`."""
        return self.header.kind(has_tensors=bool(self.parts))

    @property
    def license(self) -> str | None:
        """The license that the contributor stated, else that of the header."""
        return self.stated_license or self.header.text("general.license")


def license_of_parents(parents: Sequence[Parent]) -> Combined:
    """Return the licenses of a chimera's parents with findings. The base is the first of `parents`."""
    return combined_license(
        {parent.label: parent.license for parent in parents},
        {parent.label: parent.header.text("general.license") for parent in parents},
    )


CACHED_MAX = 256
"""Vocabulary digests in the cache; each takes some hundred bytes."""
WINDOW_BYTES = 1 << 20

_cached: OrderedDict[tuple[Digest, int, int], Digest] = OrderedDict()
_lock = threading.Lock()


def vocabulary_digest(source: ByteSource, header_digest: Digest, tokens: Field | None) -> Digest | None:
    """Return the SHA-256 of the array `tokens` with its lengths; None without an array, or above 64 MiB.

    A vocabulary is read once for each header: `header_digest` also covers the bytes of the vocabulary.
    """
    if tokens is None or tokens.element_type is not ValueType.STRING or tokens.size_bytes > VOCABULARY_MAX_BYTES:
        return None
    key = (header_digest, tokens.offset, tokens.size_bytes)
    with _lock:
        known = _cached.get(key)
    if known is not None:
        return known
    hashed, end = hashlib.sha256(), tokens.offset + tokens.size_bytes
    for offset in range(tokens.offset, end, WINDOW_BYTES):
        hashed.update(source.read_at(offset, min(WINDOW_BYTES, end - offset)))
    digest = Digest(hashed.hexdigest())
    with _lock:
        _cached[key] = digest
        while len(_cached) > CACHED_MAX:
            _cached.popitem(last=False)
    return digest


PER_BLOCK_MAX = 4096
"""Elements of an array with one number for each block; the deepest models have some hundred blocks."""
TEXT_MAX = 200
"""Characters of a text; longer texts are not names and count as missing."""
ROPE_BASE_DEFAULT = 10_000.0
"""The default of llama.cpp if a header does not state it."""

PerBlock: TypeAlias = int | tuple[int, ...]
"""One number for all blocks, or one for each block. An array of equal numbers becomes one number."""
Value: TypeAlias = int | float | bool | str | tuple[int, ...]
Setting: TypeAlias = tuple[str, Value]
"""A key without its architecture prefix, and its value."""

_T = TypeVar("_T")

_WHOLE_TYPES = frozenset(
    {
        *(ValueType.UINT8, ValueType.UINT16, ValueType.UINT32, ValueType.UINT64),
        *(ValueType.INT8, ValueType.INT16, ValueType.INT32, ValueType.INT64),
    }
)
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
_EXPERT_PREFIXES = ("expert", "moe_", "interleave_moe", "leading_dense_block_count")
_EXPERT_COUNTS = ("expert_count", "expert_used_count", "expert_shared_count")


@dataclass(frozen=True, slots=True)
class HeaderFacts:
    """The facts in a header that are compared. A fact is None if the header does not state it."""

    architecture: str | None
    block_count: int | None
    embedding_length: int | None
    feed_forward_length: PerBlock | None
    context_length: int | None
    head_count: PerBlock | None
    head_count_kv: PerBlock | None
    """By default `head_count`."""
    key_length: int | None
    """By default the embedding length divided by the heads."""
    value_length: int | None
    rope_dimensions: int | None
    """By default the key length."""
    rope_sections: PerBlock | None
    rope_base: float
    rope_settings: tuple[Setting, ...]
    """All other keys under `rope.`: the scaling to longer contexts."""
    rope_factors: str | None
    """The tensors outside of blocks that scale positions, with their digests."""
    window: PerBlock | None
    """The sliding window of attention; None without one."""
    window_pattern: PerBlock | None
    mixing: tuple[Setting, ...]
    """All other settings of token mixing: `attention.*` without epsilons, `ssm.*`, `wkv.*` ..."""
    epsilon: float | None
    """The epsilon of the norms."""
    experts: tuple[Setting, ...]
    """The numbers of experts (by default 0), and all other settings of their arrangement and selection."""
    activations: tuple[Setting, ...]
    vocabulary: Digest | None
    """SHA-256 of the stored tokens."""
    vocabulary_size: int | None
    tokenizer_model: str | None
    tokenizer_pre: str | None
    tied_embeddings: bool | None
    """Whether the token embedding is also the output matrix; None without a token embedding."""
    license: str | None
    size_label: str | None
    """The size in the model's name: `7B`."""


def facts_of(parent: Parent) -> HeaderFacts:
    """Return the facts of `parent`; raises the errors of its source. The vocabulary is read once for each header."""
    values = _ArchitectureKeys(parent.header, parent.source)
    width = values.whole("embedding_length")
    heads = values.per_block("attention.head_count")
    key_value_heads = values.per_block("attention.head_count_kv")
    head_length = width // heads if width is not None and isinstance(heads, int) and heads else None
    key_length = _either(values.whole("attention.key_length"), head_length)
    tokens = parent.header.field(TOKENS_KEY)
    factors = sorted(
        f"{part.place.slot} {part.digest}"
        for part in parent.parts
        if part.place.block is None and part.place.tower is Tower.TEXT and part.place.type is OrganType.SKELETON
    )
    places = {part.place for part in parent.parts}
    return HeaderFacts(
        architecture=values.architecture,
        block_count=values.whole("block_count"),
        embedding_length=width,
        feed_forward_length=values.per_block("feed_forward_length"),
        context_length=values.whole("context_length"),
        head_count=heads,
        head_count_kv=heads if key_value_heads is None else key_value_heads,
        key_length=key_length,
        value_length=_either(values.whole("attention.value_length"), head_length),
        rope_dimensions=_either(values.whole("rope.dimension_count"), key_length),
        rope_sections=values.per_block("rope.dimension_sections"),
        rope_base=values.real("rope.freq_base") or ROPE_BASE_DEFAULT,
        rope_settings=values.settings(lambda key: key.startswith("rope.") and key not in _ROPE_NAMED),
        rope_factors=", ".join(factors) or None,
        window=values.per_block("attention.sliding_window") or None,
        window_pattern=values.per_block("attention.sliding_window_pattern"),
        mixing=values.settings(_is_mixing),
        epsilon=_either(values.real("attention.layer_norm_rms_epsilon"), values.real("attention.layer_norm_epsilon")),
        experts=values.settings(lambda key: key.startswith(_EXPERT_PREFIXES), dict.fromkeys(_EXPERT_COUNTS, 0)),
        activations=values.settings(lambda key: "activation" in key or key.endswith("_act")),
        vocabulary=vocabulary_digest(parent.source, parent.header_digest, tokens),
        vocabulary_size=_either(tokens.count if tokens and tokens.is_array else None, values.whole("vocab_size")),
        tokenizer_model=_text(parent.header, "tokenizer.ggml.model"),
        tokenizer_pre=_text(parent.header, "tokenizer.ggml.pre"),
        tied_embeddings=OUTPUT_MATRIX not in places if TOKEN_EMBEDDING in places else None,
        license=_bounded(parent.license),
        size_label=_text(parent.header, "general.size_label"),
    )


class _ArchitectureKeys:
    """The values of a header under the keys of its architecture."""

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
        """Return the value if it is a non-negative integer, else None."""
        value = self._value(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

    def real(self, key: str) -> float | None:
        """Return the value as a float if it is a number above 0, else None."""
        value = self._value(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return float(value) if value > 0 else None

    def per_block(self, key: str) -> PerBlock | None:
        """Return the value if it is a non-negative integer, or an array of integers or booleans; else None."""
        value = self._value(key)
        if isinstance(value, tuple):
            return value[0] if len(set(value)) == 1 else value
        return self.whole(key)

    def settings(self, is_wanted: Callable[[str], bool], defaults: dict[str, int] | None = None) -> tuple[Setting, ...]:
        """Return the values of all keys for which `is_wanted` is true, in the order of the keys."""
        result: dict[str, Value] = dict(defaults or {})
        for key in filter(is_wanted, self._fields):
            value = self._value(key)
            if value is not None:
                result[key] = value
        return tuple(sorted(result.items(), key=lambda setting: setting[0]))

    def _value(self, key: str) -> Value | None:
        field = self._fields.get(key)
        if field is None:
            return None
        if field.is_array:
            is_whole = field.element_type in _WHOLE_TYPES or field.element_type is ValueType.BOOL
            if not is_whole or not 1 <= field.count <= PER_BLOCK_MAX:
                return None
            return tuple(int(number) for number in read_array(self._source, field))
        value = field.value
        if isinstance(value, str):
            return value if len(value) <= TEXT_MAX else None
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        # A boolean that is neither 0 nor 1 is no value.
        is_boolean = field.type is ValueType.BOOL
        return value if isinstance(value, int) and isinstance(value, bool) == is_boolean else None


def _text(header: Header, key: str) -> str | None:
    return _bounded(header.text(key))


def _bounded(text: str | None) -> str | None:
    return text if text and len(text) <= TEXT_MAX else None


def _either(first: _T | None, second: _T | None) -> _T | None:
    return second if first is None else first


def _is_mixing(key: str) -> bool:
    if key in _ATTENTION_NAMED or key.endswith("epsilon"):
        return False
    return key.startswith(("attention.", "ssm.", "wkv.", "kda.", "shortconv.")) or "softcapping" in key


@dataclass(frozen=True, slots=True)
class Replacement:
    """A place of the base that gets a donor's tensor."""

    before: Part
    """The base's tensor."""
    after: Part
    """The donor's tensor."""
    donor: Parent
    by_slot: bool = False
    """Whether the recipe names the slot or experts; then a part of a group may be replaced."""
    experts: tuple[int, ...] = ()
    """The experts of the stack that are replaced; empty for the whole tensor."""
    pairs: tuple[tuple[Part, Part], ...] = ()
    """The base's and the donor's organ of each of `experts`; empty for the whole tensor.

    An expert that the library does not know has the digest of its stack, and no measures.
    """

    @property
    def organs(self) -> tuple[Replacement, ...]:
        """The replaced organs one by one: the experts, or the tensor."""
        singles = zip(self.pairs, self.experts, strict=True) if self.pairs else ()
        return tuple(
            Replacement(before, after, self.donor, self.by_slot, (number,)) for (before, after), number in singles
        ) or (self,)

    def with_changed_experts(self) -> Replacement:
        """Return the replacement of the experts that differ."""
        changed = [organ for organ in self.organs if organ.changes]
        experts = tuple(number for organ in changed for number in organ.experts)
        return replace(self, experts=experts, pairs=tuple((organ.before, organ.after) for organ in changed))

    @property
    def changes(self) -> bool:
        """Whether the two organs differ."""
        return self.before.digest != self.after.digest or self.before.dtype != self.after.dtype or not self.fits

    @property
    def fits(self) -> bool:
        """Whether the shapes are equal, without trailing lengths of 1."""
        return effective_shape(self.before.shape) == effective_shape(self.after.shape)


def effective_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return `shape` without trailing lengths of 1: loaders compare shapes in this form."""
    end = len(shape)
    while end > 1 and shape[end - 1] == 1:
        end -= 1
    return shape[:end]


def by_donor(replacements: Iterable[Replacement]) -> list[tuple[Parent, list[Replacement]]]:
    """Return the replacements of each donor, in the order of the first replacement of each donor."""
    groups: dict[tuple[str, str], tuple[Parent, list[Replacement]]] = {}
    for replacement in replacements:
        groups.setdefault((replacement.donor.label, replacement.donor.header_digest), (replacement.donor, []))[
            1
        ].append(replacement)
    return list(groups.values())


PAGE = 1000


class Library(Protocol):
    """Models by name and organs by query."""

    def parent(self, text: str) -> Parent:
        """Return the model that `text` names; raises NotFound, Ambiguous, BadName, BadDigest, StoreError."""
        ...

    def organs(self, query: str, base: str | None = None) -> Iterator[PlacedOrgan]:
        """Return all results of `query`, in its order; `likeness` is that to the model `base`. Raises BadQuery."""
        ...

    def experts(
        self, parent: Parent, stacks: Collection[str], numbers: Collection[int]
    ) -> Mapping[tuple[str, int], Part]:
        """Return the known experts `numbers` of the tensors `stacks` of `parent`, by stack and number."""
        ...

    def in_common(self, base: Parent) -> Mapping[Slot, Collection[str]]:
        """Return the other models that have the same organ as `base`, by place."""
        ...

    def measured(self, base: Parent, donors: Sequence[Parent]) -> Mapping[str, DonorGain]:
        """Return what `donors` gained in validated chimeras of `base`, by label. Donors without a result are absent."""
        ...


@dataclass(slots=True)
class RegisteredLibrary:
    """The models of a registry in one session. Reads are charged to `budget`, which raises TooCostly at its limit."""

    session: Session
    store: BlobStore
    budget: Budget = field(default_factory=Budget)
    _parents: dict[int, Parent] = field(default_factory=dict)
    _common: dict[int, Mapping[Slot, Collection[str]]] = field(default_factory=dict)
    _chimeras: frozenset[str] | None = None

    def parent(self, text: str) -> Parent:
        """Return the model by its name, or by the digest of its bytes, file or lock; raises TooCostly."""
        model = model_by_text(self.session, text)
        if model.id not in self._parents:
            self.budget.spend(read_cost(self.session, model))
            self._parents[model.id] = self._read(model)
        return self._parents[model.id]

    def organs(self, query: str, base: str | None = None) -> Iterator[PlacedOrgan]:
        """Return all results of `query`, read in pages. Raises TooCostly.

        Organs of chimeras are left out unless the query names models: otherwise a recipe could find the chimera that it
        made earlier.
        """
        parsed = parse_query(query, base=base)
        self.budget.spend(QUERY_COST)
        excluded: frozenset[str] = frozenset()
        if not parsed.choices("model"):
            excluded = self._chimeras = names_of_chimeras(self.session) if self._chimeras is None else self._chimeras
        for page in organs_in_order(self.session, parsed, PAGE, lambda count: self.budget.spend(COMPARED_COST * count)):
            self.budget.spend(CANDIDATE_COST * len(page))
            yield from (organ for organ in page if organ.model not in excluded)

    def experts(
        self, parent: Parent, stacks: Collection[str], numbers: Collection[int]
    ) -> Mapping[tuple[str, int], Part]:
        """Return the registered experts `numbers` of the tensors `stacks`, by stack and number; raises TooCostly."""
        self.budget.spend(TENSOR_COST * len(stacks) * len(numbers))
        if parent.model_id is None:
            return {}
        rows = expert_tensor_rows(self.session, parent.model_id, stacks, numbers)
        return {key: _part(row) for key, row in rows.items()}

    def in_common(self, base: Parent) -> Mapping[Slot, Collection[str]]:
        """Return the other visible models that have the same organ as `base`, by place."""
        if base.model_id is None:
            return {}
        if base.model_id not in self._common:
            self._common[base.model_id] = names = models_in_common(self.session, base.model_id)
            self.budget.spend(COMMON_COST * sum(map(len, names.values())))
        return self._common[base.model_id]

    def measured(self, base: Parent, donors: Sequence[Parent]) -> Mapping[str, DonorGain]:
        """Return what `donors` gained in validated chimeras of `base`, by label."""
        labels = {donor.model_id: donor.label for donor in donors if donor.model_id is not None}
        if base.model_id is None or not labels:
            return {}
        self.budget.spend(QUERY_COST)
        gains = gains_of_donors(self.session, base.model_id, labels)
        return {labels[donor_id]: gain for donor_id, gain in gains.items()}

    def _read(self, model: ModelRow) -> Parent:
        read = first_header(self.session, self.store, model)
        license = read.header.text("general.license")
        in_header = None if license is None else shown_text(license, LICENSE_MAX)
        return Parent(
            label=model.full_name,
            header=read.header,
            source=read.source,
            header_digest=Digest(read.file.header_sha256),
            parts=tuple(parts_of(self.session, model.id)),
            unassemblable=model.unassemblable,
            complete=model.complete,
            model_id=model.id,
            withdrawn=(
                *([withdrawn(model)] if model.state == "yanked" else []),
                *withdrawn_findings(self.session, (), [model.id]),
            ),
            stated_license=None if model.license == in_header else model.license,
        )


def parts_of(session: Session, model_id: int) -> list[Part]:
    """Return the tensors of a registered model, in the order of its files."""
    return [_part(row) for row in tensor_rows(session, model_id)]


def _part(row: TensorRow) -> Part:
    return Part(
        row.name, row.place, dtype_by_name(row.dtype), row.shape, row.digest,
        row.theta, row.spectral_signal, row.fingerprint, row.mean, row.standard_deviation, row.nonfinite,
    )  # fmt: skip


def is_partial(session: Session, model: ModelRow) -> bool:
    """Return whether `model` has only some organs and declares a base, which has the others."""
    return model.kind == "model" and not model.complete and bool(parents_of(session, [model.id], ("declared",)))


def partial_base(session: Session, model: ModelRow) -> ModelRow | None:
    """Return the first declared parent of `model` that is registered."""
    edges = parents_of(session, [model.id], ("declared",))
    known = models_by_id(session, {edge.parent_model_id for edge in edges if edge.parent_model_id is not None})
    return next((known[edge.parent_model_id] for edge in edges if edge.parent_model_id in known), None)


def partial_recipe(session: Session, model: ModelRow) -> Recipe:
    """Return a recipe that grafts all organs of `model` into its base; raises NotAssemblable without a base."""
    base = partial_base(session, model)
    if base is None:
        named = ", ".join(edge.parent_text or "" for edge in parents_of(session, [model.id], ("declared",)))
        reason = f"it has only some organs, and its base, {named}, is not in this registry"
        raise NotAssemblable(model.full_name, [reason])
    return Recipe(base.full_name, grafts=(Graft(model.full_name),))


def misfit_sentence(session: Session, base: ModelRow, organs: Iterable[TensorSpec]) -> str | None:
    """Return the reason why `organs` do not fit into `base`: a missing place or another shape. None if all fit.

    The sentence has only the first names. Groups of organs and other rules are checked by a plan.
    """
    parts = {part.slot: part for part in parts_of(session, base.id)}
    lacking, unlike = [], []
    for organ in organs:
        place = place_of(organ.name)
        part = parts.get((place.tower.value, place.block, place.slot))
        if part is None:
            lacking.append(organ.name)
        elif effective_shape(part.shape) != effective_shape(organ.shape):
            unlike.append(f"{organ.name} ({shape_text(organ.shape)}, not {shape_text(part.shape)})")
    reasons = [f"it has no place for {names_text(lacking)}"] if lacking else []
    reasons += [f"it has other shapes at {names_text(unlike)}"] if unlike else []
    return f"The organs do not fit into their base, {base.full_name}: {'; '.join(reasons)}." if reasons else None


def refuse_partial(session: Session, model: ModelRow) -> None:
    """Raise NotAssemblable for a model with only some organs; the message says how to use it."""
    if is_partial(session, model):
        base = partial_base(session, model)
        advice = "its base is not in this registry" if base is None else f"graft it into its base, {base.full_name}"
        reason = f"it has only some organs: {advice}, or download the original file"
        raise NotAssemblable(model.full_name, [reason])


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as text: `64 × 128`."""
    return " × ".join(str(length) for length in shape)
