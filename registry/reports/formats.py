"""Reports as text, as Markdown that names cannot change, and as CSV that no spreadsheet executes."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from organs.registry.amounts import NO_VALUE, count_text, share_text, size_text, theta_text
from organs.registry.entities.report import Cell, CellKind, Report, ReportSection, ReportTable

TEXT_KINDS = (CellKind.TEXT, CellKind.NAME)
THETA_ENDING, CAUTION_KEY = "theta_degrees", "caution"
FIGURE_HEADINGS = ("figure", "value", "meaning")


@dataclass(frozen=True, slots=True)
class Grid:
    """A section as texts for people."""

    headings: tuple[str, ...]
    kinds: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def right(self) -> tuple[bool, ...]:
        """Whether each column has numbers, which are aligned right."""
        return tuple(kind not in TEXT_KINDS for kind in self.kinds)


def grid(section: ReportSection) -> Grid:
    """Return the section as texts for people."""
    if isinstance(section, ReportTable):
        columns = [column for column in section.columns if not column.data_only]
        rows = (
            tuple(cell_text(row[column.key], column.kind, caution_in(row, column.key)) for column in columns)
            for row in section.items
        )
        headings = tuple(column.heading for column in columns)
        return Grid(headings, tuple(column.kind for column in columns), tuple(rows))
    figures = (
        (figure.label, cell_text(figure.value, figure.kind), figure.meaning) for figure in section.figures.values()
    )
    return Grid(FIGURE_HEADINGS, (CellKind.TEXT,) * len(FIGURE_HEADINGS), tuple(figures))


def section_sheet(section: ReportSection) -> tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]:
    """Return the section for a spreadsheet: keys, and rows of unrounded values."""
    if isinstance(section, ReportTable):
        return tuple(column.key for column in section.columns), tuple(section.rows)
    figures = ((key, figure.value, figure.meaning) for key, figure in section.figures.items())
    return FIGURE_HEADINGS, tuple(figures)


def caution_in(row: Mapping[str, Cell], key: str) -> str:
    """Return why the θ under `key` in a row of a table is uncertain; empty if it is not, or if it is no θ."""
    if not key.endswith(THETA_ENDING):
        return ""
    own = f"{key.removesuffix(THETA_ENDING).removesuffix('mean_')}{CAUTION_KEY}"
    return str(row.get(own, row.get(CAUTION_KEY)) or "")


def cell_text(value: Cell, kind: str, caution: str = "") -> str:
    """Return a cell as text; a dash for None, a mark on θ with a `caution`. An unknown kind is a plain number."""
    if value is None:
        return NO_VALUE
    if isinstance(value, str):
        return value
    match kind:
        case CellKind.DEGREES:
            return theta_text(value, caution)
        case CellKind.SHARE:
            return share_text(value)
        case CellKind.PERCENT:
            return f"{100 * value:.1f}%"
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


_MARKS = re.compile(r"[\\`*~|\[\]!#$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""Markup of Markdown inside a line. An underscore between letters is text in all dialects."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._/@:+ -]+")
_LIST_START = re.compile(r"^([-+]|[0-9]+[.)])(?=\s|$)")
_ENTITIES = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}


def markdown(report: Report) -> str:
    """Return the report as Markdown, with a line end at the end."""
    lines = [f"# {escaped(report.title)}"]
    for key, section in report.sections.items():
        texts = grid(section)
        lines += [
            *_paragraphs(report.opening if key == report.main else ()),
            *("", f"## {escaped(section.title)}"),
            *_paragraphs(section.before),
            *(("", *_table_lines(texts)) if texts.rows else ()),
            *_paragraphs(section.after),
        ]
    return "\n".join([*lines, *_paragraphs(report.closing)]) + "\n"


def escaped(text: str) -> str:
    """Return `text` on one line and escaped: no markup, no HTML, no end of a table cell."""
    return _MARKS.sub(r"\\\g<0>", " ".join(text.split()).translate(_ENTITIES))


def _paragraphs(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        # At the start of a line, a number or a sign could begin a list.
        yield from ("", _LIST_START.sub(lambda start: f"{start[1][:-1]}\\{start[1][-1]}", escaped(text)))


def _table_lines(texts: Grid) -> Iterator[str]:
    """Yield the lines of a table, with columns that are also aligned in the raw text.

    Names that need no escaping become code, which no dialect of Markdown changes.
    """
    cells = [
        [
            f"`{cell}`"
            if kind == CellKind.NAME and _PLAIN_NAME.fullmatch(cell) and cell.strip() == cell
            else escaped(cell)
            for cell, kind in zip(row, texts.kinds, strict=True)
        ]
        for row in texts.rows
    ]
    headings = [escaped(heading) for heading in texts.headings]
    widths = [max(3, *map(len, column)) for column in zip(headings, *cells, strict=True)]
    for number, row in enumerate([headings, *cells]):
        columns = zip(row, widths, texts.right, strict=True)
        yield _barred(f" {cell.rjust(width) if right else cell.ljust(width)} " for cell, width, right in columns)
        if number == 0:
            rules = zip(widths, texts.right, strict=True)
            yield _barred("-" * width + ("-:" if right else "--") for width, right in rules)


def _barred(cells: Iterable[str]) -> str:
    return f"|{'|'.join(cells)}|"


FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Beginnings of texts that spreadsheets interpret as a formula, some after they remove the first character."""


def sheet(keys: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """Return a header line of `keys` and a line for each row: RFC 4180, but with line ends of one newline.

    Numbers are not rounded; None is an empty cell; a text that could be a formula gets an apostrophe before it.
    """
    return sheet_lines([keys]) + sheet_lines(rows)


def sheet_lines(rows: Iterable[Sequence[Cell]]) -> str:
    """Return the rows without a header line."""
    lines = []
    for row in rows:
        # With "\n" as its line end, the writer would not quote a carriage return, which readers take for a line end.
        output = io.StringIO()
        harmless = [f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell for cell in row]
        csv.writer(output, lineterminator="\r\n").writerow(harmless)
        lines.append(output.getvalue().removesuffix("\r\n") + "\n")
    return "".join(lines)
