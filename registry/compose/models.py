"""Parents: models as composing sees them, from the registry or from files, with the facts of their headers."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar

from sqlalchemy.orm import Session

from organs.registry.anatomy import OUTPUT_MATRIX, TOKEN_EMBEDDING, OrganType, Place, Slot, Tower, place_of
from organs.registry.assembly import first_header
from organs.registry.catalog.queries.composing import model_by_text, names_of_chimeras, tensor_rows
from organs.registry.catalog.queries.organs import models_in_common
from organs.registry.catalog.queries.relatives import models_by_id, parents_of
from organs.registry.catalog.queries.search import search_organs
from organs.registry.catalog.search import parse_query
from organs.registry.catalog.tables import Model
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.compose.cost import CANDIDATE_COST, COMMON_COST, QUERY_COST, Budget, read_cost
from organs.registry.compose.findings import listed
from organs.registry.compose.recipe import Graft, Recipe, Selection
from organs.registry.digest import Digest
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.entities.published import LICENSE_MAX
from organs.registry.errors import NotAssemblable
from organs.registry.gguf import ByteSource, Field, Header, TensorSpec, ValueType, dtype_by_name, read_array
from organs.registry.gguf.tokenizer import TOKENS_KEY, VOCABULARY_MAX_BYTES
from organs.registry.gguf.types import DType
from organs.registry.lineage import ComparableOrgan
from organs.registry.store import BlobStore


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of a parent, or one that is to be computed for a chimera."""

    name: str
    place: Place
    dtype: DType
    shape: tuple[int, ...]
    """Row length first."""
    digest: Digest
    """Of its bytes."""
    theta: float | None = None
    spectral_signal: float | None = None
    fingerprint: bytes | None = field(default=None, repr=False)
    mean: float | None = None
    standard_deviation: float | None = None
    nonfinite: int | None = None
    """How many of its values are NaN or infinite; None where they were not counted."""

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
        """As models are compared by it."""
        return ComparableOrgan(self.place.type.value, self.shape, self.dtype.name, self.fingerprint, self.digest)


@dataclass(frozen=True, slots=True)
class Parent:
    """A base, a donor or an adapter."""

    label: str
    """What people call it: `acme/tiny@1`, or a file's name."""
    header: Header = field(repr=False)
    """Of its first file."""
    source: ByteSource = field(repr=False)
    """Of which `header` was read; only the header's own bytes may be asked for."""
    header_digest: Digest
    """SHA-256 from the magic to the last tensor info of the first file."""
    parts: tuple[Part, ...] = field(repr=False)
    """Of all of its files, in order."""
    unassemblable: tuple[str, ...] = ()
    """Why it must not be given to a loader; empty for nearly all."""
    complete: bool = True
    model_id: int | None = None
    """Its row, where it is registered."""
    yanked: tuple[str | None, str] | None = None
    """The day on which it was yanked, and why; None for a model that is not."""
    licence_said: str | None = None
    """What its contributor says beside its header; None where that is nothing else."""
    by_name: Mapping[str, Part] = field(init=False, repr=False, compare=False)
    by_slot: Mapping[Slot, Part] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Frozen, so what is looked up all the time is set once, here.
        object.__setattr__(self, "by_name", {part.name: part for part in self.parts})
        object.__setattr__(self, "by_slot", {part.slot: part for part in self.parts})

    @property
    def license(self) -> str | None:
        """What it is under: what its contributor says, else what its header does."""
        return self.licence_said or self.header.text("general.license")


CACHED_MAX = 256
"""Digests that are remembered; one takes some hundred bytes."""
WINDOW_BYTES = 1 << 20

_cached: OrderedDict[tuple[Digest, int, int], Digest] = OrderedDict()
_lock = threading.Lock()


def vocabulary_digest(source: ByteSource, header_digest: Digest, tokens: Field | None) -> Digest | None:
    """SHA-256 of the elements of the array `tokens`, lengths included; None for none, and for more than 64 MiB.

    A vocabulary is read once for each header: `header_digest` covers its bytes.
    """
    if tokens is None or tokens.element_type is not ValueType.STRING or tokens.size_bytes > VOCABULARY_MAX_BYTES:
        return None
    key = (header_digest, tokens.offset, tokens.size_bytes)
    with _lock:
        known = _cached.get(key)
    if known is not None:
        return known
    digest = _digest(source, tokens)
    with _lock:
        _cached[key] = digest
        while len(_cached) > CACHED_MAX:
            _cached.popitem(last=False)
    return digest


