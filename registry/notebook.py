"""HTML for notebooks: the functions that `_repr_html_` methods of results use.

These functions escape all text; callers must not. The HTML has no scripts and no links, and loads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

ROWS_MAX = 60
"""The most rows of a table; a line below the table has the number of the other rows."""
TEXT_MAX = 400
"""The most characters of a table cell."""

Cell = str | int | None
_RIGHT = ' style="text-align:right"'
_LEFT = ' style="text-align:left"'


def document(*pieces: str) -> str:
    """Return `pieces`, HTML from functions of this module, as one element."""
    return f"<div>{''.join(pieces)}</div>"


def table(headings: Sequence[str], rows: Iterable[Sequence[Cell]], numbers: Iterable[str] = ()) -> str:
    """Return a table. Columns with a heading in `numbers` are aligned right; None becomes a dash."""
    right = set(numbers)
    styles = [_RIGHT if name in right else _LEFT for name in headings]
    all_rows = list(rows)
    head = "".join(f"<th{style}>{_text(name)}</th>" for name, style in zip(headings, styles, strict=True))
    body = ""
    for row in all_rows[:ROWS_MAX]:
        cells = (f"<td{style}>{_cell(value)}</td>" for value, style in zip(row, styles, strict=True))
        body += f"<tr>{''.join(cells)}</tr>"
    more = paragraph(f"… and {len(all_rows) - ROWS_MAX:,} more") if len(all_rows) > ROWS_MAX else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def facts(pairs: Iterable[tuple[str, Cell]]) -> str:
    """Return a table of two columns: the name of each value, and the value."""
    rows = (f"<tr><th{_LEFT}>{_text(name)}</th><td{_LEFT}>{_cell(value)}</td></tr>" for name, value in pairs)
    return f"<table><tbody>{''.join(rows)}</tbody></table>"


def paragraph(text: str) -> str:
    """Return a paragraph of text."""
    return f"<p>{_text(text)}</p>"


def heading(text: str) -> str:
    """Return a heading."""
    return f"<p><b>{_text(text)}</b></p>"


def preformatted(text: str) -> str:
    """Return text that keeps its lines and spaces."""
    return f"<pre>{_text(text)}</pre>"


def visible(text: str) -> str:
    """Return `text` with control, bidirectional and invisible characters as escapes, so that they have no effect."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def _cell(value: Cell) -> str:
    text = "–" if value is None else f"{value:,}" if isinstance(value, int) else value
    return _text(text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…")


def _text(text: str) -> str:
    return escape(visible(text))
