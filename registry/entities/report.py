"""Reports: sections of numbers with texts that explain them. `registry.reports` makes and renders them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from msgspec import Meta
from msgspec.structs import replace

from organs.registry.entities.base import ITEMS_MAX, WHOLE_MAX, Entity, Text, Texts, Word

COLUMNS_MAX = SECTIONS_MAX = FIGURES_MAX = 200

Cell = Text | Annotated[int, Meta(ge=-WHOLE_MAX, le=WHOLE_MAX)] | float | None
"""A number, not rounded; a text; or None for a value that was not measured or cannot be computed."""

ORGANS_DEFAULT = 10
"""The default number of tensors in the lists of the highest, the lowest and the unusual tensors."""
ROWS_DEFAULT = 50
"""The default number of rows in a table of models."""


Kind = Annotated[
    Word,
    Meta(
        description="How the value is shown: text, name, count, large, number, size, seconds, degrees, share, percent."
    ),
]


class ReportColumn(Entity, kw_only=False):
    """A column of a table. The key ends with the unit, such as `mean_theta_degrees`."""

    key: Annotated[Word, Meta(description="The key of its values in `items`.")]
    heading: Text
    kind: Kind
    data_only: Annotated[bool, Meta(description="Whether it is left out of pages and texts for people.")] = False


class ReportFigure(Entity, kw_only=False):
    """A single figure with its meaning."""

    label: Text
    value: Cell
    kind: Kind
    meaning: Text


class ReportTable(Entity, tag_field="type", tag="table"):
    """A table. Without rows, `before` says why there are none."""

    title: Text
    before: Annotated[Texts, Meta(description="The meaning of the columns.")]
    columns: Annotated[tuple[ReportColumn, ...], Meta(max_length=COLUMNS_MAX)]
    items: Annotated[
        tuple[Annotated[dict[Word, Cell], Meta(max_length=COLUMNS_MAX)], ...],
        Meta(max_length=ITEMS_MAX, description="The rows. Each has a value for the key of each column."),
    ]
    after: Annotated[Texts, Meta(description="The meaning of the numbers, and its limits.")]

    def __post_init__(self) -> None:
        keys = {column.key for column in self.columns}
        if len(keys) < len(self.columns) or any(row.keys() != keys for row in self.items):
            raise ValueError("the rows of a table do not have the keys of its columns")

    @property
    def rows(self) -> Iterable[tuple[Cell, ...]]:
        """The values of each row in the order of the columns."""
        return (tuple(row[column.key] for column in self.columns) for row in self.items)


class ReportFigures(Entity, tag_field="type", tag="figures"):
    """Single figures by their keys. A key ends with the unit."""

    title: Text
    before: Texts
    figures: Annotated[dict[Word, ReportFigure], Meta(max_length=FIGURES_MAX)]
    after: Texts


ReportSection = ReportTable | ReportFigures


class Report(Entity):
    """A report. Its sections depend on its subject."""

    title: Text
    main: Annotated[Word, Meta(description="The key of the section that a CSV file contains by default.")]
    opening: Annotated[Texts, Meta(description="The meaning of the measures, for readers of the main section.")]
    sections: Annotated[
        dict[Word, ReportSection], Meta(max_length=SECTIONS_MAX, description="By key, in the order of reading.")
    ]
    closing: Texts

    def __post_init__(self) -> None:
        if self.main not in self.sections:
            raise ValueError("the main section of a report is not one of its sections")

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
    """Return a table of `rows`, whose values are in the order of the columns; without rows, it has only `empty`."""
    keys = [column.key for column in columns]
    items = tuple(dict(zip(keys, row, strict=True)) for row in rows)
    words = (tuple(before), tuple(after)) if items else ((empty,), ())
    return ReportTable(title=title, before=words[0], columns=tuple(columns), items=items, after=words[1])
