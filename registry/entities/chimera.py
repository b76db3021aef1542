"""Chimeras: recipe, lineage, screen and verdicts of each, and how to use it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from organs.registry.anatomy import Place, Tower
from organs.registry.entities.base import (
    Acts,
    Bytes,
    Count,
    Digest,
    Entity,
    Items,
    ModelText,
    Page,
    RequestBody,
    Text,
    Texts,
    Theta,
    Time,
    Word,
)
from organs.registry.entities.finding import Findings
from organs.registry.entities.gain import Gain
from organs.registry.entities.model import ModelFile
from organs.registry.entities.organ import MadeOrgan
from organs.registry.entities.plan import (
    ACTS,
    ADAPTER,
    GRAFTED,
    MERGED,
    PLACED,
    QUANTISED,
    SOURCE,
    Block,
    ParentModel,
    PlanChange,
    PlannedRecipe,
    PlanPart,
    RecipeFile,
    Screen,
)
from organs.registry.entities.validation import QuickLook, SourceDivergence, Verdict

NEWEST, GAINED = "new", "gain"
ORDERS = (NEWEST, GAINED)
"""The orders of a list of chimeras: newest first, or the largest settled gain first."""


class Origins(Entity, omit_defaults=True):
    """Where the tensors of a chimera come from, as the catalog stores it. Numbers are places in `parents`."""

    parents: Texts
    """The labels of the parents, the base first."""
    parts: dict[Text, tuple[Count | Text, ...]]
    """For each tensor that is not the base's own: the number of the parent, then the acts."""
    merged: dict[Text, tuple[Count, ...]] = msgspec.field(default_factory=dict)
    """For blended tensors: the numbers of the models that are blended into them."""
    adapters: dict[Text, tuple[Count, ...]] = msgspec.field(default_factory=dict)
    """For tensors with merged adapters: the numbers of the adapters."""
    experts: dict[Text, tuple[tuple[Count, tuple[Count, ...]], ...]] = msgspec.field(default_factory=dict)
    """For stacks with grafted experts: the number of each parent, with the numbers of the experts."""
    purified_experts: dict[Text, tuple[Count, ...]] = msgspec.field(default_factory=dict)
    layers: tuple[tuple[Count, Count], ...] = ()
    """For each block of the text tower the number of the parent that gives it, and its number there; empty if all are
    the base's in their order."""
    pruned: dict[Text, tuple[Count, ...]] = msgspec.field(default_factory=dict)
    """For tensors that lost experts: the number of those that stay, and that of the base."""
    sources: tuple[Count, ...] = ()
    """The numbers of the models from which others were quantised, and whose weights were used in place of theirs."""

    def by_tensor(self) -> dict[str, tuple[int, tuple[str, ...]]]:
        """Return the number of the parent and the acts of each tensor that is not the base's own."""
        return {name: (int(number), tuple(map(str, acts))) for name, (number, *acts) in self.parts.items()}

    @property
    def is_quantisation(self) -> bool:
        """Whether it has nothing but the weights of the base, of which some are written in other tensor types."""
        is_changed = self.experts or self.layers or self.pruned or self.merged or self.adapters
        parts = self.by_tensor().values()
        return bool(parts) and not is_changed and all(part == (0, (QUANTISED,)) for part in parts)

    def from_block(self, place: Place) -> int | None:
        """Return the number in its own model of the block at `place`, if it is another one or another model's."""
        if not self.layers or place.block is None or place.tower is not Tower.TEXT:
            return None
        number, block = self.layers[place.block]
        return block if number or block != place.block else None

    def acts(self) -> dict[str, tuple[str, ...]]:
        """Return by which acts the chimera uses each parent. An adapter is a parent of its own."""
        acts: dict[str, set[str]] = {label: set() for label in self.parents}
        for number, done in self.by_tensor().values():
            acts[self.parents[number]].update(set(done) - {MERGED, ADAPTER})
        for place, (number, block) in enumerate(self.layers):
            acts[self.parents[number]].update({PLACED} if number or block != place else ())
        for number, _ in (graft for grafts in self.experts.values() for graft in grafts):
            acts[self.parents[number]].add(GRAFTED)
        for act, givers in ((MERGED, self.merged), (ADAPTER, self.adapters)):
            for number in (number for numbers in givers.values() for number in numbers):
                acts[self.parents[number]].add(act)
        for number in self.sources:
            acts[self.parents[number]].add(SOURCE)
        return {label: tuple(act for act in (*ACTS, SOURCE) if act in done) for label, done in acts.items()}


class GraftedPart(Entity):
    """The blocks in which a chimera has tensors of one type from one model."""

    model: Annotated[Text, Meta(description="The model that gave them, or the base if its tensors were changed.")]
    type: Word
    blocks: Annotated[Items[Block | None], Meta(description="In rising order; null for tensors outside the blocks.")]


