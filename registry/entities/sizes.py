"""Sizes of a model: files with mixes of tensor types, how far each is from the source, and the request for one."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry import notebook
from organs.registry.amounts import MULTIPLE_FROM, NO_VALUE, nats_text, perplexity_text
from organs.registry.columns import CellKind, Column, data_only, for_people
from organs.registry.entities.base import Bytes, Count, Entity, Items, ModelText, RequestBody, Share, Text, Texts, Word
from organs.registry.entities.memory import MemoryCount
from organs.registry.entities.plan import MadeChimera

CHOSEN, PLAIN, FOUND = "chosen", "plain", "found"
"""The kinds of sizes: a mix that was chosen for its size; a mix that llama.cpp has under a name; and a registered file
that is a quantisation of the model by its name, and was not measured beside it."""


MINUTES_LEAST, MINUTES_MAX = 0.1, 1440.0
"""Of the time for the measurements of a search."""


class SizeReading(Entity):
    """How far a file with a mix of tensor types is from its source, measured on windows that no choice used."""

    bits: Annotated[float, Meta(ge=0, description="Bits of the file for each weight.")]
    divergence: (
        Annotated[
            float,
            Meta(
                description="Mean Kullback-Leibler divergence of the distribution of the next token from the source's, "
                "in nats."
            ),
        ]
        | None
    ) = None
    divergence_margin: (
        Annotated[float, Meta(description="The divergence plus and minus this is its interval of 90%.")] | None
    ) = None
    divergence_99: Annotated[float, Meta(description="99% of the tokens have a smaller divergence.")] | None = None
    same_top: (
        Annotated[Share, Meta(description="The share of tokens at which both expect the same token most.")] | None
    ) = None
    ratio: Annotated[float, Meta(description="Its perplexity divided by that of the source.")] | None = None
    tokens: Annotated[Count, Meta(description="The tokens on which it was measured.")] = 0
    memory_bytes: (
        Annotated[
            Bytes,
            Meta(
                description="What llama.cpp takes for the file with `memory_context` tokens, by its own count with the "
                "default options; null unless it was made for a memory."
            ),
        ]
        | None
    ) = None
    memory_context: Annotated[Count, Meta(description="The tokens of that context.")] | None = None

    @property
    def divergence_text(self) -> str:
        """The divergence with its margin: `0.0123 ± 0.0008`; a dash if it was not measured."""
        if self.divergence is None:
            return NO_VALUE
        return nats_text(self.divergence, self.divergence_margin)

    @property
    def perplexity_change(self) -> str:
        """The change of the perplexity in percent of the source's: `+0.8%`, or a multiple; a dash without one."""
        if self.ratio is None:
            return NO_VALUE
        if self.ratio >= MULTIPLE_FROM:
            return f"× {perplexity_text(self.ratio)}"
        return f"{round(100.0 * (self.ratio - 1.0), 1) + 0.0:+.1f}%".replace("-", "−")


class SizePoint(SizeReading):
    """A size of a model: a point of the curve of size against divergence if it was measured."""

    kind: Annotated[
        Word,
        Meta(
            description="`chosen` for its size; `plain`, a mix of llama.cpp by its name; or `found`, a quantisation of "
            "the model by its name that was not measured beside it."
        ),
    ]
    label: Annotated[Text, Meta(description="What was asked for, or the name of the mix: `4.5 bits`, `Q4_K_M`.")]
    tag: Annotated[Word, Meta(description="The name under which clients download it: `Q4_K_M`, `4.5bpw`.")]
    size_bytes: Bytes
    model: Annotated[ModelText, Meta(description="The model with this mix; null if it is not registered.")] | None


COLUMNS = (
    Column("label", "size for"),
    Column("kind", rank=4),
    Column("size_bytes", "size", CellKind.SIZE),
    Column("bits", "bits a weight", CellKind.FIGURE, rank=3, shown=lambda point: f"{point.bits:.2f}"),
    Column("divergence", kind=CellKind.FIGURE, shown="divergence_text"),
    Column(
        "divergence_99",
        "99% below",
        CellKind.FIGURE,
        rank=3,
        shown=lambda point: NO_VALUE if point.divergence_99 is None else f"{point.divergence_99:.2g}",
    ),
    Column(
        "same_top",
        "same top token",
        CellKind.FIGURE,
        rank=3,
        shown=lambda point: NO_VALUE if point.same_top is None else f"{point.same_top:.1%}",
    ),
    Column("ratio", "perplexity", CellKind.FIGURE, rank=3, shown="perplexity_change"),
    *data_only("divergence_margin", "tokens", "memory_bytes", "memory_context", "tag"),
    Column("model", kind=CellKind.NAME, rank=1, shown=lambda point: point.model or NO_VALUE),
)
"""Columns of the sizes of a model."""


class SizeCurve(Entity):
    """The sizes of a model, the smallest first: what was measured, and other registered quantisations of it."""

    source: ModelText
    source_size_bytes: Bytes
    runtime: Annotated[Text, Meta(description="Of the newest measurement; empty without one.")]
    texts: Annotated[Word, Meta(description="The digest of the texts of the newest measurement.")]
    points: Items[SizePoint]

    def _repr_html_(self) -> str:
        return notebook.document(notebook.table(for_people(COLUMNS, self.points), self.points))


class QuantizationRequest(RequestBody):
    """A model, and what is wanted: exactly one of `type`, `size_bytes`, `bits`, `like` and `memory_bytes`."""

    model: Annotated[Text, Meta(description="The source: `namespace/name`, with or without `@version`.")]
    type: Annotated[Text, Meta(description="A mix of llama.cpp by its name, such as `Q4_K_M`.")] | None = None
    size_bytes: Annotated[int, Meta(ge=1, le=2**63 - 1, description="The most bytes of the file.")] | None = None
    bits: Annotated[float, Meta(gt=0, le=32, description="The most bits of the file for each weight.")] | None = None
    like: (
        Annotated[Text, Meta(description="The most bytes are those of this mix, or of this registered model.")] | None
    ) = None
    memory_bytes: (
        Annotated[
            int,
            Meta(
                ge=1, le=2**63 - 1, description="The most memory that llama.cpp takes on a processor, by its own count."
            ),
        ]
        | None
    ) = None
    context: (
        Annotated[int, Meta(ge=1, le=1 << 24, description="Tokens of the context that counts to the memory.")] | None
    ) = None
    cache_type: Annotated[Text, Meta(description="The tensor type of that context's cache.")] = "f16"
    micro_batch: Annotated[int, Meta(ge=1, le=1 << 16, description="The most tokens that are computed at once.")] = 512
    flash_attention: Annotated[Text, Meta(description="`auto`, `on` or `off`.")] = "auto"
    imatrix: Annotated[Text, Meta(description="The name of a registered importance matrix.")] | None = None
    name: Annotated[Text, Meta(description="The name in your own namespace.")] | None = None
    accept: Annotated[Texts, Meta(description="Codes of warnings that you accept, such as `rounded-twice`.")] = ()
    minutes: (
        Annotated[float, Meta(ge=MINUTES_LEAST, le=MINUTES_MAX, description="The most time for measurements.")] | None
    ) = None


class SizedModel(Entity):
    """A model that was made for a size, and how far it is from its source."""

    chimera: MadeChimera
    source: ModelText
    point: SizePoint
    plain: Annotated[SizePoint, Meta(description="The largest plain mix within the limit; null if none is.")] | None
    memory: Annotated[MemoryCount, Meta(description="What the made file takes, if a memory was wanted.")] | None = None
