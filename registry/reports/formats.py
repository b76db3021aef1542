"""A report as Markdown that is harmless whatever names are in it, and rows as CSV that a spreadsheet does not run."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence

from organs.registry.reports.document import Cell, Grid, Kind, Report, Section, Table

_MARKS = re.compile(r"[\\`*~|\[\]!#$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""What Markdown obeys inside a line. An underscore between letters is text to every reader of Markdown."""
_TAME = re.compile(r"[A-Za-z0-9._/@:+ -]+")
_LIST_START = re.compile(r"^([-+]|[0-9]+[.)])(?=\s|$)")
_ENTITIES = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}


def markdown(report: Report) -> str:
    """The whole report, ending in a line end."""
    return "\n".join(_lines(report)) + "\n"


def escaped(text: str) -> str:
    """`text` on one line, so that it is shown as it is: no markup, no HTML, no end of a table's cell."""
    return _MARKS.sub(r"\\\g<0>", " ".join(text.split()).translate(_ENTITIES))


def _lines(report: Report) -> Iterator[str]:
    yield f"# {escaped(report.title)}"
    yield from _paragraphs(report.opening)
    for section in report.sections:
        yield from ("", f"## {escaped(section.title)}")
        yield from _section_lines(section)
    yield from _paragraphs(report.closing)


def _section_lines(section: Section) -> Iterator[str]:
    if isinstance(section, Table) and not section.rows:
        yield from _paragraphs((section.empty,))
        return
    yield from _paragraphs(section.before)
    yield ""
    yield from _table_lines(section.grid())
    yield from _paragraphs(section.after)


def _paragraphs(texts: tuple[str, ...]) -> Iterator[str]:
    for text in texts:
        yield from ("", _LIST_START.sub(_escaped_end, escaped(text)))


def _escaped_end(start: re.Match[str]) -> str:
    return f"{start[1][:-1]}\\{start[1][-1]}"


def _table_lines(grid: Grid) -> Iterator[str]:
    """A table whose columns are lined up for whoever reads the raw text."""
    cells = [[_cell(cell, kind) for cell, kind in zip(row, grid.kinds, strict=True)] for row in grid.rows]
    headings = [escaped(heading) for heading in grid.headings]
    widths = [max(3, *map(len, column)) for column in zip(headings, *cells, strict=True)]
    yield _row(headings, widths, grid.right)
    yield _barred("-" * width + ("-:" if right else "--") for width, right in zip(widths, grid.right, strict=True))
    yield from (_row(row, widths, grid.right) for row in cells)


def _row(cells: list[str], widths: list[int], rights: tuple[bool, ...]) -> str:
    columns = zip(cells, widths, rights, strict=True)
    return _barred(f" {cell.rjust(width) if right else cell.ljust(width)} " for cell, width, right in columns)


def _barred(cells: Iterable[str]) -> str:
    return f"|{'|'.join(cells)}|"


def _cell(text: str, kind: Kind) -> str:
    """Names that need no escaping stand as code, which no reader of Markdown touches."""
    return f"`{text}`" if kind is Kind.NAME and _TAME.fullmatch(text) and text.strip() == text else escaped(text)


FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""A spreadsheet takes a text that begins so for a formula, or cuts the beginning off and then does."""


def sheet(keys: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A header line of `keys` and a line a row, for UTF-8 and RFC 4180 but with plain line ends.

    Numbers are written unrounded; None is an empty cell; a text that could be a formula gets an apostrophe before it.
    """
    return sheet_lines([keys]) + sheet_lines(rows)


def sheet_lines(rows: Iterable[Sequence[Cell]]) -> str:
    """The rows without a header line."""
    return "".join(f"{_line(row)}\n" for row in rows)


def _line(row: Sequence[Cell]) -> str:
    # With "\n" alone as its line end, the writer would leave a carriage return unquoted, which readers take for one.
    written = io.StringIO()
    csv.writer(written, lineterminator="\r\n").writerow([_harmless(cell) for cell in row])
    return written.getvalue().removesuffix("\r\n")


def _harmless(cell: Cell) -> str | int | float:
    if cell is None:
        return ""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell
