"""Models: as lines of lists, and with their tensors."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry import notebook
from organs.registry.amounts import count_text, size_text, theta_text
from organs.registry.columns import NONFINITE_MARK, CellKind, Column, data_only, for_people
from organs.registry.entities.base import (
    ITEMS_MAX,
    WHOLE_MAX,
    Bytes,
    Change,
    Count,
    Digest,
    Entity,
    Items,
    Likeness,
    ModelText,
    Page,
    Share,
    Text,
    Texts,
    Theta,
    Time,
    Word,
)
from organs.registry.entities.finding import Finding
from organs.registry.entities.gain import MeasuredGain
from organs.registry.entities.lineage import EDGES_MAX, LineageEdge
from organs.registry.entities.plan import RecipeFile
from organs.registry.entities.published import CardImage
from organs.registry.entities.storage import ModelStorage
from organs.registry.entities.validation import SourceDivergence
from organs.registry.upload_limits import CARD_IMAGES_MAX

COLUMNS = (
    Column("name", "model", CellKind.NAME),
    *data_only("title"),
    Column("kind", rank=4, shown="marked_kind"),
    Column("architecture", rank=5),
    Column("license", rank=3),
    Column("parameters", kind=CellKind.LARGE, rank=2, meaning="Number of weights.", sort="params"),
    Column("tensors", kind=CellKind.COUNT, rank=6),
    Column("size_bytes", "size", CellKind.SIZE, meaning="Size of all files.", sort="size"),
    Column(
        "mean_theta", "mean θ", CellKind.DEGREES, 1, meaning="Mean of θ over all tensors, in degrees.", sort="theta"
    ),
    Column(
        "mean_signal",
        "mean sin θ",
        CellKind.SHARE,
        meaning="Mean of sin θ over all tensors, from 0 to 1.",
        sort="signal",
        data_only=True,
    ),
    *data_only("complete", "digest"),
    Column("created_at", "added", CellKind.FIGURE, 9, meaning="When the model was added.", sort="new"),
    Column("downloads", kind=CellKind.COUNT, rank=7, meaning="Number of downloads.", sort="downloads"),
    Column("grafts", "uses", CellKind.COUNT, 8, meaning="Number of chimeras that use its tensors.", sort="grafts"),
    *data_only("nonfinite_tensors", "likeness"),
    Column(
        "change",
        kind=CellKind.CHANGE,
        meaning="Energy of the difference from the matrices of the base, as a share of their energy: 1e-5 is a light "
        "fine-tune.",
        sort="likeness",
    ),
    Column(
        "gain",
        kind=CellKind.FIGURE,
        meaning="Fall of the perplexity: of a chimera against its base, or of a base with tensors of this model.",
        sort="gain",
    ),
)
"""Columns of lists of models, in the order of their CSV file."""


class ModelSummary(Entity):
    """A model as a line of a list."""

    name: ModelText
    title: Annotated[str, Meta(description="The title from its file or its owner. It is untrusted text.")] | None
    kind: Annotated[
        Word,
        Meta(description="model, adapter or vocabulary; partial if tensors are missing, chimera if composed here."),
    ]
    architecture: Text | None
    parameters: Annotated[Count, Meta(description="The number of weights.")]
    tensors: Annotated[Count, Meta(description="The number of tensors.")]
    size_bytes: Annotated[Count, Meta(description="Bytes of its files.")]
    mean_theta: Annotated[Theta, Meta(description="Mean θ over its tensors, in degrees. It is not a grade.")] | None
    theta_caution: Annotated[
        Word, Meta(description="`most` if most of its tensors have an uncertain θ, else empty.")
    ] = ""
    mean_signal: Share | None
    license: Text | None
    complete: Annotated[bool, Meta(description="Whether all of its tensors are registered.")]
    digest: Annotated[Digest, Meta(description="SHA-256 of its single file, or of the digests of its files in order.")]
    created_at: Annotated[Time, Meta(description="When it was registered, in UTC.")]
    state: Annotated[Word, Meta(description="visible, or yanked: found only by its exact name.")]
    downloads: Annotated[int, Meta(ge=0, le=WHOLE_MAX, description="Downloads of the model or of one of its tensors.")]
    grafts: Annotated[Count, Meta(description="Visible chimeras that have tensors of the model.")]
    nonfinite_tensors: (
        Annotated[Count, Meta(description="Tensors with NaN or infinite values; null if some were not counted.")] | None
    ) = None
    likeness: (
        Annotated[Likeness, Meta(description="Only in searches with `kin:`: its likeness to that model.")] | None
    ) = None
    change: Change | None = None
    """Only in searches with `kin:`: its change from that model."""
    gain: (
        Annotated[
            MeasuredGain,
            Meta(description="Only in searches by `gain` or `on`: its largest settled gain, as a chimera or a donor."),
        ]
        | None
    ) = None

    @property
    def marked_kind(self) -> str:
        """The kind as text for people, with a mark if weights are NaN or infinite."""
        return f"{self.kind} {NONFINITE_MARK}" if self.nonfinite_tensors else self.kind

    def __repr__(self) -> str:
        size, theta = size_text(self.size_bytes), theta_text(self.mean_theta, self.theta_caution)
        return f"<{self.name}: {self.kind}, {count_text(self.parameters)} parameters, {size}, mean θ {theta}>"


class TypeSummary(Entity):
    """The tensors of one type in a model."""

    type: Word
    tensors: Count
    size_bytes: Bytes
    mean_theta: Theta | None
    theta_caution: Annotated[
        Word, Meta(description="`most` if most of its tensors have an uncertain θ, else empty.")
    ] = ""
    mean_spectral_signal: Share | None


TYPE_COLUMNS = (
    Column("type"),
    Column("tensors", kind=CellKind.COUNT),
    Column("size_bytes", "size", CellKind.SIZE),
    Column("mean_theta", "mean θ", CellKind.DEGREES),
    Column("mean_spectral_signal", "mean spectral", CellKind.SHARE),
)


class ModelFile(Entity):
    """A file of a model as it was ingested."""

    name: Text
    size_bytes: Bytes
    sha256: Digest


class MetadataEntry(Entity):
    """An entry of a model's header as text. Long values are cut. For an array, the text has its length."""

    key: Text
    type: Text
    value: Text