def _digest(source: ByteSource, tokens: Field) -> Digest:
    found = hashlib.sha256()
    end = tokens.offset + tokens.size_bytes
    for offset in range(tokens.offset, end, WINDOW_BYTES):
        found.update(source.read_at(offset, min(WINDOW_BYTES, end - offset)))
    return Digest(found.hexdigest())


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


@dataclass(frozen=True, slots=True)
class Replacement:
    """A place of the base that gets a donor's tensor."""

    before: Part
    """The base's."""
    after: Part
    """The donor's."""
    donor: Parent
    by_slot: bool = False
    """Whether the person named the slot; then a part of a group may be replaced."""

    @property
    def changes(self) -> bool:
        """Whether the two are not the very same organ."""
        return self.before.digest != self.after.digest or self.before.dtype != self.after.dtype or not self.fits

    @property
    def fits(self) -> bool:
        """Whether the shapes are equal; trailing lengths of 1 make no difference."""
        return effective_shape(self.before.shape) == effective_shape(self.after.shape)


def effective_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """`shape` as a loader compares it: without trailing lengths of 1."""
    end = len(shape)
    while end > 1 and shape[end - 1] == 1:
        end -= 1
    return shape[:end]


def by_donor(replacements: Iterable[Replacement]) -> list[tuple[Parent, list[Replacement]]]:
    """The replacements of each donor, donors in the order of their first one."""
    groups: dict[tuple[str, str], tuple[Parent, list[Replacement]]] = {}
    for one in replacements:
        groups.setdefault((one.donor.label, one.donor.header_digest), (one.donor, []))[1].append(one)
    return list(groups.values())


PAGE = 1000


class Library(Protocol):
    """Gives models by what people call them, and organs by query."""

    def parent(self, text: str) -> Parent:
        """The model that `text` means; raises NotFound, Ambiguous, BadName, BadDigest, StoreError."""
        ...

    def organs(self, query: str) -> Iterator[PlacedOrgan]:
        """All that `query` finds, in its order; raises BadQuery."""
        ...

    def in_common(self, base: Parent) -> Mapping[Slot, Collection[str]]:
        """For places of `base`, the other models that have its very organ there."""
        ...


@dataclass(slots=True)
class RegisteredLibrary:
    """The models of a registry, as one session sees them. What is read is charged to `budget`, which may refuse it."""

    session: Session
    store: BlobStore
    budget: Budget = field(default_factory=Budget)
    _held: dict[int, Parent] = field(default_factory=dict)
    _common: dict[int, Mapping[Slot, Collection[str]]] = field(default_factory=dict)
    _chimeras: frozenset[str] | None = None

    def parent(self, text: str) -> Parent:
        """Return the model of that name, or whose bytes, file or lock has that digest; raises TooCostly."""
        model = model_by_text(self.session, text)
        if model.id not in self._held:
            self.budget.spend(read_cost(self.session, model))
            self._held[model.id] = self._read(model)
        return self._held[model.id]

    def organs(self, query: str) -> Iterator[PlacedOrgan]:
        """All that `query` finds, a page at a time; organs of chimeras only where it names models.

        Else what a recipe makes would be found by the same recipe the next time, and be made of itself. Raises
        TooCostly.
        """
        asked = parse_query(query)
        self.budget.spend(QUERY_COST)
        left_out = frozenset() if asked.choices("model") else self._names_of_chimeras()
        after = None
        while True:
            page = search_organs(self.session, asked, PAGE, after)
            self.budget.spend(CANDIDATE_COST * len(page.items))
            yield from (organ for organ in page.items if organ.model not in left_out)
            if page.next is None:
                return
            after = page.next

    def in_common(self, base: Parent) -> Mapping[Slot, Collection[str]]:
        """For places of `base`, the other visible models that have its very organ there."""
        if base.model_id is None:
            return {}
        if base.model_id not in self._common:
            self._common[base.model_id] = found = models_in_common(self.session, base.model_id)
            self.budget.spend(COMMON_COST * sum(map(len, found.values())))
        return self._common[base.model_id]

    def _names_of_chimeras(self) -> frozenset[str]:
        if self._chimeras is None:
            self._chimeras = names_of_chimeras(self.session)
        return self._chimeras

    def _read(self, model: Model) -> Parent:
        read = first_header(self.session, self.store, model)
        return Parent(
            label=model.full_name,
            header=read.header,
            source=read.source,
            header_digest=Digest(read.file.header_sha256),
            parts=tuple(parts_of(self.session, model.id)),
            unassemblable=tuple(json.loads(model.unassemblable)),
            complete=model.complete,
            model_id=model.id,
            yanked=_yanked(model),
            licence_said=_licence_said(model, read.header.text("general.license")),
        )


