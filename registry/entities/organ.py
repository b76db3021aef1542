"""Tensors: at their places, by digest with all measurements, and counts of search results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, field, structs

from organs.registry import notebook
from organs.registry.amounts import theta_text
from organs.registry.anatomy import expert_name
from organs.registry.columns import NONFINITE_MARK, CellKind, Column, data_only, for_people
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
    Likeness,
    ModelText,
    Page,
    RequestBody,
    Shape,
    Text,
    Texts,
    Theta,
    Word,
)
from organs.registry.entities.gain import MeasuredGain
from organs.registry.entities.storage import OrganStorage
from organs.registry.measures import CAUTIONS, MEASURES

PLACES_MAX = 100
"""The most places of one tensor that are listed."""
LIKENESS_TO_ORGAN = (
    "The correlation of the weights at the same positions: 1 for equal weights, about 0 for unrelated models."
)
COLUMNS = (
    Column("digest", kind=CellKind.DIGEST),
    Column("model", kind=CellKind.NAME),
    Column("name", "tensor", CellKind.NAME, shown="marked_label"),
    Column("type", rank=6),
    *data_only("tower", "block", "slot", "expert"),
    Column("dtype", rank=4),
    Column("shape", rank=7),
    Column("size_bytes", "size", CellKind.SIZE, 5, meaning="Size of the tensor in a GGUF file.", sort="size"),
    *(
        Column(
            measure.name,
            measure.label,
            CellKind.DEGREES if measure.name == "theta" else CellKind.FIGURE,
            {"theta": 0, "spectral_signal": 3}.get(measure.name, 8),
            "" if measure.name == "theta" else measure.text_of,
            measure.meaning,
            measure.field,
            data_only=not measure.shown,
        )
        for measure in MEASURES.values()
    ),
    *data_only("theta_caution", "architecture", "license", "nonfinite"),
    Column("likeness", kind=CellKind.SHARE, meaning=LIKENESS_TO_ORGAN),
    Column(
        "change",
        kind=CellKind.CHANGE,
        meaning="The energy of the difference from the tensor of the base at the same place, as a share of their "
        "energy: 0 for equal weights, 1e-5 for a light fine-tune, 2 for unrelated models. Vectors have the change of "
        "the two models.",
        sort="likeness",
    ),
    *data_only("model_state"),
    Column(
        "gain",
        kind=CellKind.FIGURE,
        meaning="How much lower the perplexity of a validated chimera with this tensor is than its base's.",
        sort="gain",
    ),
)
"""Columns of lists of tensors, in the order of their CSV file."""


def _measure(name: str) -> Meta:
    measure = MEASURES[name]
    return Meta(ge=measure.low, le=measure.high, description=f"{measure.meaning} Null if it was not measured.")


_CAUTIONS = " ".join(f"`{name}`: {meaning}." for name, meaning in CAUTIONS.items())


class Measures(Entity):
    """The measures of one tensor (`registry.measures`). None if unknown, or unknown to an older registry."""

    theta: Annotated[float, _measure("theta")] | None = None
    magnitude: Annotated[float, _measure("magnitude")] | None = None
    signal: Annotated[float, _measure("signal")] | None = None
    spectral_signal: Annotated[float, _measure("spectral_signal")] | None = None
    stable_rank: Annotated[float, _measure("stable_rank")] | None = None
    effective_rank: Annotated[float, _measure("effective_rank")] | None = None


class PlacedOrgan(Measures):
    """A tensor at its place in a model."""

    digest: Digest
    model: ModelText
    name: Annotated[str, Meta(max_length=ITEMS_MAX, description="The tensor's name in its file. It is untrusted text.")]
    type: Word
    tower: Word
    block: Annotated[Count, Meta(description="The number of the block (layer); null outside of the blocks.")] | None
    slot: Annotated[
        str, Meta(max_length=ITEMS_MAX, description="The place in the block, which tells what the tensor does.")
    ]
    dtype: Annotated[str, Meta(max_length=64, description="The tensor type, such as `Q8_0`.")]
    shape: Shape
    size_bytes: Bytes
    architecture: Text | None
    license: Text | None
    expert: (
        Annotated[Count, Meta(description="The number of an expert in its stack; null for a whole tensor.")] | None
    ) = None
    nonfinite: Annotated[Count, Meta(description="Values that are NaN or infinite; null if not counted.")] | None
    theta_caution: Annotated[Word, Meta(description=f"Why θ is uncertain; empty if it is not. {_CAUTIONS}")] = ""
    likeness: Likeness | None = None
    """In a search with `like:`, the correlation of the fingerprints; with a base, the likeness to its tensor there."""
    change: Change | None = None
    """In a search with a base, the change from its tensor there."""
    gain: MeasuredGain | None = None
    """In a search with a base, `gain` or `on`: the largest settled gain of a chimera that its donor gave it to."""
    model_state: Word = "visible"

    def __repr__(self) -> str:
        return f"<{self.label} of {self.model}: {self.shape_text} {self.dtype}, θ {self.theta_text}>"

    @property
    def label(self) -> str:
        """The tensor as text for people; an expert with its number: `blk.0.ffn_up_exps.weight[17]`."""
        return self.name if self.expert is None else expert_name(self.name, self.expert)

    @property
    def marked_label(self) -> str:
        """The tensor as text for people, with a mark if values are NaN or infinite."""
        return f"{self.label} {NONFINITE_MARK}" if self.nonfinite else self.label

    @property
    def theta_text(self) -> str:
        """θ as text for people, marked if it is uncertain."""
        return theta_text(self.theta, self.theta_caution)

    @property
    def shape_text(self) -> str:
        """The shape as text for people: `192×512`."""
        return "×".join(map(str, self.shape))


class ThetaBin(Entity):
    """The count of a bin of 5 degrees, with its lower edge; null is for tensors without θ."""

    lower: Annotated[int, Meta(ge=0, le=85)] | None
    count: Count


class FacetCounts(Entity):
    """The distribution of the tensors that match a query. The counts of a field ignore the filter by that field."""

    total: Annotated[Count, Meta(description="Null if there are too many to count exactly.")] | None
    exact: Annotated[bool, Meta(description="False if a share was estimated, or a filter was left out.")]
    fields: Annotated[
        dict[Word, Counts],
        Meta(max_length=64, description="By field (type, slot, dtype, arch, license) and value; largest counts first."),
    ]
    theta: Annotated[tuple[ThetaBin, ...], Meta(max_length=64)]
    uncounted: Texts = ()
    """The filters that the counts leave out, because their matches would have to be counted one by one."""
    hurried: bool = False
    """Whether the count took too long and was stopped. A later answer to the same query may be better."""

    @property
    def theta_counts(self) -> dict[int | None, int]:
        """Counts by the lower edge of a bin of θ; None is for tensors without θ."""
        return {theta_bin.lower: theta_bin.count for theta_bin in self.theta}


class OrganPage(Page[PlacedOrgan]):
    """One page of a search for tensors. `facets` has the counts, if they were requested."""

    facets: FacetCounts | None = None

    def __repr__(self) -> str:
        return f"<{self.summary('tensor')}>"

    def _repr_html_(self) -> str:
        return notebook.document(organs_html(self.items), *self.below())


class KnownOrgan(Entity):
    """A short description of a tensor. Bytes with several dtypes or shapes are several tensors."""

    digest: Digest
    dtype: Word
    shape: Shape
    elements: Count
    size_bytes: Bytes
    theta: Theta | None
    spectral_signal: Annotated[float, Meta(ge=0, le=1)] | None


class KnownOrgans(Page[KnownOrgan]):
    """The registered tensors among the digests of a request. `next` is always null."""

    absent: Annotated[Items[Digest], Meta(description="The digests without a registered tensor.")]


class Digests(RequestBody):
    """Digests to look up."""

    digests: Annotated[
        tuple[Annotated[str, Meta(pattern="^(sha256:)?[0-9a-f]{64}$")], ...], Meta(min_length=1, max_length=1000)
    ]


class OrganMeasurement(Measures, omit_defaults=True):
    """The results of one method. Unknown values are left out, and so are counts of 0 and `constant` if it is false."""

    method: Annotated[
        str, Meta(max_length=64, description="`z1` gives θ and the values behind it, `mp1` the spectrum.")
    ]
    sample_size: Annotated[Count, Meta(description="Values that were read.")]
    entropy: float | None = None
    kurtosis: float | None = None
    coherence: float | None = None
    mean: float | None = None
    standard_deviation: float | None = None
    minimum: float | None = None
    maximum: float | None = None
    nan_count: Count = 0
    infinite_count: Count = 0
    constant: bool = False
    reason: Annotated[str, Meta(max_length=ITEMS_MAX, description="Why something was not measured.")] | None = None

    def readings(self) -> dict[str, float | int | bool]:
        """Return the numbers that were measured, by name."""
        values = structs.asdict(self)
        defaults = {"nan_count": 0, "infinite_count": 0, "constant": False}
        return {
            name: value
            for name, value in values.items()
            if name not in ("method", "reason") and value is not None and (name not in defaults or value)
        }


class OtherForm(Entity):
    """The same bytes as a tensor of another dtype or shape."""

    dtype: Word
    shape: Shape
    measurements: Annotated[tuple[OrganMeasurement, ...], Meta(max_length=64)]


class OrganSource(Entity):
    """The tensor from which another tensor was computed."""

    digest: Digest
    dtype: Word
    shape: Shape


class AddedAdapter(Entity):
    """A low-rank product that was added to a tensor: `scale` · (`alpha` / rank) · B·A."""

    a: Digest
    b: Annotated[Digest, Meta(description="Null if `a` is a whole tensor, which replaced the tensor.")] | None
    alpha: float
    scale: float
    magnitude: Annotated[Digest, Meta(description="The magnitudes of a DoRA.")] | None = None


class MadeOrgan(Entity):
    """How a tensor was computed, and from which source."""

    acts: Acts
    method: Annotated[Word, Meta(description="The method of purification.")] | None
    keep: Annotated[float, Meta(description="The share of the energy that spectral purification kept.")] | None
    adapters: Items[AddedAdapter]
    dtype: Word
    source: OrganSource
    theta_before: Theta | None
    experts: Annotated[Items[Count], Meta(description="Experts of the stack that came from other stacks.")] = ()
    purified_experts: Annotated[Items[Count], Meta(description="Experts that were purified; empty for all.")] = ()
    kept_experts: Annotated[Items[Count], Meta(description="The experts that stay; empty for all.")] = ()
    blend: Annotated[Word, Meta(description="The method of a blend.")] | None = None
    blended: Annotated[Items[Digest], Meta(description="The tensors that were blended into it.")] = ()


class DerivedOrgan(Entity):
    """A tensor that was computed from another tensor, at one of its places."""

    digest: Digest
    name: Text
    model: ModelText
    act: Text


class Organ(Entity):
    """A tensor with its measurements and the first 100 of its places."""

    digest: Digest
    dtype: Word
    shape: Shape
    elements: Count
    nonfinite: Annotated[Count, Meta(description="Values that are NaN or infinite; null if not counted.")] | None
    size_bytes: Bytes
    stored_bytes: Annotated[Count, Meta(description="Bytes on the disk. Null unless you may see stored sizes.")] | None
    codec: (
        Annotated[str, Meta(max_length=64, description="The compression and its version. Null as `stored_bytes`.")]
        | None
    )
    storage: (
        Annotated[OrganStorage, Meta(description="How it is stored, and of what. Null as `stored_bytes`.")] | None
    ) = None
    experts: Annotated[Count, Meta(description="Experts in a stack that is stored as its experts, else 0.")] = 0
    state: Annotated[str, Meta(max_length=64, description="`corrupt` if the stored bytes failed a check.")]
    measurements: Annotated[tuple[OrganMeasurement, ...], Meta(max_length=64)]
    also: Annotated[tuple[OtherForm, ...], Meta(max_length=PLACES_MAX)]
    places: Annotated[tuple[PlacedOrgan, ...], Meta(max_length=PLACES_MAX * PLACES_MAX)]
    made: Annotated[Items[MadeOrgan], Meta(description="Empty for a tensor that was not computed.")] = field(default=())
    made_into: Items[DerivedOrgan] = field(default=())

    def measured(self, name: str) -> float | None:
        """Return the measure `name` from any method; None if it was not measured."""
        values = (getattr(measurement, name, None) for measurement in self.measurements)
        return next((value for value in values if value is not None), None)


def organs_html(organs: Sequence[PlacedOrgan]) -> str:
    """Return tensors as a table for notebooks."""
    return notebook.table(for_people(COLUMNS, organs), organs)
