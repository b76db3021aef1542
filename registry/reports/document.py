"""The shape of a report: sections of numbers with the words that explain them. How it is shown is decided elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import Enum

from organs.registry.present.text import count_text, share_text, size_text, theta_text
from organs.registry.present.values import Values

Cell = str | int | float | None
"""A number as it is, a text, or None for what was not measured or cannot be worked out."""
DASH = "–"


class Kind(Enum):
    """What a cell holds, and so how it reads."""

    TEXT = "text"
    NAME = "name"
    """Of a model or a tensor."""
    COUNT = "count"
    LARGE = "large"
    """A count that is shown rounded."""
    NUMBER = "number"
    """Shown with three digits at most."""
    SIZE = "size"
    """Bytes."""
    DEGREES = "degrees"
    SHARE = "share"
    """0 to 1, shown with three digits."""
    PERCENT = "percent"
    """0 to 1, shown as a percentage."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its key in JSON and CSV, with the unit last, and its heading for people."""

    key: str
    heading: str
    kind: Kind
    data_only: bool = False
    """Whether it stands in JSON and CSV alone, because people have it in other words or would not miss it."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A section as people see it: all text."""

    headings: tuple[str, ...]
    kinds: tuple[Kind, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def right(self) -> tuple[bool, ...]:
        """Which columns are numbers, set flush right."""
        return tuple(kind not in (Kind.TEXT, Kind.NAME) for kind in self.kinds)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one shape. `before` says what the columns are, `after` what they mean and do not mean.

    Without rows, `empty` is said instead of all that.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    empty: str = "There is nothing to show."

    def grid(self) -> Grid:
        """The table for people."""
        chosen = [(index, column) for index, column in enumerate(self.columns) if not column.data_only]
        rows = tuple(tuple(shown(row[index], column.kind) for index, column in chosen) for row in self.rows)
        return Grid(tuple(column.heading for _, column in chosen), tuple(column.kind for _, column in chosen), rows)

    def sheet(self) -> tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]:
        """Keys and rows for a spreadsheet."""
        return tuple(column.key for column in self.columns), self.rows

    def values(self) -> Values:
        """The table as plain values."""
        keys = [column.key for column in self.columns]
        columns = [{**asdict(column), "kind": column.kind.value} for column in self.columns]
        return {"columns": columns, "items": [dict(zip(keys, row, strict=True)) for row in self.rows]}


@dataclass(frozen=True, slots=True)
class Fact:
    """One figure with its meaning in a sentence or two. The key has the unit last."""

    key: str
    label: str
    value: Cell
    kind: Kind
    meaning: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Single figures, each with its meaning."""

    key: str
    title: str
    facts: tuple[Fact, ...]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()

    def grid(self) -> Grid:
        """The figures for people."""
        rows = tuple((fact.label, shown(fact.value, fact.kind), fact.meaning) for fact in self.facts)
        return Grid(("figure", "value", "what it is"), (Kind.TEXT, Kind.TEXT, Kind.TEXT), rows)

    def sheet(self) -> tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]:
        """Keys and rows for a spreadsheet."""
        return ("figure", "value", "meaning"), tuple((fact.key, fact.value, fact.meaning) for fact in self.facts)

    def values(self) -> Values:
        """The figures as plain values."""
        return {
            "figures": {fact.key: fact.value for fact in self.facts},
            "meanings": {fact.key: fact.meaning for fact in self.facts},
            "labels": {fact.key: fact.label for fact in self.facts},
            "kinds": {fact.key: fact.kind.value for fact in self.facts},
        }


Section = Table | Facts


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report. `main` is the key of the section that a spreadsheet gets unless told otherwise."""

    title: str
    opening: tuple[str, ...]
    sections: tuple[Section, ...]
    closing: tuple[str, ...]
    main: str

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its sections."""
        return tuple(section.key for section in self.sections)

    def section(self, key: str) -> Section:
        """The section of that key, which must be one of `keys`."""
        return self.sections[self.keys.index(key)]

    def only(self, key: str) -> Report:
        """The same report with that section alone."""
        return replace(self, sections=(self.section(key),), main=key)

    def values(self) -> Values:
        """The report as plain values, with every number unrounded, every sentence, and how each reads for people."""
        return {
            "title": self.title,
            "main": self.main,
            "order": list(self.keys),
            "opening": list(self.opening),
            "sections": {section.key: _section_values(section) for section in self.sections},
            "closing": list(self.closing),
        }

    def with_texts(self, change: Callable[[str], str]) -> Report:
        """The same report with `change` done to every text in it but the keys: it may be of a registry elsewhere."""
        return replace(
            self,
            title=change(self.title),
            opening=_each(self.opening, change),
            sections=tuple(_changed(section, change) for section in self.sections),
            closing=_each(self.closing, change),
        )


def shown(value: Cell, kind: Kind) -> str:
    """A cell as people read it; a dash where there is nothing."""
    if value is None:
        return DASH
    if isinstance(value, str):
        return value
    match kind:
        case Kind.DEGREES:
            return theta_text(value)
        case Kind.SHARE:
            return share_text(value)
        case Kind.PERCENT:
            return f"{100 * value:.1f}%"
        case Kind.SIZE:
            return size_text(value)
        case Kind.LARGE:
            return count_text(value)
        case Kind.NUMBER:
            return f"{value:.3g}"
        case Kind.COUNT | Kind.TEXT | Kind.NAME:
            return f"{value:,}"


def _section_values(section: Section) -> Values:
    empty = isinstance(section, Table) and not section.rows
    words = (section.empty,) if isinstance(section, Table) and empty else section.before
    after = () if empty else section.after
    return {"title": section.title, "before": list(words)} | section.values() | {"after": list(after)}


def _changed(section: Section, change: Callable[[str], str]) -> Section:
    title, before, after = change(section.title), _each(section.before, change), _each(section.after, change)
    section = replace(section, title=title, before=before, after=after)
    if isinstance(section, Facts):
        return replace(section, facts=tuple(_changed_fact(fact, change) for fact in section.facts))
    columns = tuple(replace(column, heading=change(column.heading)) for column in section.columns)
    rows = tuple(tuple(_text(cell, change) for cell in row) for row in section.rows)
    return replace(section, columns=columns, rows=rows, empty=change(section.empty))


def _changed_fact(fact: Fact, change: Callable[[str], str]) -> Fact:
    return replace(fact, label=change(fact.label), value=_text(fact.value, change), meaning=change(fact.meaning))


def _each(texts: tuple[str, ...], change: Callable[[str], str]) -> tuple[str, ...]:
    return tuple(change(text) for text in texts)


def _text(cell: Cell, change: Callable[[str], str]) -> Cell:
    return change(cell) if isinstance(cell, str) else cell
