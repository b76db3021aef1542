"""Recipes as JSON, and plans: the result of a recipe tensor by tensor, its screen, and the chimera that was made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, structs

from organs.registry import notebook
from organs.registry.amounts import ranges_text, size_text, weight_change_text
from organs.registry.columns import CellKind, Column
from organs.registry.entities.base import (
    ITEMS_MAX,
    Acts,
    Bytes,
    Change,
    Count,
    Counts,
    Digest,
    Entity,
    Items,
    Share,
    Text,
    Texts,
    Theta,
    Word,
)
from organs.registry.entities.finding import Finding, Findings, Severity

Words = Text | Texts
"""One word, or a list of words."""
Blocks = int | Text | Items[int | Text]
"""A block, a range such as `2-5`, or a list of both."""
STEP_MAX_LENGTH = 6000
"""The most characters of one step in an address; enough for the longest query in quotation marks."""
ALIKE = "-alike"
CANDIDATE_ORDERS = {ALIKE: "change", "-theta": "θ", "-spectral": "spectral signal", "-rank": "stable rank"}
"""Orders of the candidates for a cell: the smallest change or the largest value first. Only the change tells relatives
apart. All but the first are orders of a search for tensors."""


class _SelectedStep(Entity, omit_defaults=True, forbid_unknown_fields=True):
    type: Annotated[Words, Meta(description="One type of tensor, or a list.")] | None = None
    slot: Annotated[Words, Meta(description="One slot, or a list; `*` matches any text.")] | None = None
    blocks: Annotated[Blocks, Meta(description="A block, a range such as `2-5`, or a list of both.")] | None = None
    experts: Annotated[Blocks, Meta(description="Only these experts of stacks: numbers and ranges.")] | None = None


class LayerStep(Entity, omit_defaults=True, forbid_unknown_fields=True, rename={"donor": "from"}):
    """Blocks of the result, in their order."""

    donor: Annotated[Text, Meta(description="The model that gives them, if it is not the base.")] | None = None
    blocks: Annotated[Blocks, Meta(description="A block, a range such as `2-5`, or a list of both.")]


class GraftStep(_SelectedStep, rename={"donor": "from"}):
    """Tensors of a donor, or of the models that a query finds."""

    donor: Annotated[Text, Meta(description="The model that gives the tensors.")] | None = None
    where: Annotated[Text, Meta(description="A query, instead of a donor.")] | None = None
    sort: Annotated[Text, Meta(description="The order of the query's results, by default `-likeness`.")] | None = None
    strangers: Annotated[
        bool, Meta(description="Whether the query may also find tensors of models that are not kin of the base.")
    ] = False


class BlendRule(_SelectedStep):
    """The value of a parameter of a blend for the tensors that it selects."""

    value: float | Items[float]


BlendSettings = Annotated[
    dict[Text, bool | float | Items[float | BlendRule]],
    Meta(
        max_length=ITEMS_MAX,
        description="The parameters: a number, a list of numbers along the depth, or a list of rules, of which the "
        "first that selects a tensor counts.",
    ),
]


class BlendedModel(Entity, omit_defaults=True, forbid_unknown_fields=True, rename={"model": "from"}):
    """A model of a blend."""

    model: Text
    adapter: Annotated[Text, Meta(description="An adapter that is added to the model first.")] | None = None
    parameters: BlendSettings = msgspec.field(default_factory=dict)


class BlendStep(_SelectedStep, rename={"donor": "from"}):
    """Tensors that are computed from those of the base and of other models."""

    method: Annotated[Text, Meta(description="`task_arithmetic` if it is not given.")] | None = None
    donor: Annotated[Text, Meta(description="The other model, if there is one.")] | None = None
    models: Annotated[Items[BlendedModel], Meta(description="The other models, if there are several.")] = ()
    parameters: BlendSettings = msgspec.field(default_factory=dict)
    seed: Annotated[Count, Meta(description="Of random masks.")] = 0
    where: Annotated[Text, Meta(description="A query that narrows the selection.")] | None = None


class AdapterStep(Entity, omit_defaults=True, forbid_unknown_fields=True, rename={"adapter": "from"}):
    """A low-rank adapter to merge into the base."""

    adapter: Text
    scale: float = 1.0


class PurifyStep(_SelectedStep):
    """Tensors of the result to purify."""

    method: Annotated[Text, Meta(description="`spectral` or `fractal`.")]
    where: Annotated[Text, Meta(description="A query that narrows the selection.")] | None = None
    keep: Annotated[float, Meta(description="The share of the energy that `spectral` keeps.")] | None = None


class ExpertStep(Entity, omit_defaults=True, forbid_unknown_fields=True):
    """Experts of the result: those that are kept, or those that are dropped."""

    keep: Annotated[Blocks, Meta(description="The experts to keep: numbers and ranges.")] | None = None
    drop: Annotated[Blocks, Meta(description="The experts to drop: numbers and ranges.")] | None = None
    blocks: Annotated[Blocks, Meta(description="Only in these blocks; by default in all that have experts.")] | None = (
        None
    )


class QuantizeStep(_SelectedStep, rename={"dtype": "as"}):
    """The tensor type of matrices of the result."""

    dtype: Annotated[Text, Meta(description="A tensor type such as `Q5_K`, or a mix of llama.cpp such as `Q4_K_M`.")]


class RecipeFile(Entity, omit_defaults=True, forbid_unknown_fields=True):
    """A recipe, which describes a chimera by the names of models and tensors."""

    base: Annotated[Text, Meta(description="The model that receives the tensors.")]
    name: Annotated[Text, Meta(description="The name under which it is registered.")] | None = None
    layers: Annotated[
        Items[LayerStep], Meta(description="The blocks of the result, in order; empty for those of the base.")
    ] = ()
    grafts: Items[GraftStep] = ()
    blends: BlendStep | Items[BlendStep] = ()
    adapters: Items[AdapterStep] = ()
    purify: PurifyStep | Items[PurifyStep] | None = None
    experts: ExpertStep | Items[ExpertStep] | None = None
    quantize: (
        Annotated[
            QuantizeStep | Items[QuantizeStep],
            Meta(description="The types in which matrices are written; of several rules for one, the last counts."),
        ]
        | None
    ) = None
    imatrix: (
        Annotated[Text, Meta(description="The importance matrix by which `quantize` weighs errors of rounding.")] | None
    ) = None
    encode: (
        Annotated[
            Text,
            Meta(
                description="How computed tensors are written: `same` (if it is not given), `finer`, or a tensor type."
            ),
        ]
        | None
    ) = None
    source: (
        Annotated[
            Text,
            Meta(
                description="The weights from which blends and adapters are computed: `proved` (if it is not given), "
                "the model from which the base is proved to be quantised; `given`, the base's own; or that model."
            ),
        ]
        | None
    ) = None
    accept: Annotated[Texts, Meta(description="Codes of warnings that are accepted.")] = ()
    metadata: Annotated[dict[Text, str | int | float | bool | Texts], Meta(max_length=ITEMS_MAX)] = msgspec.field(
        default_factory=dict
    )


class RecipeRequest(RecipeFile):
    """A recipe as JSON, or `{"yaml": TEXT}` with the complete recipe. Errors name the field."""

    base: Annotated[Text, Meta(description="The model that receives the tensors.")] = ""
    yaml: Annotated[Text, Meta(description="The complete recipe as YAML, without other members.")] | None = None


PLACED, GRAFTED, MERGED, ADAPTER, PURIFIED, PRUNED = "placed", "grafted", "merged", "adapter", "purified", "pruned"
QUANTISED, EDITED = "quantised", "edited"
ACTS = (PLACED, GRAFTED, MERGED, ADAPTER, PURIFIED, PRUNED, QUANTISED, EDITED)
"""The acts on a tensor, in this order; the last one is that on the header of a model whose tensors all stay."""
SOURCE = "source"
"""What a chimera uses a model for whose weights are used in place of those that were quantised from them."""

Block = Annotated[Count, Meta(description="Null outside of the blocks.")]
Number = Annotated[float, Meta(description="A finite number.")]
Experts = Annotated[Items[Count], Meta(description="Numbers of experts, from 0.")]


class GraftedExperts(Entity):
    """Experts of a stack that a model gave."""

    model: Text
    experts: Experts


GIVERS_SEPARATOR = " + "


class ActedOn(Entity):
    """What is done to tensors, and by which models."""

    model: Annotated[Text, Meta(description="The model that the tensors come from, or are computed from.")]
    acts: Acts
    merged: Annotated[Texts, Meta(description="The models that are blended into it.")] = ()
    adapters: Annotated[Texts, Meta(description="The adapters that are merged.")] = ()
    experts: Annotated[Items[GraftedExperts], Meta(description="Empty if no single experts were grafted.")] = ()
    purified_experts: Annotated[Experts, Meta(description="Empty if no single experts were purified.")] = ()
    from_block: (
        Annotated[Count, Meta(description="The (first) block that was placed here; null if none was.")] | None
    ) = None
    pruned: Annotated[
        Experts, Meta(description="The number of experts that stay, and of those before; empty if all stay.")
    ] = ()

    @property
    def givers(self) -> tuple[str, ...]:
        """The models that give the tensors or change them: the donor, those blended, the adapters; or else `model`."""
        others = tuple(dict.fromkeys((*self.merged, *self.adapters)))
        is_taken = {PLACED, GRAFTED} & set(self.acts)
        return others if others and not is_taken else tuple(dict.fromkeys((self.model, *others)))

    @property
    def givers_text(self) -> str:
        """The givers as text for people."""
        return GIVERS_SEPARATOR.join(self.givers)

    @property
    def acts_text(self) -> str:
        """The acts as text for people: `grafted (experts 5 and 17), pruned to 256 of 384 experts`."""

        def listed(experts: Sequence[int]) -> str:
            return f"{'expert' if len(experts) == 1 else 'experts'} {ranges_text(experts)}" if experts else ""

        of_model = {item.model: f" of {item.model}" if len(self.experts) > 1 else "" for item in self.experts}
        experts = {
            GRAFTED: ", ".join(listed(item.experts) + of_model[item.model] for item in self.experts),
            PURIFIED: listed(self.purified_experts),
            PLACED: self.placed_text,
        }
        pruned = {PRUNED: "pruned to {} of {} experts".format(*self.pruned)} if self.pruned else {}
        texts = {act: f"{act} ({text})" for act, text in experts.items() if text} | pruned
        return ", ".join(texts.get(act, act) for act in self.acts)

    @property
    def placed_text(self) -> str:
        """The number that a block had in its own model: `block 7`."""
        return "" if self.from_block is None else f"block {self.from_block}"


class ParentModel(Entity):
    """A model that receives tensors (the base) or gives tensors (a donor), with the acts on them."""

    model: Text
    license: Text | None
    acts: Acts

    @property
    def is_source(self) -> bool:
        """Whether it gave nothing but the weights from which tensors of another parent were quantised."""
        return self.acts == (SOURCE,)


class PlanPart(ActedOn):
    """A tensor of a planned or finished chimera, compared with the tensor of the base at the same place."""

    name: Text
    type: Word
    tower: Word
    block: Block | None
    slot: Text
    dtype_before: Word
    dtype: Word
    theta_before: Theta | None
    theta: Annotated[Theta, Meta(description="Null before the tensor is computed.")] | None
    spectral_signal: Share | None
    size_bytes_before: Bytes
    size_bytes: Bytes
    digest: Digest | None

    @property
    def dtype_text(self) -> str:
        """The tensor type, after that of the base if it differs."""
        return self.dtype if self.dtype == self.dtype_before else f"{self.dtype_before} → {self.dtype}"

    def __repr__(self) -> str:
        giver = f" from {self.givers_text}" if {PLACED, GRAFTED, MERGED, ADAPTER} & set(self.acts) else ""
        return f"<{self.name}: {self.acts_text or 'kept'}{giver}>"


THETA_COLUMNS = (
    Column("theta_before", "θ before", CellKind.DEGREES, 2),
    Column("theta", "θ", CellKind.DEGREES, 1),
)
_DONE_COLUMNS = (Column("givers", "from", shown="givers_text"), Column("acts", "done", shown="acts_text"))
PART_COLUMNS = (
    Column("block", kind=CellKind.FIGURE),
    Column("slot"),
    *_DONE_COLUMNS,
    Column("dtype", rank=3, shown="dtype_text"),
    *THETA_COLUMNS,
    Column("spectral_signal", "spectral", CellKind.SHARE, 5),
    Column("size_bytes", "size", CellKind.SIZE, 4),
)


class PlanChange(ActedOn):
    """Tensors of one type in neighbouring blocks with the same acts, adapters and experts. θ is their mean."""

    type: Word
    tower: Word
    first_block: Block | None
    last_block: Block | None
    organs: Count
    theta_before: Theta | None
    theta: Theta | None
    size_bytes_before: Bytes
    size_bytes: Bytes

    @property
    def blocks(self) -> str | None:
        """The blocks as text: `3`, `5-20`; None outside the blocks."""
        first, last = self.first_block, self.last_block
        return None if first is None else str(first) if first == last else f"{first}-{last}"

    @property
    def placed_text(self) -> str:
        """The numbers that the blocks had in their own model: `blocks 7-10`."""
        first, last = self.first_block, self.last_block
        if self.from_block is None or first is None or last is None or first == last:
            return super().placed_text
        return f"blocks {self.from_block}-{self.from_block + last - first}"


RUN_COLUMNS = (
    Column("blocks", kind=CellKind.FIGURE),
    Column("type"),
    Column("organs", "tensors", CellKind.COUNT),
)
"""Columns that say which tensors a line of a table is about, if it has the tensors of a run of blocks."""
CHANGE_COLUMNS = (*RUN_COLUMNS, *_DONE_COLUMNS, *THETA_COLUMNS, Column("size_bytes", "size", CellKind.SIZE, 3))

Likeness = Annotated[float, Meta(description="Mean correlation of the grafted matrices with the replaced ones.")] | None
Moved = (
    Annotated[
        float, Meta(description="The energy of the change over the energy of the replaced tensors; null if unknown.")
    ]
    | None
)
Uncounted = Annotated[Count, Meta(description="Tensors of which it is unknown how much they change.")]


class ScreenGroup(Entity):
    """The changed tensors of one type in one block."""

    type: Word
    tower: Word
    block: Block | None
    slot: Annotated[Word, Meta(description="Of an embedding; null for other types.")] | None = None
    organs: Count
    uncounted: Uncounted
    likeness: Likeness
    moved: Moved


class Screen(Entity):
    """What the weights say about a chimera before it is run: how related and how large its changes are. No grade."""

    sentence: Annotated[Text, Meta(description="The kinds of change, and what was measured for them.")]
    size: Annotated[Text, Meta(description="How large the change is, as text.")]
    relation: (
        Annotated[
            Word,
            Meta(
                description="The most distant relation of grafted to replaced tensors: `same` (no change), `kin`, "
                "`far kin`, `stranger`; null if no tensor is grafted or none can be compared."
            ),
        ]
        | None
    )
    likeness: Likeness
    compared: Annotated[Count, Meta(description="Matrices that were compared.")]
    moved: Moved
    organs: Annotated[Count, Meta(description="Tensors that change.")]
    uncounted: Uncounted
    share: Annotated[float, Meta(description="The share of the base's parameters that change.")] | None
    provisional: Annotated[bool, Meta(description="Whether tensors that are not computed yet were estimated.")]
    groups: Items[ScreenGroup] = ()

    @property
    def brief(self) -> str:
        """The beginning of the sentence: `Related (change 6.1e-6)`."""
        return self.sentence.partition(":")[0]


class KeptChange(Entity):
    """What is left of a change after it is written in a tensor type, measured on some rows of some tensors."""

    type: Word
    dtype_before: Word
    dtype: Word
    organs: Annotated[Count, Meta(description="Tensors of this type that are computed and written so.")]
    moved: Annotated[float, Meta(description="The energy of the change before rounding, over that of the tensors.")]
    kept: Annotated[
        Share,
        Meta(description="The share of the change that the written tensors have: 1 for all of it, 0 for nothing."),
    ]
    values: Annotated[Count, Meta(description="The values that were tried.")]
    finer: Annotated[
        dict[Word, float], Meta(max_length=ITEMS_MAX, description="The share that finer tensor types would keep.")
    ] = msgspec.field(default_factory=dict)


KEPT_COLUMNS = (
    Column("type"),
    Column("dtype", "written as"),
    Column("organs", "tensors", CellKind.COUNT),
    Column("moved", "change", CellKind.FIGURE, shown=lambda kept: weight_change_text(kept.moved, None)),
    Column("kept", "kept of it", CellKind.PERCENT),
)


class PlannedChimera(Entity):
    """The chimera that a recipe makes: its name, file, parents, screen and tensors."""

    name: Annotated[Text, Meta(description="The name under which it would be registered.")] | None
    file: Text
    size_bytes: Bytes
    base: Text
    base_size_bytes: Bytes
    parents: Annotated[Items[ParentModel], Meta(description="The base first, then in the recipe's order.")]
    license: Annotated[Text, Meta(description="The licenses of all parents, as text for people.")]
    screen: Screen
    lock_id: (
        Annotated[Digest, Meta(description="Null before all tensors are computed, and for a refused recipe.")] | None
    )
    to_compute: Annotated[Count, Meta(description="Tensors that are not computed yet.")]
    organs: Count
    changed: Annotated[Count, Meta(description="Tensors that change.")]
    kept: Annotated[
        Items[KeptChange], Meta(description="What rounding keeps of blends and adapters; empty if nothing was tried.")
    ] = ()
    changes: Annotated[
        Items[PlanChange], Meta(description="A summary of the changed tensors: one entry for each run of blocks.")
    ]
    parts: Annotated[Items[PlanPart], Meta(description="The tensors that change; with `every_part=1` all tensors.")]


class PlannedRecipe(Entity):
    """A recipe with its findings and, if its base is known, the chimera that it makes."""

    can_be_made: Annotated[bool, Meta(description="Whether there is no refusal and all warnings are accepted.")]
    findings: Annotated[Findings, Meta(description="Refusals first, then warnings.")]
    unaccepted: Annotated[Texts, Meta(description="Codes of the warnings that the recipe does not accept.")] = ()
    plan: PlannedChimera | None
    lock: (
        Annotated[
            Text,
            Meta(description="With `lock=1` the lock itself, if the recipe can be made and nothing is to be computed."),
        ]
        | None
    ) = None
    left_out: Annotated[
        Counts,
        Meta(description="The numbers of rows left out, by the name of the list; `organs` are names in findings."),
    ] = msgspec.field(default_factory=dict)

    @property
    def refusals(self) -> list[Finding]:
        """The findings that cannot be accepted."""
        return [finding for finding in self.findings if finding.severity is Severity.REFUSE]


class Reading(Entity):
    """The measures of a computed tensor."""

    theta: Theta | None
    spectral_signal: Share | None


class MadeChimera(Entity):
    """A chimera that was made: its name, its lock and the digest of its file."""

    model: Annotated[Text, Meta(description="`namespace/name@version`.")]
    lock_id: Digest
    sha256: Digest
    size_bytes: Bytes
    created: Annotated[bool, Meta(description="False if the same bytes were registered under the name before.")]
    computed: Annotated[
        dict[Text, Reading],
        Meta(max_length=ITEMS_MAX, description="The tensors that were computed for it, by the names of their tensors."),
    ] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        state = "" if self.created else ", registered before"
        return f"<{self.model}: {size_text(self.size_bytes)}, lock {self.lock_id[:12]}{state}>"

    def _repr_html_(self) -> str:
        facts = (
            ("lock", self.lock_id),
            ("sha256", self.sha256),
            ("size", size_text(self.size_bytes)),
            ("", "registered now" if self.created else "registered before"),
        )
        columns = (
            Column("computed"),
            Column("theta", "θ", CellKind.DEGREES),
            Column("spectral_signal", "spectral", CellKind.SHARE),
        )
        rows = [{"computed": name, **structs.asdict(reading)} for name, reading in self.computed.items()]
        computed = notebook.table(columns, rows) if rows else ""
        return notebook.document(notebook.heading(self.model), notebook.facts(facts), computed)


class TypeCompatibility(Entity):
    """How many tensors of one type of a donor fit into a base, and why the others do not."""

    type: Word
    fitting: Annotated[Count, Meta(description="Places of the base that accept a tensor of the donor.")]
    total: Annotated[Count, Meta(description="Places of this type in the base.")]
    refused: bool
    screen: (
        Annotated[
            Screen,
            Meta(
                description="For a graft of all that fits, without `groups`; null if nothing fits or nothing changes."
            ),
        ]
        | None
    ) = None
    findings: Findings


class Compatibility(Entity):
    """Whether tensors of one model fit into another, type by type."""

    base: Text
    donor: Text
    types: Annotated[Items[TypeCompatibility], Meta(description="Empty for an adapter.")]
    findings: Findings
    left_out: Annotated[
        Counts, Meta(description="The number of names that were left out of the findings, as `organs`.")
    ] = msgspec.field(default_factory=dict)


class FitCount(Entity, kw_only=False):
    """How many tensors of one type of a model can be grafted into a base."""

    fitting: Annotated[Count, Meta(description="Tensors that have a place in the base.")]
    equal: Annotated[Count, Meta(description="Tensors that the base already has at the same place.")]
    total: Count

    @property
    def whole(self) -> bool:
        """Whether every tensor of the type fits or is equal."""
        return self.fitting + self.equal == self.total


class FittingModel(Entity):
    """A model with tensors that fit a base."""

    model: Text
    likeness: (
        Annotated[float, Meta(description="Mean correlation of its matrices with the base's; null if not related.")]
        | None
    )
    change: Change | None = None
    types: Annotated[
        dict[Word, FitCount], Meta(max_length=ITEMS_MAX, description="The counts by type, for all types that it has.")
    ]
    same: Annotated[
        bool, Meta(description="Whether it is the same model as the base: all tensors of the two are equal.")
    ] = False


class FittingModels(Entity):
    """Models with tensors that fit a base: the same model under other names, then relatives, the most similar first,
    then others, newest first."""

    base: Text
    items: Items[FittingModel]
    more: Annotated[bool, Meta(description="Whether other models fit too, or were not examined.")]


class CellOrgan(Entity):
    """A tensor of a candidate for a cell."""

    name: Text
    slot: Text
    digest: Digest
    dtype: Word
    theta: Theta | None


class Candidate(Entity):
    """A model with tensors for a cell of the base: a type in a block."""

    model: Text
    license: Text | None
    fitting: Annotated[Count, Meta(description="Its tensors that fit.")]
    equal: Annotated[Count, Meta(description="Its tensors that the base has itself at that place.")]
    total: Annotated[Count, Meta(description="Tensors of the base in the cell.")]
    whole: Annotated[bool, Meta(description="Whether it has all tensors of the cell.")]
    theta: Theta | None
    spectral_signal: Share | None
    likeness: (
        Annotated[float, Meta(description="Mean correlation with the base's tensors; null if not comparable.")] | None
    )
    change: Change | None = None
    size_bytes: Bytes
    organs: Items[CellOrgan]


class Candidates(Entity):
    """The models with tensors for one cell of the base, best first."""

    cell: Annotated[Text, Meta(description="The cell: `organ:2`, `embed:none`, `norm:3:vision`.")]
    type: Word
    block: Block | None
    tower: Word
    slots: Texts
    query: Annotated[Text, Meta(description="The query that finds the same tensors.")]
    items: Items[Candidate]
    more: Annotated[bool, Meta(description="Whether there are more candidates.")]


class Totals(Entity):
    """The sums over tensors of a plan, with mean θ before, after, and of the tensors that the plan uses."""

    organs: Count
    changed: Count
    to_compute: Count
    theta_before: Theta | None
    theta: Annotated[Theta, Meta(description="Null before all tensors are computed.")] | None
    theta_taken: (
        Annotated[Theta, Meta(description="The mean θ of the tensors that are used as they are or as sources.")] | None
    )
    size_bytes_before: Bytes
    size_bytes: Bytes


class CellTotals(Totals):
    """The tensors of one type in one block."""

    cell: Text
    type: Word
    block: Block | None
    tower: Word
    slots: Texts
    models: Annotated[Texts, Meta(description="The models that give tensors or adapters.")]
    purified: Annotated[Count, Meta(description="Tensors that are purified.")]


class TypeTotals(Totals):
    """The tensors of one type, over all blocks."""

    type: Word


class AdapterChoice(Entity):
    """An adapter that can be merged into the base, with its findings."""

    model: Text
    findings: Findings


class CompositionState(PlannedRecipe):
    """An unfinished recipe, with the choices for the next step: cells, adapters, models that fit, candidates."""

    base: Text
    recipe: RecipeFile | None
    yaml: Text | None
    cells: Items[CellTotals]
    types: Items[TypeTotals]
    adapters: Items[AdapterChoice]
    fitting: Annotated[FittingModels, Meta(description="Null if the search took too long.")] | None
    candidates: Annotated[Candidates, Meta(description="The candidates for the requested cell.")] | None