class RuntimeText(Entity):
    """A text that another tool keeps beside a model. It is untrusted, and never run as a template."""

    kind: Annotated[Word, Meta(description="template, parameters, license or renderer.")]
    source: Annotated[Text, Meta(description="The tool, and its name for the model.")]
    text: Annotated[Text, Meta(description="Long texts are cut.")]


class IngestSummary(Entity, omit_defaults=True):
    """The public part of the report of an ingest. It does not disclose how much of the model was new.

    A model that was composed in this registry was not read from files, so only its size is reported.
    """

    model: ModelText | None = None
    digest: Digest | None = None
    organs: Count | None = None
    size_bytes: Bytes | None = None
    flags: Texts | None = None
    notes: Texts | None = None


class Composed(Entity):
    """The lock, the parents and the recipe of a model that was composed here."""

    lock_id: Digest
    parents: Annotated[Texts, Meta(description="The base first.")]
    recipe: RecipeFile


class Model(ModelSummary):
    """A model with all of its data except its tensors, which are in separate pages."""

    other_names: Annotated[Texts, Meta(description="Other names that lead to it, without versions.")] = ()
    chimeras: Annotated[Count, Meta(description="Visible chimeras that have it as their base or as a donor.")] = 0
    contributor: Annotated[Text, Meta(description="The account that added it.")]
    description: Annotated[Text, Meta(description="Markdown, from its owner or its file.")] | None
    images: Annotated[tuple[CardImage, ...], Meta(max_length=CARD_IMAGES_MAX, description="Images of its card.")] = ()
    tags: Texts
    state_reason: Annotated[Text, Meta(description="Why it was yanked.")] | None
    changed_at: (
        Annotated[Time, Meta(description="When its state or description (title, license ...) last changed.")] | None
    )
    flags: Annotated[Texts, Meta(description="Unusual properties of its files.")]
    unassemblable: Annotated[
        Texts, Meta(description="Why its file cannot be written again; empty for nearly all models.")
    ]
    types: Items[TypeSummary]
    experts: Annotated[Count, Meta(description="Experts of its stacks that are recorded one by one.")]
    files: Items[ModelFile]
    facts: Annotated[
        dict[Text, Text],
        Meta(max_length=ITEMS_MAX, description="Facts from its header and its tensors, as short texts by name."),
    ]
    metadata: Items[MetadataEntry]
    texts: Annotated[
        Items[RuntimeText], Meta(description="Template, parameters and licenses that a tool such as Ollama keeps.")
    ] = ()
    ingest: Annotated[IngestSummary, Meta(description="The report of its ingest.")] | None
    composed: (
        Annotated[Composed, Meta(description="How it was composed in this registry; null for any other model.")] | None
    )
    from_source: (
        Annotated[SourceDivergence, Meta(description="Of a measured quantisation: how far it is from its source.")]
        | None
    ) = None
    lineage: Annotated[
        tuple[LineageEdge, ...],
        Meta(max_length=EDGES_MAX, description="Parents, then children, then relatives, the most similar first."),
    ]
    lineage_left_out: Annotated[Count, Meta(description="Edges beyond the first 200.")]
    storage: (
        Annotated[ModelStorage, Meta(description="How its tensors are stored. Null unless you may see stored sizes.")]
        | None
    ) = None
    findings: Annotated[
        tuple[Finding, ...],
        Meta(
            max_length=EDGES_MAX,
            description="Where declared and measured lineage disagree; parents that were yanked or removed.",
        ),
    ]

    @property
    def is_chimera(self) -> bool:
        """Whether it was composed in this registry."""
        return self.composed is not None

    @property
    def lock_id(self) -> Digest | None:
        """The SHA-256 of its lock; None unless it was composed in this registry."""
        return None if self.composed is None else self.composed.lock_id


class ModelPage(Page[ModelSummary]):
    """One page of models. Iteration yields them."""

    def __repr__(self) -> str:
        return f"<{self.summary('model')}>"

    def _repr_html_(self) -> str:
        return notebook.document(notebook.table(for_people(COLUMNS, self.items), self.items), *self.below())


class Quantisation(Entity):
    """Another quantisation or version of a model, in a folded list."""

    label: Annotated[Text, Meta(description="What tells it from the others: `Q4_K_M`, `version 2`.")]
    model: ModelSummary


class FoldedModel(Entity):
    """A model as an item of a list, with the other models of its namespace that differ only in their quantisation."""

    title: Annotated[Text, Meta(description="The name without the quantisation.")]
    label: Annotated[Text, Meta(description="The quantisation of the listed model.")]
    model: ModelSummary
    tags: Annotated[Texts, Meta(description="The first tags of the listed model.")]
    others: Annotated[Items[Quantisation], Meta(description="The smallest first.")]
    left_out: Annotated[Count, Meta(description="Others that are not listed.")]


class FoldedModelPage(Page[FoldedModel]):
    """One page of models with their quantisations folded."""
