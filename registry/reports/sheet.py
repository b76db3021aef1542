"""Rows as CSV that a spreadsheet shows and does not obey."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from organs.registry.reports.document import Cell

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
