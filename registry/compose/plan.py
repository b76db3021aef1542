"""The plan: every tensor of the result, the origin of its bytes, and the computation of computed organs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import fmean
from typing import Any

from msgspec import structs

from organs.registry.anatomy import TOKEN_EMBEDDING
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.compose.layers import Layers
from organs.registry.compose.lock import Lock, LockedTensor, locked_header
from organs.registry.compose.parents import (
    Parent,
    Part,
    Replacement,
)
from organs.registry.compose.recipe import Recipe
from organs.registry.digest import Digest, digest_of
from organs.registry.entities.chimera import Origins
from organs.registry.entities.finding import Finding, Severity, in_order
from organs.registry.entities.plan import (
    ACTS,
    EDITED,
    GRAFTED,
    PLACED,
    QUANTISED,
    GraftedExperts,
    KeptChange,
    ParentModel,
    PlanChange,
    PlannedChimera,
    PlannedRecipe,
    PlanPart,
    Screen,
)
from organs.registry.errors import NotComposable
from organs.registry.gguf import KeyValue, TensorSpec, padded
from organs.registry.gguf.quants import encoder_of
from organs.registry.gguf.types import DType
from organs.registry.names import ModelName, name_from_text, parse_new_name
from organs.registry.transform import METHOD
from organs.registry.transform.blend import Settings
from organs.registry.transform.values import WRITTEN_AS_THEY_ARE


@dataclass(frozen=True, slots=True)
class Addition:
    """A low-rank product of an adapter that is added: `scale` · (`alpha` / rank, or 1 if alpha is 0) · B·A.

    With `magnitude`, it is a DoRA. Without `b`, `a` is a whole tensor: with the scale 1, it replaces the base's.
    """

    adapter: Parent
    a: Part
    b: Part | None
    alpha: float
    scale: float
    magnitude: Part | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        """The tensors of the adapter."""
        return tuple(part for part in (self.a, self.b, self.magnitude) if part is not None)

    def document(self) -> list[Any]:
        """Return the values that determine the product, for canonical JSON."""
        pair = [_values(self.a), self.b and _values(self.b), self.alpha, self.scale]
        return [*pair, *([_values(self.magnitude)] if self.magnitude else [])]


@dataclass(frozen=True, slots=True)
class BlendedPart:
    """A tensor of a blend besides the base's, with the adapter that is added to it first."""

    model: Parent
    part: Part
    addition: Addition | None = None
    source_model: Parent | None = None
    """The model of `part`, if that of `model` was quantised from it."""


@dataclass(frozen=True, slots=True)
class PlannedBlend:
    """A blend of the source of a computation with other tensors, by one of `transform.blend.METHODS`."""

    method: str
    parts: tuple[BlendedPart, ...]
    settings: Settings
    seed: int | None = None
    """Of the random masks of the whole recipe; None without masks."""
    tensor: str = ""
    """The name of the tensor, which distinguishes its masks."""

    @property
    def key(self) -> str:
        """The key of the random masks of this tensor."""
        return f"{self.seed}/{self.tensor}"

    def document(self) -> list[Any]:
        """Return the values that determine the result, for canonical JSON."""
        parts = [[_values(item.part), *([item.addition.document()] if item.addition else [])] for item in self.parts]
        return [self.method, parts, dict(self.settings), *([] if self.seed is None else [self.seed, self.tensor])]


@dataclass(frozen=True, slots=True)
class PlannedImportances:
    """The importances of a weight: the sums of squares of the inputs of its columns, and how many were summed."""

    sums: Part
    counts: Part

    @property
    def parts(self) -> tuple[Part, Part]:
        """Both tensors of the matrix."""
        return self.sums, self.counts

    def document(self) -> list[Any]:
        """Return the values that determine the importances, for canonical JSON."""
        return list(map(_values, self.parts))


