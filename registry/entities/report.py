"""Reports: sections of numbers with the words that explain them. `registry.reports` makes and renders them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from organs.registry.entities.base import ITEMS_MAX, WHOLE_MAX, Entity, Text, Texts, Word

COLUMNS_MAX = SECTIONS_MAX = FIGURES_MAX = 200

Cell = Text | Annotated[int, Meta(ge=-WHOLE_MAX, le=WHOLE_MAX)] | float | None
"""A number, not rounded; a text; or None for what was not measured or cannot be computed."""

ORGANS_DEFAULT = 10
"""Tensors in the lists of the highest, the lowest and the odd ones, unless told otherwise."""
ROWS_DEFAULT = 50
"""Rows of a table of models, unless told otherwise."""


class CellKind(StrEnum):
    """What a cell holds, and so how it is written for people."""

    TEXT = "text"
    NAME = "name"
    """The name of a model or of a tensor."""
    COUNT = "count"
    LARGE = "large"
    """A count that is shown rounded."""
    NUMBER = "number"
    """Shown with at most three digits."""
    SIZE = "size"
    """Bytes."""
    DEGREES = "degrees"
    SHARE = "share"
    """0 to 1, shown with three digits."""
    PERCENT = "percent"
    """0 to 1, shown as a percentage."""


Kind = Annotated[Word, Meta(description=f"How the value is written for people: {', '.join(CellKind)}.")]


class ReportColumn(Entity, frozen=True):
    """A column of a table. The key has the unit last, such as `mean_theta_degrees`."""

    key: Annotated[Word, Meta(description="Of its values in `items`.")]
    heading: Text
    kind: Kind
    data_only: Annotated[bool, Meta(description="Whether it is left out of what people read.")] = False


class ReportFigure(Entity, frozen=True):
    """A single figure with its meaning."""

    label: Text
    value: Cell
    kind: Kind
    meaning: Text


class ReportTable(Entity, frozen=True, kw_only=True, tag_field="type", tag="table"):
    """Rows of one shape. Without rows, `before` says why there are none."""

    title: Text
    before: Annotated[Texts, Meta(description="What the columns are.")]
    columns: Annotated[tuple[ReportColumn, ...], Meta(max_length=COLUMNS_MAX)]
    items: Annotated[
        tuple[Annotated[dict[Word, Cell], Meta(max_length=COLUMNS_MAX)], ...],
        Meta(max_length=ITEMS_MAX, description="The rows: a value by the key of each column."),
    ]
    after: Annotated[Texts, Meta(description="What the numbers mean and do not mean.")]

    def __post_init__(self) -> None:
        keys = {column.key for column in self.columns}
        if len(keys) < len(self.columns) or any(row.keys() != keys for row in self.items):
            raise ValueError("the rows of a table do not have the keys of its columns")

    @property
    def rows(self) -> Iterable[tuple[Cell, ...]]:
        """The values of each row in the order of the columns."""
        return (tuple(row[column.key] for column in self.columns) for row in self.items)


class ReportFigures(Entity, frozen=True, kw_only=True, tag_field="type", tag="figures"):
    """Single figures by their keys, which have the unit last."""

    title: Text
    before: Texts
    figures: Annotated[dict[Word, ReportFigure], Meta(max_length=FIGURES_MAX)]
    after: Texts


ReportSection = ReportTable | ReportFigures


class Report(Entity, frozen=True, kw_only=True):
    """A report. Which sections there are depends on what it is about."""

    title: Text
    main: Annotated[Word, Meta(description="The key of the section that a CSV file has by default.")]
    opening: Texts
    sections: Annotated[
        dict[Word, ReportSection], Meta(max_length=SECTIONS_MAX, description="By key, in the order of reading.")
    ]
    closing: Texts

    def __post_init__(self) -> None:
        if self.main not in self.sections:
            raise ValueError("the main section of a report is none of its sections")

    def only(self, key: str) -> Report:
        """Return the same report with one section; `key` must be one of `sections`."""
        return replace(self, sections={key: self.sections[key]}, main=key)


def table(
    title: str,
    columns: Sequence[ReportColumn],
    rows: Iterable[Sequence[Cell]],
    *,
    before: Sequence[str],
    after: Sequence[str],
    empty: str,
) -> ReportTable:
    """Return a table of `rows`, whose values are in the order of the columns; without rows, it says only `empty`."""
    keys = [column.key for column in columns]
    items = tuple(dict(zip(keys, row, strict=True)) for row in rows)
    words = (tuple(before), tuple(after)) if items else ((empty,), ())
    return ReportTable(title=title, before=words[0], columns=tuple(columns), items=items, after=words[1])