class ChimeraSummary(Entity):
    """A chimera as a line of a list."""

    name: ModelText
    title: Text | None
    lock_id: Digest
    parents: Annotated[Texts, Meta(description="The base first.")]
    withdrawn_parents: Annotated[Texts, Meta(description="The parents that were yanked or removed.")]
    withdrawn_ancestors: Annotated[
        Texts, Meta(description="Models that were yanked or removed, and from which a parent was made; nearest first.")
    ] = ()
    verdict: Annotated[Word, Meta(description="The strongest verdict; null before the first run.")] | None
    quick_look: Annotated[Text, Meta(description="The result of a quick look in a sentence.")] | None = None
    gains: Annotated[Items[Gain], Meta(description="What it gained on each text, the largest gain first.")] = ()
    blocks: Annotated[Count, Meta(description="The number of its blocks.")]
    parts: Annotated[
        Items[GraftedPart], Meta(description="The parts that differ from the base's, without unchanged ones.")
    ] = ()
    size_bytes: Bytes
    mean_theta: Theta | None
    created_at: Time


class ChimeraPage(Page[ChimeraSummary]):
    """A page of chimeras."""


class ComputedOrgan(MadeOrgan):
    """A tensor of a chimera that was computed, with θ before and after."""

    name: Text
    type: Word
    block: Block | None
    slot: Text
    model: Annotated[Text, Meta(description="The model whose tensor it was computed from.")]
    digest: Digest
    theta: Theta | None


class DerivedModel(Entity):
    """A chimera that was composed from a model, with the acts."""

    model: ModelText
    acts: Acts


class Chimera(Entity):
    """A chimera with all of its data. It is also registered as a model."""

    model: ModelText
    also: Annotated[Texts, Meta(description="Other names of the same bytes.")]
    lock_id: Digest
    title: Text | None
    architecture: Text | None
    tensors: Count
    size_bytes: Bytes
    mean_theta: Theta | None
    created_at: Time
    file: ModelFile
    recipe: RecipeFile
    recipe_yaml: Text
    parents: Items[ParentModel]
    license: Text
    findings: Annotated[
        Findings, Meta(description="The findings of the plan, and parents that were yanked or removed later.")
    ]
    screen: Annotated[Screen, Meta(description="Null for chimeras of versions that had no screen.")] | None
    quick_look: Annotated[QuickLook, Meta(description="Null before the first.")] | None = None
    changes: Items[PlanChange]
    parts: Annotated[Items[PlanPart], Meta(description="The tensors that differ from those of the base.")]
    computed: Items[ComputedOrgan]
    verdicts: Annotated[
        Items[Verdict], Meta(description="The strongest first: decided, undecided, writes; then by scored tokens.")
    ]
    made_into: Items[DerivedModel]
    modelfile: Text
    llama_cli: Annotated[Text, Meta(description="The command that runs it with llama.cpp.")]
    assemble: Annotated[Text, Meta(description="The command that writes its file.")]
    python: Annotated[Text, Meta(description="The same recipe as a Python program.")]
    card: Annotated[Text, Meta(description="A README for people who download it, as Markdown.")]

    @property
    def from_source(self) -> SourceDivergence | None:
        """Of a quantisation, how far it is from its source: by the strongest verdict, else by the quick look."""
        reports = [verdict.report for verdict in self.verdicts if verdict.report is not None]
        found = next((report.from_source for report in reports if report.from_source is not None), None)
        return found if found is not None or self.quick_look is None else self.quick_look.from_source

    @property
    def quantised_from(self) -> str | None:
        """The model of which it has all weights, in other tensor types; None if something else was changed too."""
        base, *others = self.parents
        is_only = base.acts == (QUANTISED,) and all(parent.is_source for parent in others)
        return base.model if is_only else None

    @property
    def is_screen_refuted(self) -> bool:
        """Whether it was measured as broken or worse, although its tensors are those of close relatives."""
        is_hopeful = self.screen is not None and self.screen.relation in ("same", "kin")
        is_bad = self.quick_look is not None and self.quick_look.usable is False
        if self.verdicts:
            is_bad = self.verdicts[0].verdict in ("broken", "degraded", "inert")
        return is_hopeful and is_bad


class AssemblyRequest(RequestBody):
    """Either a model or a lock."""

    model: Annotated[Text, Meta(description="The name of a model.")] | None = None
    lock: Annotated[Text, Meta(description="The digest of a lock.")] | None = None


class Assembly(Entity):
    """A model as one file, with the address for the download."""

    model: ModelText
    file: Text
    size_bytes: Bytes
    sha256: (
        Annotated[Digest, Meta(description="Null if shards are merged, because it is not known before the download.")]
        | None
    )
    address: Text


class OutputFile(Entity):
    """The file that a command writes, and the free space on its disk."""

    file: Text | None
    free_bytes: Bytes | None


class WrittenFile(Entity):
    """A file that a command wrote, or would write, with its lock."""

    file: Annotated[Text, Meta(description="Null if the chimera was only registered.")] | None
    size_bytes: Bytes
    sha256: Annotated[Digest, Meta(description="Null if nothing was written.")] | None
    lock_id: Digest
    model: Annotated[Text, Meta(description="The name under which it was registered.")] | None = None
    created: Annotated[bool, Meta(description="False if the same bytes were registered before.")] | None = None


class ComposeResult(PlannedRecipe):
    """The JSON that `organ compose`, `organ graft` and `organ purify` print: the plan and its result."""

    out: OutputFile | None = None
    made: WrittenFile | None = None
    computed: Items[ComputedOrgan] = ()
    quick_look: Annotated[QuickLook, Meta(description="Null if it was not measured.")] | None = None