@dataclass(frozen=True, slots=True)
class PlannedComputation:
    """A computation on `source`: experts are replaced, it is blended, products are added, it is purified, and cut.

    The result is written as `dtype`. Experts that no step changes keep their bytes.
    """

    source: Part
    dtype: DType
    additions: tuple[Addition, ...] = ()
    method: str | None = None
    """The method of purification; None without purification."""
    keep: float | None = None
    grafted: tuple[Replacement, ...] = ()
    """Replacements of single experts of the source by those of stacks of the same shape and dtype."""
    purified_experts: tuple[int, ...] = ()
    """The experts that are purified; empty for the whole tensor."""
    blend: PlannedBlend | None = None
    source_model: Parent | None = None
    """The model of `source`, if the given organ was quantised from it."""
    kept_experts: tuple[int, ...] = ()
    """The experts of the result, in rising order, by items of the last dimension; empty for all of the source."""
    quantised: bool = False
    """Whether a rule of the recipe says in which type it is written."""
    importances: PlannedImportances | None = None
    """They weigh the errors of rounding; None if all count the same."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the result, row length first."""
        shape = self.source.shape
        return (*shape[:-1], len(self.kept_experts)) if self.kept_experts else shape

    @property
    def pruned(self) -> tuple[int, ...]:
        """The number of experts of the result, and that of the source; empty if all are kept."""
        return (len(self.kept_experts), self.source.shape[-1]) if self.kept_experts else ()

    @property
    def source_models(self) -> tuple[Parent, ...]:
        """The models whose weights are used because given organs were quantised from them."""
        blended = (item.source_model for item in (self.blend.parts if self.blend else ()))
        return tuple(model for model in (self.source_model, *blended) if model is not None)

    @property
    def acts(self) -> tuple[str, ...]:
        """The acts, by their names in lineage, in their order."""
        done = {
            GRAFTED: self.grafted,
            "merged": self.blend,
            "adapter": self.additions,
            "purified": self.method,
            "pruned": self.kept_experts,
            QUANTISED: self.quantised,
        }
        return tuple(act for act, steps in done.items() if steps)

    @property
    def copies_experts(self) -> bool:
        """Whether it only replaces, purifies or leaves out single experts of a stack, and copies the others."""
        is_of_experts = self.grafted or self.purified_experts or self.kept_experts
        is_whole = self.blend or self.additions or self.quantised or (self.method and not self.purified_experts)
        return bool(is_of_experts) and not is_whole

    @property
    def encoder(self) -> str | None:
        """The name and version of the package that writes the result; None if every installation has it.

        Also None for bytes that are copied.
        """
        is_copied = self.kept_experts and self.copies_experts and not self.purified_experts
        is_plain = self.dtype.name in WRITTEN_AS_THEY_ARE and self.importances is None
        return None if is_copied or is_plain else encoder_of(self.dtype)

    @property
    def is_token_embedding(self) -> bool:
        """Whether added products are transposed: adapters of the token embedding are stored so."""
        return self.source.place == TOKEN_EMBEDDING

    @property
    def added(self) -> tuple[Addition, ...]:
        """All products that are added, to the models that are blended or to the result."""
        blended = self.blend.parts if self.blend else ()
        return (*(item.addition for item in blended if item.addition), *self.additions)

    def document(self) -> str:
        """Return canonical JSON of everything that determines the result."""
        added = [addition.document() for addition in self.additions]
        values: dict[str, Any] = {"dtype": self.dtype.name, "method": METHOD, "source": _values(self.source)}
        values |= {"add": added} if added else {}
        values |= {"is_token_embedding": self.is_token_embedding} if self.added else {}
        values |= {"purify": self.method, "keep": self.keep} if self.method else {}
        values |= {"purify_experts": self.purified_experts} if self.purified_experts else {}
        experts = [[_values(graft.after), graft.experts] for graft in self.grafted]
        values |= {"experts": experts} if experts else {}
        values |= {"blend": self.blend.document()} if self.blend else {}
        values |= {"encoder": self.encoder} if self.encoder else {}
        values |= {"kept_experts": self.kept_experts} if self.kept_experts else {}
        values |= {"importances": self.importances.document()} if self.importances else {}
        return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def key(self) -> str:
        """SHA-256 of `document()`."""
        return digest_of(self.document().encode("ascii"))

    @property
    def ingredients(self) -> tuple[Part, ...]:
        """All inputs, the source first."""
        blended = self.blend.parts if self.blend else ()
        added = (part for addition in self.added for part in addition.parts)
        weights = self.importances.parts if self.importances else ()
        grafted = (graft.after for graft in self.grafted)
        return (self.source, *grafted, *(item.part for item in blended), *added, *weights)


def _values(part: Part) -> list[Any]:
    return [part.digest, part.dtype.name, list(part.shape)]


