"""Reports as text, as Markdown that names cannot change, and as CSV that no spreadsheet executes."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from organs.registry.columns import CellKind, Column, cell_text
from organs.registry.entities.report import Cell, Report, ReportSection, ReportTable

FIGURE_HEADINGS = ("figure", "value", "meaning")


def columns_and_rows(section: ReportSection) -> tuple[list[Column], Sequence[Mapping[str, Cell]]]:
    """Return the columns of a section for people, and its rows."""
    if isinstance(section, ReportTable):
        columns = [
            Column(column.key, column.heading, column.kind) for column in section.columns if not column.data_only
        ]
        return columns, section.items
    return list(map(Column, FIGURE_HEADINGS)), [
        dict(zip(FIGURE_HEADINGS, (figure.label, cell_text(figure.value, figure.kind), figure.meaning), strict=True))
        for figure in section.figures.values()
    ]


def section_sheet(section: ReportSection) -> tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]:
    """Return the section for a spreadsheet: keys, and rows of unrounded values."""
    if isinstance(section, ReportTable):
        return tuple(column.key for column in section.columns), tuple(section.rows)
    figures = ((key, figure.value, figure.meaning) for key, figure in section.figures.items())
    return FIGURE_HEADINGS, tuple(figures)


_MARKS = re.compile(r"[\\`*~|\[\]!#$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
"""Markup of Markdown inside a line. An underscore between letters is text in all dialects."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._/@:+ -]+")
_LIST_START = re.compile(r"^([-+]|[0-9]+[.)])(?=\s|$)")
_ENTITIES = {ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;"}


def markdown(report: Report) -> str:
    """Return the report as Markdown, with a line end at the end."""
    lines = [f"# {escaped(report.title)}"]
    for key, section in report.sections.items():
        columns, rows = columns_and_rows(section)
        lines += [
            *_paragraphs(report.opening if key == report.main else ()),
            *("", f"## {escaped(section.title)}"),
            *_paragraphs(section.before),
            *(("", *_table_lines(columns, rows)) if rows else ()),
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


def _table_lines(columns: Sequence[Column], rows: Iterable[object]) -> Iterator[str]:
    """Yield the lines of a table, with columns that are also aligned in the raw text.

    Names that need no escaping become code, which no dialect of Markdown changes.
    """

    def cell(column: Column, row: object) -> str:
        text = column.text(row)
        is_code = column.kind == CellKind.NAME and _PLAIN_NAME.fullmatch(text) and text.strip() == text
        return f"`{text}`" if is_code else escaped(text)

    lines = [
        [escaped(column.heading) for column in columns],
        *([cell(column, row) for column in columns] for row in rows),
    ]
    widths = [max(3, *map(len, cells)) for cells in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        cells = zip(columns, line, widths, strict=True)
        yield _barred(
            f" {text.rjust(width) if column.is_number else text.ljust(width)} " for column, text, width in cells
        )
        if number == 0:
            rules = zip(columns, widths, strict=True)
            yield _barred("-" * width + ("-:" if column.is_number else "--") for column, width in rules)


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
