"""A LoRA adapter that was extracted from a fine-tune, and how much of the fine-tune's change it keeps."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry.amounts import names_text, percent_text, plural_text
from organs.registry.anatomy import type_name
from organs.registry.columns import CellKind, Column, data_only
from organs.registry.entities.base import Bytes, Count, Entity, Items, ModelText, Share, Text, Texts, Word

WholeShare = Annotated[Share, Meta(description="Its part of the whole change: of the energy of all differences.")]
KeptShare = Annotated[
    Share, Meta(description="1 − ‖D − B·A‖² / ‖D‖², where D is the difference of the weights: over all of its values.")
]


class ExtractedOrgan(Entity):
    """A changed matrix or stack of experts, and its factors."""

    name: Text
    type: Word
    rank: Count
    of_change: WholeShare
    kept: KeptShare
    size_bytes: Bytes


class ExtractedType(Entity):
    """The changed matrices of a type of tensor."""

    type: Word
    matrices: Annotated[Count, Meta(description="Of a stack, each expert.")]
    least_rank: Count
    largest_rank: Count
    of_change: WholeShare
    kept: KeptShare
    size_bytes: Annotated[Bytes, Meta(description="The size of the factors.")]


def _ranks_text(kind: ExtractedType) -> str:
    ranks = sorted({kind.least_rank, kind.largest_rank})
    return "-".join(map(str, ranks))


EXTRACTED_COLUMNS = (
    Column("type", shown=lambda kind: type_name(kind.type)),
    Column("matrices", kind=CellKind.COUNT),
    Column("ranks", "rank", CellKind.FIGURE, shown=_ranks_text),
    Column("of_change", "of the change", CellKind.PERCENT),
    Column("kept", kind=CellKind.PERCENT),
    Column("size_bytes", "size", CellKind.SIZE),
    *data_only("least_rank", "largest_rank"),
)


class LeftOutOrgans(Entity):
    """Changed tensors that the adapter leaves out."""

    reason: Text
    organs: Texts
    of_change: WholeShare

    @property
    def sentence(self) -> str:
        """What is left out and why, in one sentence."""
        organs = plural_text(len(self.organs), "changed tensor", "changed tensors")
        share = percent_text(self.of_change)
        return f"Left out: {organs} ({names_text(self.organs)}), {share} of the change: {self.reason}."


class RankShare(Entity):
    """What an adapter of a rank keeps."""

    rank: Count
    kept: Annotated[Share, Meta(description="Of the whole change, with what is left out.")]
    size_bytes: Annotated[Bytes, Meta(description="The size of the factors.")]


RANK_COLUMNS = (
    Column("rank", kind=CellKind.COUNT),
    Column("kept", kind=CellKind.PERCENT),
    Column("size_bytes", "size", CellKind.SIZE),
)


class ExtractedAdapter(Entity):
    """A LoRA adapter from the difference of two models, and which share of the difference it keeps.

    Energies are sums of squares of values.
    """

    child: Text
    base: Text
    rank: Annotated[Count, Meta(description="The largest rank.")]
    kept: Annotated[Share, Meta(description="Of the whole change, with what is left out.")]
    size_bytes: Annotated[Bytes, Meta(description="The size of the factors.")]
    types: Items[ExtractedType]
    ranks: Annotated[Items[RankShare], Meta(description="What each of the wanted ranks keeps.")]
    organs: Items[ExtractedOrgan]
    left_out: Items[LeftOutOrgans]
    unchanged: Annotated[Count, Meta(description="Tensors that are the same in both models.")]
    notes: Annotated[Texts, Meta(description="What to know about the two models.")]
    model: Annotated[ModelText | None, Meta(description="The adapter, if it was registered.")] = None
    file: Annotated[Text | None, Meta(description="The file or folder that was written.")] = None

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        matrices = plural_text(sum(kind.matrices for kind in self.types), "matrix", "matrices")
        of_change = sum(kind.of_change for kind in self.types)
        kept = min(1.0, self.kept / of_change) if of_change else 0.0
        same = f"; {plural_text(self.unchanged, 'tensor is', 'tensors are')} the same in both" if self.unchanged else ""
        return (
            f"A LoRA of rank {self.rank} keeps {percent_text(kept)} of the change of {matrices}, and "
            f"{percent_text(self.kept)} of all that changed from {self.base} to {self.child}{same}."
        )