NOT_YET = Digest("0" * 64)
"""A placeholder for the digest of an organ that is not computed yet. It has the same length, so sizes are known."""


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """A tensor of the result."""

    before: Part
    """The base's tensor, whose name and place it keeps."""
    source: Part
    """The new tensor, or the input of its computation."""
    donor: Parent | None
    """The model of `source`; None for the base's own."""
    computation: PlannedComputation | None = None
    from_block: int | None = None
    """The number in its own model of the block that was placed here; None if no layers were arranged."""
    moved: float | None = None
    """The energy that blends and adapters move, over that of the source, as a trial measured it; None without one."""

    @property
    def merged(self) -> tuple[Parent, ...]:
        """The models that are blended into it."""
        blend = self.computation.blend if self.computation else None
        return tuple({item.model.label: item.model for item in blend.parts}.values()) if blend else ()

    @property
    def adapters(self) -> tuple[Parent, ...]:
        """The adapters whose products are added, to it or to the models that are blended into it."""
        return () if self.computation is None else tuple(addition.adapter for addition in self.computation.added)

    @property
    def expert_grafts(self) -> tuple[Replacement, ...]:
        """The replacements of single experts."""
        return () if self.computation is None else self.computation.grafted

    @property
    def origin(self) -> Parent | None:
        """The model that gave the organ, or experts of it; None for the base."""
        return self.donor or next((graft.donor for graft in self.expert_grafts), None)

    @property
    def spec(self) -> TensorSpec:
        result = self.computation or self.source
        return TensorSpec(self.before.name, result.shape, result.dtype)

    @property
    def acts(self) -> tuple[str, ...]:
        """The acts at this place, by their names in lineage; empty if the base's own tensor stays."""
        taken = (PLACED,) if self.from_block is not None else (GRAFTED,) if self.donor is not None else ()
        return tuple(dict.fromkeys((*taken, *(self.computation.acts if self.computation else ()))))


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a recipe. A plan with refusals is never made; warnings must be accepted by their codes."""

    recipe: Recipe
    base: Parent
    parents: tuple[Parent, ...]
    """The base, then all models whose weights are used, in the order of the recipe."""
    parts: tuple[PlannedPart, ...]
    sets: tuple[KeyValue, ...]
    drops: tuple[str, ...]
    findings: tuple[Finding, ...]
    screen: Screen
    license: str
    """The licenses of all parents together, as text for display."""
    stem: str
    """The file's name without its ending."""
    kept: tuple[KeptChange, ...] = ()
    """What rounding keeps of the change, by type and tensor type."""
    layers: Layers | None = None
    """The blocks of the result, if they are not the base's in their order."""
    importances: Parent | None = None
    """The importance matrix by which organs are encoded."""

    @property
    def acts(self) -> tuple[str, ...]:
        """The acts on the base, by their names in lineage, in their order."""
        done = {act for part in self.parts for act in part.acts} | ({PLACED} if self.layers else set())
        return tuple(act for act in ACTS if act in done) or (EDITED,)

    @property
    def refusals(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity is Severity.REFUSE]

    @property
    def unaccepted(self) -> list[Finding]:
        """Warnings that the recipe does not accept."""
        accepted = set(self.recipe.accept)
        warnings = (finding for finding in self.findings if finding.severity is Severity.WARN)
        return [finding for finding in warnings if finding.code not in accepted]

    @property
    def can_be_made(self) -> bool:
        return not self.refusals and not self.unaccepted

    @property
    def file_name(self) -> str:
        return f"{self.stem}.gguf"

    @property
    def computations(self) -> dict[str, PlannedComputation]:
        """The necessary computations, by the names of the tensors."""
        return {part.before.name: part.computation for part in self.parts if part.computation is not None}

    @property
    def size_bytes(self) -> int:
        """Size of the resulting file."""
        tensors = sum(padded(part.spec.size_bytes, self.base.header.alignment) for part in self.parts)
        return len(self.header(self.lock(dict.fromkeys(self.computations, NOT_YET)))) + tensors

    @property
    def digest(self) -> Digest:
        """Digest of the result: two plans with the same digest make the same bytes."""
        steps = [part.source.digest if part.computation is None else part.computation.key for part in self.parts]
        lock = self.lock(dict.fromkeys(self.computations, NOT_YET))
        return digest_of("\n".join([lock.id, *steps]).encode())

    def accepting_all(self) -> Plan:
        """Return the plan of the same recipe with all of its warnings accepted; nothing is computed again."""
        codes = dict.fromkeys((*self.recipe.accept, *(finding.code for finding in self.unaccepted)))
        return replace(self, recipe=structs.replace(self.recipe, accept=tuple(codes)))

    def check(self) -> None:
        """Raise NotComposable if the plan cannot be made."""
        if not self.can_be_made:
            codes = sorted({finding.code for finding in self.unaccepted})
            raise NotComposable([finding.sentence for finding in self.refusals], codes)

    def lock(self, computed: Mapping[str, Digest] | None = None) -> Lock:
        """Return the lock; `computed` has the digest of each computed organ by its tensor's name."""
        digests = computed or {}
        tensors = [
            LockedTensor(part.spec, part.source.digest if part.computation is None else digests[part.before.name])
            for part in self.parts
        ]
        computations = self.computations.values()
        encoders = {item.encoder for item in computations if item.encoder}
        sources = {model.header_digest for item in computations for model in item.source_models}
        sources |= {self.importances.header_digest} if self.importances else set()
        seeds = {item.blend.seed for item in computations if item.blend and item.blend.seed is not None}
        return Lock(
            *(self.base.header_digest, tuple(tensors), self.sets, self.drops),
            encoders=tuple(sorted(encoders)),
            seeds=tuple(sorted(seeds)),
            sources=tuple(sorted(sources)),
        )

    def header(self, lock: Lock) -> bytes:
        """Return the header of the file that `lock` describes."""
        return locked_header(self.base.header, self.base.source, lock)


