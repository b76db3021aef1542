"""Values as small pieces of HTML, for notebooks: `_repr_html_` of what scripts get is made of these.

Every text is escaped, here and nowhere else. There is no script in it, no link, nothing that is loaded from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

ROWS_SHOWN = 60
"""Of one table; a line below it says how many there are beyond."""
TEXT_SHOWN = 400
"""Characters of one cell."""

Cell = str | int | None
_RIGHT = ' style="text-align:right"'
_LEFT = ' style="text-align:left"'


def document(*pieces: str) -> str:
    """`pieces`, which are HTML from here, as one."""
    return f"<div>{''.join(pieces)}</div>"


def table(headings: Sequence[str], rows: Iterable[Sequence[Cell]], numbers: Iterable[str] = ()) -> str:
    """A table; the columns whose headings are among `numbers` are set flush right. None is a dash."""
    right = set(numbers)
    styles = [_RIGHT if name in right else _LEFT for name in headings]
    lines = list(rows)
    head = "".join(f"<th{style}>{_text(name)}</th>" for name, style in zip(headings, styles, strict=True))
    body = "".join(f"<tr>{_cells(line, styles)}</tr>" for line in lines[:ROWS_SHOWN])
    more = paragraph(f"… and {len(lines) - ROWS_SHOWN:,} more") if len(lines) > ROWS_SHOWN else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def facts(pairs: Iterable[tuple[str, Cell]]) -> str:
    """A table of two columns: what, and its value."""
    return f"<table><tbody>{''.join(_fact(what, value) for what, value in pairs)}</tbody></table>"


def paragraph(text: str) -> str:
    """A line of text."""
    return f"<p>{_text(text)}</p>"


def heading(text: str) -> str:
    """What stands above the rest."""
    return f"<p><b>{_text(text)}</b></p>"


def preformatted(text: str) -> str:
    """Text whose lines and spaces stay."""
    return f"<pre>{_text(text)}</pre>"


def visible(text: str) -> str:
    """`text` with control, bidirectional and invisible characters written out, so that none has an effect."""
    return "".join(sign if sign.isprintable() or sign == "\n" else ascii(sign)[1:-1] for sign in text)


def _fact(what: str, value: Cell) -> str:
    return f"<tr><th{_LEFT}>{_text(what)}</th><td{_LEFT}>{_cell(value)}</td></tr>"


def _cells(line: Sequence[Cell], styles: Sequence[str]) -> str:
    return "".join(f"<td{style}>{_cell(value)}</td>" for value, style in zip(line, styles, strict=True))


def _cell(value: Cell) -> str:
    text = "–" if value is None else f"{value:,}" if isinstance(value, int) else value
    return _text(text if len(text) <= TEXT_SHOWN else f"{text[:TEXT_SHOWN]}…")


def _text(text: str) -> str:
    return escape(visible(text))
