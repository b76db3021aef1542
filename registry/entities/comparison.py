"""Comparison: two models side by side."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry.amounts import names_text
from organs.registry.columns import CellKind, Column, data_only
from organs.registry.entities.base import (
    Change,
    Count,
    Digest,
    Entity,
    Items,
    Likeness,
    ModelText,
    Shape,
    Share,
    Text,
    Texts,
    Theta,
    Word,
)

Block = Annotated[Count | None, Meta(description="The number of the block (layer); null outside of the blocks.")]
Caution = Annotated[Word, Meta(description="`most` if most of its tensors have an uncertain θ, else empty.")]
ThetaChange = Annotated[float, Meta(ge=-90, le=90, description="Degrees of θ, second minus first.")]


class ComparedCounts(Entity):
    """The numbers of tensors of two models, and of compared tensors."""

    compared: Annotated[Count, Meta(description="Matrices that were compared.")]
    first_matrices: Count
    second_matrices: Count
    first: Annotated[Count, Meta(description="Tensors of the first model.")]
    second: Annotated[Count, Meta(description="Tensors of the second model.")]
    identical: Annotated[Count, Meta(description="Places where both models have the same bytes, including vectors.")]


class ComparedType(Entity):
    """The tensors of one type in two models."""

    type: Word
    first_theta: Annotated[Theta | None, Meta(description="Mean θ of the first model, in degrees.")]
    first_caution: Caution = ""
    second_theta: Theta | None
    second_caution: Caution = ""
    difference: ThetaChange | None
    likeness: Likeness | None
    change: Change | None = None
    compared: Count


class ComparedBlock(Entity):
    """The compared tensors of one block."""

    tower: Word
    block: Block
    likeness: Likeness
    change: Change | None = None
    compared: Count

    @property
    def label(self) -> str:
        """The block as text: `3`, `vision 3`, or `outside` for tensors outside of the blocks."""
        label = "outside" if self.block is None else str(self.block)
        return label if self.tower == "text" else f"{self.tower} {label}"


class ComparedOrgan(Entity):
    """Two compared tensors at the same place. Name and type are those of the first model."""

    name: Text
    type: Word
    tower: Word
    block: Block
    slot: Text
    shape: Shape
    likeness: Likeness
    change: Change | None = None
    identical: Annotated[bool, Meta(description="Whether the bytes are the same.")]
    first_theta: Theta | None
    second_theta: Theta | None
    first_digest: Digest | None
    second_digest: Digest | None


COMPARED_COLUMNS = (
    Column("name", "tensor", CellKind.NAME),
    Column("type", rank=1),
    *data_only("tower", "block", "slot", "shape"),
    Column("likeness", kind=CellKind.SHARE),
    Column("change", kind=CellKind.CHANGE),
    *data_only("identical", "first_theta", "second_theta", "first_digest", "second_digest"),
)


class ComparedExpert(Entity):
    """One expert that differs between two stacks."""

    expert: Annotated[Count, Meta(description="The number in the stack, from 0.")]
    likeness: Annotated[Likeness | None, Meta(description="Null if the two cannot be compared.")]
    change: Change | None = None
    first_theta: Theta | None
    second_theta: Theta | None
    first_digest: Digest
    second_digest: Digest


class ComparedStack(Entity):
    """Two stacks of experts at the same place, of which some experts differ."""

    name: Text
    tower: Word
    block: Block
    slot: Text
    experts: Annotated[Count, Meta(description="Experts in each of the two stacks.")]
    differ: Annotated[Count, Meta(description="Experts whose bytes are not the same.")]
    changed: Annotated[Items[ComparedExpert], Meta(description="By number; at most 1,000 in all stacks.")]


class ShapeDifference(Entity):
    """A place where two models have tensors of different shapes."""

    name: Text
    first: Shape
    second: Shape


class FactDifference(Entity):
    """A fact that differs between two models. A value is null if it is unknown."""

    what: Text
    first: Text | None
    second: Text | None


EXACT, BY_IMPORTANCES, NEAR, SAME, UNEXPLAINED, UNCHECKED = (
    *("exact", "by importance matrix", "near"),
    *("same", "not explained", "not compared"),
)
"""What a proof found of a tensor: its blocks are those that encoding the source gives, without or with an importance
matrix, or all but some; both models have the same tensor; most blocks are others; or it cannot be said."""


class ProvedOrgan(Entity):
    """A tensor of a quantisation, compared with that of its source, encoded again."""

    name: Text
    dtype: Word
    result: Annotated[
        Word,
        Meta(description=f"`{EXACT}`, `{BY_IMPORTANCES}`, `{NEAR}`, `{SAME}`, `{UNEXPLAINED}` or `{UNCHECKED}`."),
    ]
    equal_blocks: Count
    blocks: Annotated[Count, Meta(description="0 if nothing was encoded.")]


PROVED_COLUMNS = (
    Column("name", "tensor", CellKind.NAME),
    Column("dtype", rank=1),
    Column("result"),
    Column("differing", "other blocks", shown=lambda organ: _differing_text(organ)),
    *data_only("equal_blocks", "blocks"),
)


def _differing_text(organ: ProvedOrgan) -> str:
    return f"{organ.blocks - organ.equal_blocks:,} of {organ.blocks:,}" if organ.blocks else ""


class Proof(Entity):
    """From which tensors those of a quantisation were made: its source was encoded again, and all blocks compared."""

    quantised: ModelText
    source: ModelText
    encoder: Annotated[Text, Meta(description="The packages that encoded, with their versions.")]
    importances: Annotated[Digest | None, Meta(description="SHA-256 of the importance matrix, if one was needed.")]
    organs: Annotated[Count, Meta(description="Tensors of the quantisation.")]
    exact: Annotated[Count, Meta(description="Tensors of which all blocks are those that encoding gives.")]
    by_importances: Annotated[Count, Meta(description="The same, with the importance matrix.")]
    same: Annotated[Count, Meta(description="Tensors that both models have.")]
    others: Annotated[Items[ProvedOrgan], Meta(description="All other tensors.")]

    @property
    def explained(self) -> int:
        """The number of tensors that the source explains to the last byte."""
        return self.exact + self.by_importances + self.same

    @property
    def is_complete(self) -> bool:
        """Whether the source explains all tensors."""
        return not self.others

    @property
    def is_likely(self) -> bool:
        """Whether the source explains at least half of the tensors."""
        return 2 * self.explained >= self.organs

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        parts = []
        if self.exact or not self.by_importances:
            parts.append(f"{self.exact:,} of its {self.organs:,} tensors are exactly what encoding that model gives")
        if self.by_importances:
            parts.append(f"{self.by_importances:,} with the importance matrix {(self.importances or '')[:12]}")
        if self.same:
            parts.append(f"{self.same:,} are the same in both")
        for result, text in ((NEAR, "but for some blocks"), (UNEXPLAINED, UNEXPLAINED), (UNCHECKED, UNCHECKED)):
            names = [organ.name for organ in self.others if organ.result == result]
            if names:
                parts.append(f"{len(names):,} {text} ({names_text(names)})")
        is_proved = "is proved" if self.is_complete or self.is_likely else "is not proved"
        some = "" if self.is_complete or not self.is_likely else "not all of "
        return f"{some.capitalize()}{self.quantised} {is_proved} to be made from {self.source}: {', '.join(parts)}."


class Comparison(Entity):
    """Two models side by side."""

    first: ModelText
    second: ModelText
    same_bytes: bool
    likeness: Annotated[Likeness | None, Meta(description="The mean over matrices at equal places; null without them.")]
    change: Change | None = None
    """The mean over matrices at equal places; null if one of the models was measured by an older version."""
    kinship: Annotated[Word, Meta(description="`close`, `kin`, `unrelated` or `incomparable`.")]
    sentence: Annotated[Text, Meta(description="The result as a sentence.")]
    unexplained: Annotated[
        Texts,
        Meta(description="Close matrices in other tensor types that differ by more than rounding to these explains."),
    ] = ()
    matched: Annotated[
        Share | None,
        Meta(
            description="Of a quantisation and a possible source: the share of equal blocks in a sample, encoded again."
        ),
    ] = None
    proof: Proof | None = None
    organs: ComparedCounts
    types: Items[ComparedType]
    blocks: Items[ComparedBlock]
    changed: Annotated[Items[ComparedOrgan], Meta(description="The most changed first.")]
    stacks: Items[ComparedStack] = ()
    """Stacks of experts that are not the same, in registered models whose experts are recorded."""
    only_first: Annotated[Texts, Meta(description="Tensors that only the first model has.")]
    only_second: Annotated[Texts, Meta(description="Tensors that only the second model has.")]
    shapes_differ: Items[ShapeDifference]
    differs: Items[FactDifference]

    @property
    def is_comparable(self) -> bool:
        """Whether the models are different and have matrices that can be compared."""
        return not self.same_bytes and self.kinship != "incomparable"

    @property
    def is_mostly_identical(self) -> bool:
        """Whether more than half of the tensors, but not all, have the same bytes."""
        most = max(self.organs.first, self.organs.second)
        return most < 2 * self.organs.identical < 2 * most

    @property
    def experts_sentence(self) -> str:
        """The experts that differ, in one sentence; empty if there are none."""
        if not self.stacks:
            return ""
        first = self.stacks[0]
        places = f"in {first.name}" if len(self.stacks) == 1 else f"in each of {len(self.stacks)} stacks"
        numbers = {tuple(expert.expert for expert in stack.changed) for stack in self.stacks}
        counts = {(stack.differ, stack.experts) for stack in self.stacks}
        if len(numbers) == len(counts) == 1 and first.differ == len(first.changed) < first.experts:
            listed = [str(expert.expert) for expert in first.changed]
            return f"{first.differ} of {first.experts} experts differ {places}: {names_text(listed)}."
        differ, total = (sum(count) for count in zip(*((s.differ, s.experts) for s in self.stacks), strict=True))
        return f"{differ:,} of {total:,} experts differ in {len(self.stacks)} stacks."

    @property
    def unequal(self) -> tuple[ComparedOrgan, ...]:
        """The compared tensors whose bytes are not the same."""
        return tuple(organ for organ in self.changed if not organ.identical)


class OrganChange(Entity):
    """The difference between the tensors of two models at the same place."""

    likeness: Annotated[Likeness | None, Meta(description="Null for tensors that cannot be compared, such as vectors.")]
    change: Change | None = None
    identical: bool
