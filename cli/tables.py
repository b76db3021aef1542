"""Tables in a given width: numbers and short words stay whole, long texts fold or get a line of their own."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len, chop_cells

GAP = "  "
SHORT_MAX = 14
"""Columns up to this width are never folded: types, formats, shapes, dates."""
FOLDED_MIN = 20
"""A column is folded down to this width; below it, long texts get a line of their own."""

NONFINITE_MARK = "(NaN/inf)"
"""Behind the name of what has weights that are NaN or infinite."""

_JOINTS = re.compile(r"[^-/_.@:]*[-/_.@:]|[^-/_.@:]+")
"""Where a long name may be folded: behind what separates its parts."""


def table_lines(
    headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], width: int
) -> Iterator[tuple[str, bool]]:
    """The lines of a table of at most `width` columns where that is possible, and whether each is of the heading.

    Columns that are `right` hold numbers, are set flush right, and are never folded.
    """
    natural = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
    long = [size > SHORT_MAX and not flush for size, flush in zip(natural, right, strict=True)]
    widths = _fitted(natural, long, width)
    if widths is not None:
        for number, row in enumerate([headings, *rows]):
            yield from ((line, number == 0) for line in _aligned(row, widths, right))
        return
    short = [index for index, one in enumerate(long) if not one]
    widths, flush_right = [natural[index] for index in short], [right[index] for index in short]
    for number, row in enumerate([headings, *rows]):
        names = GAP.join(cell for cell, one in zip(row, long, strict=True) if one)
        yield from ((line, number == 0) for line in folded(names, max(width, FOLDED_MIN)))
        numbers = _aligned([row[index] for index in short], widths, flush_right)
        yield from ((GAP + line, number == 0) for line in numbers if line)


def folded(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width`: between words, else behind `-/_.@:`, and inside a part that is longer."""
    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for word in text.split(" "):
        pieces = [word] if cell_len(word) <= width else _pieces(word, width)
        for number, piece in enumerate(pieces):
            joined = f"{lines[-1]} {piece}" if number == 0 and lines[-1] else lines[-1] + piece
            if cell_len(joined) <= width:
                lines[-1] = joined
            else:
                lines.append(piece)
    return [line.rstrip(" ") for line in lines]


def _fitted(natural: Sequence[int], long: Sequence[bool], width: int) -> list[int] | None:
    """The width of every column; None when the long ones would have to be too narrow to be read."""
    widths = list(natural)
    room = width - len(GAP) * (len(widths) - 1) - sum(size for size, one in zip(natural, long, strict=True) if not one)
    waiting = sorted((size, index) for index, (size, one) in enumerate(zip(natural, long, strict=True)) if one)
    while waiting:
        size, index = waiting.pop(0)  # the shortest first: what it does not need is left to the others
        widths[index] = min(size, room // (len(waiting) + 1))
        if widths[index] < min(size, FOLDED_MIN):
            return None
        room -= widths[index]
    return widths


def _aligned(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> Iterator[str]:
    cells = [folded(cell, max(size, 1)) for cell, size in zip(row, widths, strict=True)]
    for number in range(max(map(len, cells), default=0)):
        parts = (cell[number] if number < len(cell) else "" for cell in cells)
        yield GAP.join(_padded(*part) for part in zip(parts, widths, right, strict=True)).rstrip()


def _padded(text: str, width: int, right: bool) -> str:
    space = " " * (width - cell_len(text))
    return space + text if right else text + space


def _pieces(word: str, width: int) -> Iterator[str]:
    for part in _JOINTS.findall(word):
        yield from chop_cells(part, width)
