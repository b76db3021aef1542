"""Parents: the models of a composition, from the registry or from files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

from sqlalchemy.orm import Session

from organs.registry.amounts import names_text
from organs.registry.anatomy import Place, Slot, Tower, place_of
from organs.registry.assembly import first_header
from organs.registry.catalog.queries.blobs import KnownBlob, blobs_by_digest
from organs.registry.catalog.queries.chimeras import names_of_chimeras
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.queries.organs import TensorRow, expert_tensor_rows, models_in_common, tensor_rows
from organs.registry.catalog.queries.relatives import models_by_id, parents_of, proved_models, proved_places
from organs.registry.catalog.tables import ModelRow
from organs.registry.catalog.vocabulary import shown_text
from organs.registry.compose.cost import (
    CANDIDATE_COST,
    COMMON_COST,
    COMPARED_COST,
    QUERY_COST,
    TENSOR_COST,
    TRIED_COST,
    Budget,
    read_cost,
)
from organs.registry.compose.licenses import Combined, combined_license
from organs.registry.compose.recipe import Graft, Recipe
from organs.registry.digest import Digest
from organs.registry.entities.finding import Finding, Severity
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.entities.published import LICENSE_MAX
from organs.registry.errors import NotAssemblable
from organs.registry.gguf import ByteSource, Header, TensorSpec, dtype_by_name
from organs.registry.gguf.types import DType
from organs.registry.relatives.descent import FLOATS
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


@dataclass(frozen=True)  # without slots, because of the cached properties
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
    former: tuple[int, ...] | None = None
    """For each of its blocks the number in the header and in the catalog, if `parts` has them arranged anew."""

    @cached_property
    def by_name(self) -> Mapping[str, Part]:
        return {part.name: part for part in self.parts}

    @cached_property
    def by_slot(self) -> Mapping[Slot, Part]:
        return {part.slot: part for part in self.parts}

    @cached_property
    def by_block(self) -> Mapping[int, Sequence[Part]]:
        """The tensors of each block of the text tower."""
        blocks: dict[int, list[Part]] = {}
        for part in self.parts:
            if part.place.block is not None and part.place.tower is Tower.TEXT:
                blocks.setdefault(part.place.block, []).append(part)
        return blocks

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


def refusal(code: str, sentence: str, models: Iterable[Parent], organs: Iterable[str] = (), field: str = "") -> Finding:
    """Return a refusal about `models`, the base first."""
    return Finding(Severity.REFUSE, code, sentence, field, tuple(model.label for model in models), tuple(organs))


def odd_weights(owner: Parent, parts: Iterable[Part], models: Iterable[Parent]) -> list[Finding]:
    """Return a warning about `models` if some of `parts`, tensors of `owner`, have weights that are NaN or infinite."""
    names = [part.name for part in parts if part.nonfinite]
    if not names:
        return []
    sentence = (
        f"{owner.label} has weights that are NaN or infinite in {names_text(names)}: "
        "the file is probably damaged, and the result would compute only NaN."
    )
    labels = tuple(model.label for model in models)
    return [Finding(Severity.WARN, "non-finite-weights", sentence, models=labels, organs=tuple(names))]


@dataclass(frozen=True, slots=True)
class ProvedSource:
    """The model from which another one is proved to be quantised."""

    model: Parent
    parts: Mapping[Slot, Part]
    """Its tensors, at the places of the organs that were made from them."""
    by_importances: bool = False
    """Whether an importance matrix was used."""


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

    def stored(self, parts: Collection[Part]) -> tuple[BlobStore, Mapping[Digest, KnownBlob]] | None:
        """Return the store of `parts`, with their rows; None if their bytes are not stored."""
        ...

    def source_of(self, model: Parent, named: str | None = None) -> ProvedSource | None:
        """Return the source of a quantised model, or only the one that is `named`; None if none is proved.

        Raises the errors of `parent` for a name.
        """
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
            read = first_header(self.session, self.store, model)
            license = read.header.text("general.license")
            in_header = None if license is None else shown_text(license, LICENSE_MAX)
            self._parents[model.id] = Parent(
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

    def stored(self, parts: Collection[Part]) -> tuple[BlobStore, Mapping[Digest, KnownBlob]] | None:
        """Return the store and the rows of `parts`, which are read for a trial; raises TooCostly."""
        self.budget.spend(TRIED_COST * len(parts))
        return self.store, blobs_by_digest(self.session, {part.digest for part in parts})

    def source_of(self, model: Parent, named: str | None = None) -> ProvedSource | None:
        """Return the visible model from which most organs of `model` were made, or `named` if they were made from it.

        A few equal organs are no proof: it must be half of the quantised matrices of `model`.
        """
        only = None if named is None else self.parent(named).model_id
        if model.model_id is None:
            return None
        self.budget.spend(QUERY_COST)
        counts = proved_models(self.session, model.model_id)
        best = next((model_id for model_id in counts if only in (None, model_id)), None)
        quantised = sum(part.organ.is_matrix and part.dtype.name not in FLOATS for part in model.parts)
        if best is None or 2 * counts[best] < quantised:
            return None
        source = self.parent(models_by_id(self.session, [best])[best].full_name)
        places = proved_places(self.session, model.model_id, best)
        self.budget.spend(TENSOR_COST * len(places))
        exact = [place for place in places if place.row.equal_blocks == place.row.blocks]
        return ProvedSource(
            model=source,
            parts={place.slot: source.by_name[place.name] for place in exact},
            by_importances=any(place.row.importances for place in exact),
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
        reason = f"it has only some tensors, and its base, {named}, is not in this registry"
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
    return f"The tensors do not fit into their base, {base.full_name}: {'; '.join(reasons)}." if reasons else None


def refuse_partial(session: Session, model: ModelRow) -> None:
    """Raise NotAssemblable for a model with only some organs; the message says how to use it."""
    if is_partial(session, model):
        base = partial_base(session, model)
        advice = "its base is not in this registry" if base is None else f"graft it into its base, {base.full_name}"
        reason = f"it has only some tensors: {advice}, or download the original file"
        raise NotAssemblable(model.full_name, [reason])


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as text: `64 × 128`."""
    return " × ".join(str(length) for length in shape)