def _yanked(model: Model) -> tuple[str | None, str] | None:
    if model.state != "yanked":
        return None
    return None if model.changed_at is None else model.changed_at.date().isoformat(), model.state_reason or ""


def _licence_said(model: Model, in_header: str | None) -> str | None:
    """What was said of a model beside its header, or edited later."""
    kept = None if in_header is None else shown_text(in_header, LICENSE_MAX)
    return None if model.license == kept else model.license


def parts_of(session: Session, model_id: int) -> list[Part]:
    """The tensors of a registered model, in the order of its files."""
    return [
        Part(
            row.name, row.place, dtype_by_name(row.dtype), row.shape, row.digest,
            row.theta, row.spectral_signal, row.fingerprint, row.mean, row.standard_deviation, row.nonfinite,
        )
        for row in tensor_rows(session, model_id)
    ]  # fmt: skip


def is_partial(session: Session, model: Model) -> bool:
    """Whether `model` has only some organs, and names a base that has the others."""
    return model.kind == "model" and not model.complete and bool(parents_of(session, [model.id], ("declared",)))


def partial_base(session: Session, model: Model) -> Model | None:
    """The first parent that `model` declares and that is registered here."""
    edges = parents_of(session, [model.id], ("declared",))
    known = models_by_id(session, {edge.parent_model_id for edge in edges if edge.parent_model_id is not None})
    return next((known[edge.parent_model_id] for edge in edges if edge.parent_model_id in known), None)


def partial_recipe(session: Session, model: Model) -> Recipe:
    """The base of `model` with all of its organs; raises NotAssemblable where no base of it is registered."""
    base = partial_base(session, model)
    if base is None:
        named = ", ".join(edge.parent_text or "" for edge in parents_of(session, [model.id], ("declared",)))
        reason = f"it has only some organs, and its base, {named}, is not registered here"
        raise NotAssemblable(model.full_name, [reason])
    return Recipe(base.full_name, grafts=(Graft(Selection(), donor=model.full_name),))


def why_unfit(session: Session, base: Model, organs: Iterable[TensorSpec]) -> str | None:
    """Why `organs` cannot be grafted into `base`, which lacks a place for some or has another shape there.

    One sentence with the first few names; None where every one of them has a place. What only a plan finds out, such as
    organs that work in groups, is left to it.
    """
    parts = {part.slot: part for part in parts_of(session, base.id)}
    lacking, unlike = [], []
    for organ in organs:
        place = place_of(organ.name)
        part = parts.get((place.tower.value, place.block, place.slot))
        if part is None:
            lacking.append(organ.name)
        elif effective_shape(part.shape) != effective_shape(organ.shape):
            unlike.append(f"{organ.name} ({_shape(organ.shape)}, there {_shape(part.shape)})")
    reasons = [f"that has no place for {listed(lacking)}"] if lacking else []
    reasons += [f"other shapes are due for {listed(unlike)}"] if unlike else []
    return f"Its organs do not fit into its base, {base.full_name}: {'; '.join(reasons)}." if reasons else None


def refuse_partial(session: Session, model: Model) -> None:
    """Raise NotAssemblable for a model that is none without its base, with what to do instead."""
    if is_partial(session, model):
        base = partial_base(session, model)
        how = "its base is not registered here" if base is None else f"graft it into its base, {base.full_name}"
        reason = f"it has only some organs: {how}, or fetch the file that came in, as it is"
        raise NotAssemblable(model.full_name, [reason])


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(str(length) for length in shape)
