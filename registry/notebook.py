"""HTML for notebooks: the functions that `_repr_html_` methods of results use.

These functions escape all text; callers must not. The HTML has no scripts and no links, and loads nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from organs.registry.columns import Column, cell_text

ROWS_MAX = 60
"""The most rows of a table; a line below the table has the number of the other rows."""
TEXT_MAX = 400
"""The most characters of a table cell."""

_RIGHT = ' style="text-align:right"'
_LEFT = ' style="text-align:left"'


def document(*pieces: str) -> str:
    """Return `pieces`, HTML from functions of this module, as one element."""
    return f"<div>{''.join(pieces)}</div>"


def table(columns: Sequence[Column], items: Iterable[object]) -> str:
    """Return a table of items, with the columns that people see; numbers are aligned right."""
    shown = [column for column in columns if not column.data_only]
    styles = [_RIGHT if column.is_number else _LEFT for column in shown]
    rows = list(items)
    head = "".join(f"<th{style}>{_text(column.heading)}</th>" for column, style in zip(shown, styles, strict=True))
    body = ""
    for row in rows[:ROWS_MAX]:
        cells = (f"<td{style}>{_cell(column.text(row))}</td>" for column, style in zip(shown, styles, strict=True))
        body += f"<tr>{''.join(cells)}</tr>"
    more = paragraph(f"… and {len(rows) - ROWS_MAX:,} more") if len(rows) > ROWS_MAX else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def facts(pairs: Iterable[tuple[str, str | None]]) -> str:
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


def _cell(value: str | None) -> str:
    text = cell_text(value)
    return _text(text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…")


def _text(text: str) -> str:
    return escape(visible(text))
