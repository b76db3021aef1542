"""Columns of lists: the columns of an entity give its tables in terminals, notebooks and pages, and its CSV file.

A list of entities has one tuple of columns beside the class of the entity. A column names a member, and says how people
read it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from operator import attrgetter
from typing import Any

from organs.registry.amounts import (
    NO_VALUE,
    count_text,
    percent_text,
    share_text,
    size_text,
    theta_text,
    weight_change_text,
)

DIGEST_SHOWN = 12
"""Characters of a digest in tables."""
SMALL_RANK_MAX = 2
"""Columns with a higher rank are left out on telephones."""


class CellKind(StrEnum):
    """The kind of a value in a table cell, which determines how it is shown. Reports have the kinds up to `percent`."""

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
    SECONDS = "seconds"
    DEGREES = "degrees"
    SHARE = "share"
    """0 to 1, shown with three digits."""
    PERCENT = "percent"
    """0 to 1, shown as a percentage."""
    RATIO = "ratio"
    """0 to 1, shown as a percentage with two digits."""
    CHANGE = "change"
    """A change of weights; the item also has their `likeness`."""
    FIGURE = "figure"
    """A number that is a text already, or that names something."""
    DIGEST = "digest"
    PROSE = "prose"
    """Sentences, in the last column."""
    MINUTE = "minute"
    """A time with hours and minutes; a time of another kind is shown as a day."""
    SECOND = "second"


LEFT_KINDS = (CellKind.TEXT, CellKind.NAME, CellKind.DIGEST, CellKind.PROSE, CellKind.MINUTE, CellKind.SECOND)
"""Values of all other kinds are numbers, which are aligned right."""
_TIME_LENGTHS: Mapping[str, int] = {CellKind.MINUTE: 16, CellKind.SECOND: 19}


@dataclass(slots=True)
class Column:
    """A column of a list."""

    name: str
    """The member of the items; the key of items that are maps."""
    heading: str = ""
    """By default the name."""
    kind: str = CellKind.TEXT
    rank: int = 0
    """Narrow screens leave out columns with a rank, the highest first."""
    shown: str | Callable[[Any], object] = ""
    """What people see if it is not the member: another member, or what a function returns for an item."""
    meaning: str = ""
    """The tooltip of the heading."""
    sort: str = ""
    """The word after `sort:` in queries; empty for a column that does not sort."""
    data_only: bool = False
    """Whether people do not see it."""

    def __post_init__(self) -> None:
        self.heading = self.heading or self.name.replace("_", " ")

    @property
    def is_number(self) -> bool:
        """Whether it has numbers, which are aligned right."""
        return self.kind not in LEFT_KINDS

    @property
    def is_small(self) -> bool:
        """Whether it is shown on telephones."""
        return self.rank <= SMALL_RANK_MAX

    def text(self, item: object) -> str:
        """Return the cell of `item` for people."""
        if self.kind == CellKind.CHANGE:
            return weight_change_text(_member(item, self.name), _member(item, "likeness"))
        value = self.shown(item) if callable(self.shown) else _member(item, self.shown or self.name)
        return cell_text(value, self.kind, caution_in(item, self.name))


def data_only(*names: str) -> tuple[Column, ...]:
    """Return columns that only programs see, in CSV files."""
    return tuple(Column(name, data_only=True) for name in names)


NONFINITE_MARK = "(NaN/inf)"
"""The mark of models and organs with values that are NaN or infinite."""
FIRST = ("best", "change", "likeness", "gain")
"""Members that come first in tables. Only some queries give them; the likeness is not shown beside the change."""


def for_people(columns: Sequence[Column], items: Collection[object], wanted: Collection[str] = ()) -> list[Column]:
    """Return the columns that people see of `items`, without those of FIRST that no item has.

    A column by which the query sorts or filters, that is with its `sort` in `wanted`, is one of them, and no narrow
    screen leaves it out.
    """

    def is_shown(column: Column) -> bool:
        if column.name in FIRST and all(getattr(item, column.name) is None for item in items):
            return False
        return column.sort in wanted or not column.data_only

    shown = [column for column in columns if is_shown(column)]
    if any(column.name == "change" for column in shown):
        shown = [column for column in shown if column.name != "likeness"]
    shown = [replace(column, rank=0, data_only=False) if column.sort in wanted else column for column in shown]
    return sorted(shown, key=lambda column: FIRST.index(column.name) if column.name in FIRST else len(FIRST))


def caution_in(item: object, name: str) -> str:
    """Return why the θ `name` of `item` is uncertain; empty if it is not, or if it is no θ."""
    stem = name.removesuffix("_degrees")
    if not stem.endswith("theta"):
        return ""
    own = f"{stem.removesuffix('theta').removesuffix('mean_')}caution"
    get = item.get if isinstance(item, Mapping) else partial(getattr, item)
    found = (get(member, None) for member in (own, "theta_caution", "caution"))
    return next((caution for caution in found if caution is not None), "")


def cell_text(value: object, kind: str = CellKind.TEXT, caution: str = "") -> str:
    """Return a value as text; a dash for None, a mark on θ with a `caution`. An unknown kind is a plain number."""
    match value:
        case None:
            return NO_VALUE
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.isoformat(" ")[: _TIME_LENGTHS.get(kind, 10)]
        case tuple():
            return ("×" if all(isinstance(part, int) for part in value) else ", ").join(map(str, value))
        case int() | float():
            return _number_text(value, kind, caution)
        case _:
            return str(value)[: DIGEST_SHOWN if kind == CellKind.DIGEST else None]


def _number_text(value: float, kind: str, caution: str) -> str:
    match kind:
        case CellKind.FIGURE:
            return str(value)
        case CellKind.DEGREES:
            return theta_text(value, caution)
        case CellKind.SHARE:
            return share_text(value)
        case CellKind.PERCENT:
            return f"{100 * value:.1f}%"
        case CellKind.RATIO:
            return percent_text(value)
        case CellKind.SECONDS:
            return f"{value:,.1f} s"
        case CellKind.SIZE:
            return size_text(value)
        case CellKind.LARGE:
            return count_text(value)
        case CellKind.NUMBER:
            return f"{value:.3g}"
        case _:
            return f"{value:,}"


def _member(item: object, name: str) -> Any:
    return item[name] if isinstance(item, Mapping) else attrgetter(name)(item)
