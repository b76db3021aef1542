"""A query as values. `str(query)` is its text again, in one form whatever the order and spelling it was typed in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal

_PLAIN_VALUE = re.compile(r"[^\s\",]+")


@dataclass(frozen=True, slots=True)
class Choice:
    """`field:value,value`: one of the values, or with `negated` none of them."""

    field: str
    values: tuple[str, ...]
    negated: bool = False

    def __str__(self) -> str:
        values = ",".join(value if _PLAIN_VALUE.fullmatch(value) else f'"{value}"' for value in self.values)
        return f"{'-' if self.negated else ''}{self.field}:{values}"


@dataclass(frozen=True, slots=True)
class Interval:
    """From `low` to `high`, either of which may be missing or, when it is open, excluded."""

    low: float | None = None
    high: float | None = None
    low_open: bool = False
    high_open: bool = False


@dataclass(frozen=True, slots=True)
class Numbers:
    """A number in one of the intervals, or no number where `absent` allows it; with `negated` all other cases."""

    field: str
    intervals: tuple[Interval, ...]
    absent: bool = False
    negated: bool = False

    def __str__(self) -> str:
        one = self.intervals[0] if len(self.intervals) == 1 and not self.absent and not self.negated else None
        if one is not None and one.high is None and one.low is not None:
            return f"{self.field}{'>' if one.low_open else '>='}{_number(one.low)}"
        if one is not None and one.low is None and one.high is not None:
            return f"{self.field}{'<' if one.high_open else '<='}{_number(one.high)}"
        parts = [_range(interval) for interval in self.intervals] + (["none"] if self.absent else [])
        return f"{'-' if self.negated else ''}{self.field}:{','.join(parts)}"


@dataclass(frozen=True, slots=True)
class Sort:
    """By which field, and from which end."""

    field: str
    descending: bool

    def __str__(self) -> str:
        return f"{'-' if self.descending else ''}{self.field}"


Term = Choice | Numbers


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked for: all terms hold at once."""

    terms: tuple[Term, ...]
    words: tuple[str, ...]
    """Folded; each begins a word of the model's name, title, tags or description."""
    excluded_words: tuple[str, ...]
    """What stood behind one minus: a word, or several with `-` between them, which a model must not have at once."""
    like: str | None
    """The beginning of an organ's digest: rank by likeness to it."""
    unique: bool
    """One result an organ, however many places it has."""
    sort: Sort

    def __str__(self) -> str:
        return self.text()

    def text(self, *, unless_sorted: str = "") -> str:
        """The query's text; the sort is left out where it is `unless_sorted`."""
        return " ".join([*sorted(map(str, self.terms)), *self.behind_terms(unless_sorted)])

    def behind_terms(self, unless_sorted: str = "") -> list[str]:
        """What stands behind the terms in the query's text: its order, then its words."""
        parts = [f"like:{self.like}"] if self.like else []
        parts += ["unique:organ"] if self.unique else []
        parts += [] if self.like or str(self.sort) == unless_sorted else [f"sort:{self.sort}"]
        return [*parts, *sorted(self.words), *(f"-{word}" for word in sorted(self.excluded_words))]

    def choices(self, field: str) -> list[Choice]:
        """The terms that choose by name in `field`."""
        return [term for term in self.terms if isinstance(term, Choice) and term.field == field]

    def numbers(self, field: str) -> list[Numbers]:
        """The terms that bound the number `field`."""
        return [term for term in self.terms if isinstance(term, Numbers) and term.field == field]


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else f"{Decimal(repr(value)):f}"  # the language has no exponents


def _range(interval: Interval) -> str:
    low = "" if interval.low is None else _number(interval.low)
    high = "" if interval.high is None else _number(interval.high)
    return low if low == high else f"{low}-{high}"