def origins_of(plan: Plan) -> Origins:
    """Return the origins of all tensors that are not the base's own.

    The parent of a part is that of its organ, or of the source of its computation.
    """
    numbers = {parent.label: number for number, parent in enumerate(plan.parents)}
    blocks = plan.layers.blocks if plan.layers else ()
    changed = {part.before.name: part for part in plan.parts if part.acts}
    return Origins(
        parents=tuple(parent.label for parent in plan.parents),
        parts={name: (numbers[part.origin.label] if part.origin else 0, *part.acts) for name, part in changed.items()},
        merged={
            name: tuple(numbers[model.label] for model in part.merged) for name, part in changed.items() if part.merged
        },
        adapters={
            name: tuple(numbers[adapter.label] for adapter in part.adapters)
            for name, part in changed.items()
            if part.adapters
        },
        experts={
            name: tuple((numbers[graft.donor.label], graft.experts) for graft in part.expert_grafts)
            for name, part in changed.items()
            if part.expert_grafts
        },
        purified_experts={
            name: computation.purified_experts
            for name, computation in plan.computations.items()
            if computation.purified_experts
        },
        layers=tuple((numbers[giver.label] if giver else 0, number) for giver, number in blocks),
        pruned={name: computation.pruned for name, computation in plan.computations.items() if computation.pruned},
        sources=tuple(
            dict.fromkeys(
                numbers[model.label]
                for computation in plan.computations.values()
                for model in computation.source_models
            )
        ),
    )


def planned_recipe(plan: Plan, *, every_part: bool = False, contributor: str = LOCAL) -> PlannedRecipe:
    """Return `plan` as an entity for `contributor`, with the changed organs, or with all organs if `every_part`.

    `lock_id` is None before organs are computed, and for a refused recipe. Free disk space is not checked here.
    """
    every = [plan_part(part, plan.base) for part in plan.parts]
    changed = [part for part in every if part.acts]
    header, acts = plan.base.header, origins_of(plan).acts()
    base_size_bytes = header.data_offset + sum(padded(part.size_bytes, header.alignment) for part in plan.base.parts)
    return PlannedRecipe(
        can_be_made=plan.can_be_made,
        findings=in_order(plan.findings, plan.recipe.accept),
        unaccepted=tuple(sorted({finding.code for finding in plan.unaccepted})),
        plan=PlannedChimera(
            name=str(chimera_name(plan.recipe, plan.stem, contributor)),
            file=plan.file_name,
            size_bytes=plan.size_bytes,
            base=plan.base.label,
            base_size_bytes=base_size_bytes,
            parents=tuple(
                ParentModel(model=parent.label, license=parent.license, acts=acts[parent.label])
                for parent in plan.parents
            ),
            license=plan.license,
            screen=plan.screen,
            lock_id=None if plan.computations or plan.refusals else plan.lock().id,
            to_compute=len(plan.computations),
            organs=len(every),
            changed=len(changed),
            kept=plan.kept,
            changes=summarize_changes(changed),
            parts=tuple(every if every_part else changed),
        ),
    )


