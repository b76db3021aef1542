"""Gains: how much validated chimeras lowered the perplexity of their bases, and the leaderboard of grafts."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry import notebook
from organs.registry.amounts import gain_text
from organs.registry.columns import CellKind, Column, data_only, for_people
from organs.registry.entities.base import (
    Change,
    Count,
    Digest,
    Entity,
    Items,
    Likeness,
    ModelText,
    Page,
    Text,
    Texts,
    Word,
)
from organs.registry.entities.plan import RecipeFile


class Gain(Entity):
    """The fall of the perplexity on one text, in percent of the base's; negative if the perplexity rose."""

    text: Annotated[Text, Meta(description="The kind of text, or the name of the file.")]
    percent: Annotated[float, Meta(description="Positive is better: 100 × (1 - perplexity / perplexity of the base).")]
    margin: Annotated[float, Meta(description="Percent plus and minus this is the interval of 95%.")]
    tokens: Annotated[Count, Meta(description="The number of scored tokens.")]
    settled: Annotated[bool, Meta(description="Whether the interval excludes 0.")] = True

    @property
    def amount(self) -> str:
        """The gain with its margin: `+5.9% ± 0.7%`."""
        return gain_text(self.percent, self.margin)

    def __str__(self) -> str:
        return f"{self.amount} {self.text}"


class MeasuredGain(Gain):
    """A gain with the chimera in which it was measured."""

    chimera: ModelText
    base: ModelText


class MeasuredGraft(Entity):
    """A validated chimera: what its donors gave, and what it gained on each text."""

    chimera: ModelText
    lock_id: Digest
    base: ModelText
    donors: Annotated[Texts, Meta(description="Empty if tensors of the base were purified.")]
    grafted: Annotated[Text, Meta(description="The tensors that differ from the base's, as text: `feed-forward 0-3`.")]
    likeness: Annotated[Likeness, Meta(description="Of the only donor to the base; null if not related.")] | None
    change: Change | None = None
    verdict: Annotated[Word, Meta(description="The strongest verdict.")] | None
    best: Annotated[Gain, Meta(description="The largest settled gain on the texts that were asked for.")]
    worst: Annotated[Gain, Meta(description="The largest settled loss on any text.")] | None
    gains: Annotated[Items[Gain], Meta(description="On all texts, the largest first.")]
    recipe: Annotated[RecipeFile, Meta(description="The recipe of the chimera, to make it again or to change it.")]
    unavailable_parents: Annotated[
        Texts, Meta(description="Models that it was made from and that are now yanked, removed or held for review.")
    ] = ()

    @property
    def marked_chimera(self) -> str:
        """The chimera as text for people, with a remark if it cannot be made again now."""
        return f"{self.chimera} (a parent is not available)" if self.unavailable_parents else self.chimera


COLUMNS = (
    Column("chimera", kind=CellKind.NAME, shown="marked_chimera"),
    *data_only("lock_id"),
    Column("base", kind=CellKind.NAME, rank=4),
    Column("donors", "donor", rank=1, shown=lambda graft: ", ".join(graft.donors) or "none"),
    Column("grafted", "tensors", rank=3),
    *data_only("likeness"),
    Column("change", kind=CellKind.CHANGE, rank=5),
    *data_only("verdict"),
    Column("best", "gain"),
    Column("worst", "largest loss", rank=2),
)
"""Columns of the leaderboard, in the order of its CSV file."""


class Leaderboard(Page[MeasuredGraft]):
    """A page of measured grafts, the largest gain first."""

    def __repr__(self) -> str:
        return f"<{self.summary('measured graft')}>"

    def _repr_html_(self) -> str:
        return notebook.document(notebook.table(for_people(COLUMNS, self.items), self.items), *self.below())
