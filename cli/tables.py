"""Tables: in a terminal a row is one line, and what does not fit is left out or shortened; in a pipe they are whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from organs.cli.console import (
    SHORTENED_MIN,
    again,
    beginning,
    folded,
    plain,
    print_hint,
    print_remark,
    printed_for_programs,
    prints_json,
    shortened,
    terminal_width,
)
from organs.registry.columns import CellKind, Column
from organs.registry.entities.base import Page

Item = TypeVar("Item")
GAP = "  "
PIPED_WIDTH = 1 << 16
SHORT_MAX = 14
"""Columns up to this width are never shortened: types, tensor types, shapes, dates."""
NAME_MIN = 36
"""The width of a column with long names that comes before columns that can be left out."""
DIGEST_MIN = 8
"""Characters of a digest that still name a tensor in commands."""
WEIGHT = ".weight"
"""The end of the names of nearly all tensors. A column that does not fit is first shortened by it."""


@dataclass(slots=True)
class _Cells:
    """A column of a table with its cells as texts, below its heading."""

    column: Column
    cells: list[str]
    is_prose: bool
    heading: str = field(init=False)
    width: int = 0
    natural: int = field(init=False)
    """The width without shortening."""

    def __post_init__(self) -> None:
        self.heading = plain(self.column.heading)
        self.natural = max(map(cell_len, (self.heading, *self.cells)))

    def drop_ending(self, ending: str) -> None:
        """Remove `ending` from the cells, if the column is long."""
        if self.is_long:
            self.cells = [cell.removesuffix(ending) for cell in self.cells]
            self.natural = max(map(cell_len, (self.heading, *self.cells)))

    @property
    def is_digest(self) -> bool:
        """Whether its beginning is enough."""
        return self.column.kind == CellKind.DIGEST

    @property
    def is_long(self) -> bool:
        """Whether it can be shortened."""
        return self.is_prose or (not self.column.is_number and not self.is_digest and self.natural > SHORT_MAX)

    @property
    def comfortable(self) -> int:
        """The width that comes before columns that can be left out."""
        if self.is_digest:
            return min(self.natural, max(DIGEST_MIN, cell_len(self.heading)))
        return min(self.natural, NAME_MIN) if self.is_long else self.natural

    @property
    def least(self) -> int:
        return min(self.natural, max(SHORTENED_MIN, cell_len(self.heading))) if self.is_long else self.comfortable

    def padded(self, text: str) -> str:
        fits = beginning(text, self.width) if self.is_digest else shortened(text, self.width)
        space = " " * (self.width - cell_len(fits))
        return space + fits if self.column.is_number else fits + space


class Table:
    """A table of at most `width` columns, by default those of the terminal, or all in a pipe.

    Numbers are aligned to the right and never shortened. Of digests, the beginning is enough. Sentences in the last
    column are wrapped, and a row can have several lines. Columns with a rank are left out of a narrow terminal, those
    with the highest rank first. The first column stays.
    """

    def __init__(self, columns: Sequence[Column], items: Iterable[object], *, width: int | None = None) -> None:
        terminal = terminal_width() if width is None else width
        self._width = PIPED_WIDTH if terminal is None else terminal
        rows = list(items)
        self._count = len(rows)
        self._columns = [
            _Cells(
                column,
                [plain(column.text(item)) for item in rows],
                is_prose=column.kind == CellKind.PROSE and terminal is not None,
            )
            for column in columns
            if not column.data_only
        ]
        self._choose_columns()
        self._share_room()

    @property
    def headings(self) -> list[str]:
        """The headings of the columns that are there."""
        return [column.heading for column in self._columns]

    def lines(self) -> Iterator[str]:
        """Yield the line of the headings, then those of the rows."""
        yield self._line(self.headings)
        for number in range(self._count):
            cells = [column.cells[number] for column in self._columns]
            last = self._columns[-1]
            parts = folded(cells[-1], max(last.width, 1)) if last.is_prose else [cells[-1]]
            for part, text in enumerate(parts):
                yield self._line([*(cells[:-1] if part == 0 else [""] * len(cells[:-1])), text])

    def print(self) -> None:
        """Print the table, with its headings in bold."""
        console = Console(highlight=False)
        for number, line in enumerate(self.lines()):
            console.print(Text(line, "" if number else "bold"), soft_wrap=True)

    def _choose_columns(self) -> None:
        """Keep the columns that fit."""
        if _total(column.natural for column in self._columns) > self._width:
            for column in self._columns:
                column.drop_ending(WEIGHT)
        kept = [column for column in self._columns if not column.column.rank]
        for candidate in sorted(self._columns, key=lambda column: column.column.rank):
            with_it = [column for column in self._columns if column in kept or column is candidate]
            if _total(column.comfortable for column in with_it) <= self._width:
                kept = with_it
        while len(kept) > 1 and _total(column.least for column in kept) > self._width:
            kept.pop()
        self._columns = kept

    def _share_room(self) -> None:
        """Set the widths of columns: numbers and short words as they are, the others as far as there is room."""
        columns = self._columns
        is_narrow = _total(column.natural for column in columns) > self._width
        for column in columns:
            column.width = column.comfortable if is_narrow and column.is_digest else column.natural
        flexible = sorted((column for column in columns if column.is_long), key=lambda column: column.natural)
        room = self._width - _total(0 if column.is_long else column.width for column in columns)
        for number, column in enumerate(flexible):  # the shortest first: the others get the width that it does not need
            reserved = sum(other.least for other in flexible[number + 1 :])
            share = max(room // (len(flexible) - number), min(column.comfortable, room - reserved))
            column.width = max(min(column.natural, share), 1)
            room -= column.width
        for column in (column for column in columns if column.is_digest and room > 0):
            wider = min(column.natural, column.width + room)
            room, column.width = room - (wider - column.width), wider

    def _line(self, cells: Sequence[str]) -> str:
        return GAP.join(column.padded(cell) for cell, column in zip(cells, self._columns, strict=True)).rstrip()


def _total(widths: Iterable[int]) -> int:
    sizes = list(widths)
    return sum(sizes) + len(GAP) * (len(sizes) - 1)


def print_table(columns: Sequence[Column], items: Iterable[object]) -> None:
    """Print a table; `Table` explains the parameters."""
    Table(columns, items).print()


def print_page(
    page: Page[Item],
    name: Callable[[Item], object],
    shown: Sequence[Column] | Callable[[Sequence[Item]], None],
    *,
    empty: str = "",
    total: int | None = None,
) -> None:
    """Print a page of a list as JSON, with -q the name of each item, otherwise as a table of the columns `shown`,
    or with that function.

    Print on stderr the notes on the page, the sentence `empty` if there are no items, and how to get the next page.
    `total` is the length of the list.
    """
    for note in page.notes:
        print_remark(note, "note: ")
    if not printed_for_programs(page, map(name, page)):
        if empty and not page.items:
            print_remark(empty)
        elif callable(shown):
            shown(page.items)
        else:
            print_table(shown, page.items)
    if page.next is not None and not prints_json():
        print_hint("more" if total is None else f"more of {total:,}", again("--after", page.next, replaces=True))