def plan_part(part: PlannedPart, base: Parent) -> PlanPart:
    """Return a tensor of the result and the base's tensor; a tensor to compute has no θ and no digest."""
    before, spec = part.before, part.spec
    known = part.source if part.computation is None else None
    return PlanPart(
        name=before.name,
        type=before.place.type.value,
        tower=before.place.tower.value,
        block=before.place.block,
        slot=before.place.slot,
        model=(part.origin or base).label,
        acts=part.acts,
        dtype_before=before.dtype.name,
        dtype=spec.dtype.name,
        theta_before=before.theta,
        theta=None if known is None else known.theta,
        spectral_signal=None if known is None else known.spectral_signal,
        size_bytes_before=before.size_bytes,
        size_bytes=spec.size_bytes,
        digest=None if known is None else known.digest,
        merged=tuple(model.label for model in part.merged),
        adapters=tuple(adapter.label for adapter in part.adapters),
        experts=tuple(GraftedExperts(model=graft.donor.label, experts=graft.experts) for graft in part.expert_grafts),
        purified_experts=() if part.computation is None else part.computation.purified_experts,
        from_block=part.from_block,
        pruned=() if part.computation is None else part.computation.pruned,
    )


def chimera_name(recipe: Recipe, stem: str, contributor: str) -> ModelName:
    """Return the name in the recipe; without one, a name from the file's `stem`.

    The default namespace is that of the contributor. The contributor's own namespace is spelt as the contributor is.
    """
    if recipe.name is None:
        return ModelName(contributor, name_from_text(stem))
    name = parse_new_name(recipe.name)
    is_own = "/" not in recipe.name or (contributor != LOCAL and name.namespace.lower() == contributor.lower())
    return replace(name, namespace=contributor) if is_own else name


def summarize_changes(parts: Sequence[PlanPart]) -> tuple[PlanChange, ...]:
    """Return one entry for each range of blocks in which organs of one model and type have the same acts.

    The acts are with the same adapters, and on the same experts of stacks. A mean θ is that of the organs whose θ is
    known.
    """
    groups: dict[tuple[object, ...], dict[int | None, list[PlanPart]]] = {}
    for part in parts:
        key = (
            *(part.model, part.type, part.tower, part.acts),
            None if part.from_block is None or part.block is None else part.block - part.from_block,
            *(part.merged, part.adapters, part.experts, part.purified_experts, part.pruned),
        )
        groups.setdefault(key, {}).setdefault(part.block, []).append(part)
    changes = []
    for by_block in groups.values():
        runs: list[list[int | None]] = [[None]] if None in by_block else []
        blocks = sorted(block for block in by_block if block is not None)
        ranges = groupby(enumerate(blocks), lambda numbered: numbered[1] - numbered[0])  # equal without a gap
        runs += [[block for _, block in numbered] for _, numbered in ranges]
        for run in runs:
            own = [part for block in run for part in by_block[block]]
            first, last = own[0], own[-1]
            changes.append(
                PlanChange(
                    model=first.model,
                    acts=first.acts,
                    type=first.type,
                    tower=first.tower,
                    first_block=first.block,
                    last_block=last.block,
                    organs=len(own),
                    theta_before=mean_of([part.theta_before for part in own]),
                    theta=mean_of([part.theta for part in own]),
                    size_bytes_before=sum(part.size_bytes_before for part in own),
                    size_bytes=sum(part.size_bytes for part in own),
                    merged=first.merged,
                    adapters=first.adapters,
                    experts=first.experts,
                    purified_experts=first.purified_experts,
                    from_block=first.from_block,
                    pruned=first.pruned,
                )
            )
    types = list(dict.fromkeys(part.type for part in parts))
    changes.sort(key=lambda one: (types.index(one.type), -1 if one.first_block is None else one.first_block))
    return tuple(changes)


def mean_of(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
