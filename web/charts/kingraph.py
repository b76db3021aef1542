"""A family of models as a graph: boxes in columns by generation, arrows from parent to child, plain lines for likeness.

What comes out are numbers and texts for a template: the SVG is a part of the page and takes its colours from it. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from organs.web.charts.kin import MEASURED, Branch, Family, Member, Tie, walk
from organs.web.shown import theta_class

BOX_WIDTH, BOX_HEIGHT = 244, 42
COLUMN_GAP, ROW_GAP = 152, 16
TRUNK, TRUNK_STEP, TRUNKS = 14, 6, 5
"""Where the elbows of a box bend: neighbours in a column not at the same place."""
MARGIN = 8
LINE_CHARACTERS = 30
"""That fit into a box at 12 pixels a line; a monospace letter is six tenths as wide as high."""
BULGE_MAX = 60
BREAKS = ("/- ", "_.")
"""Marks behind which a name is broken; the first kind is better."""


@dataclass(frozen=True, slots=True)
class Box:
    """A member: its upper left corner, and its name in one or two lines."""

    x: int
    y: int
    member: Member
    lines: tuple[str, ...]
    tone: str

    @property
    def middle(self) -> int:
        return self.y + BOX_HEIGHT // 2

    @property
    def right(self) -> int:
        return self.x + BOX_WIDTH


@dataclass(frozen=True, slots=True)
class Stroke:
    """A line between two boxes, with the point of its arrow if it has one, and its words."""

    path: str
    point: str
    look: str
    words: str
    x: int
    y: int
    anchor: str
    """Which end of the words stands at x: end, middle."""


@dataclass(frozen=True, slots=True)
class KinGraph:
    """All that is drawn of a family, in pixels."""

    width: int
    height: int
    boxes: tuple[Box, ...]
    strokes: tuple[Stroke, ...]


def kin_graph(family: Family, trees: Sequence[Branch]) -> KinGraph:
    """Columns by generation; in each the order of the trees, one tree below the other, nobody above who it hangs on."""
    generations = sorted({member.generation for member in family.members})
    columns = {generation: column for column, generation in enumerate(generations)}
    free = dict.fromkeys(range(len(generations)), MARGIN)
    boxes: dict[int, Box] = {}
    above: list[int] = []
    for branch, depth in walk(trees):
        member = family.members[branch.member]
        column = columns[member.generation]
        del above[depth:]
        beside = [boxes[above[-1]].y] if above and family.members[above[-1]].generation != member.generation else []
        below = max(free.values()) if depth == 0 else free[column]
        y = max(below, *beside, MARGIN)
        free[column] = y + BOX_HEIGHT + ROW_GAP
        x = MARGIN + column * (BOX_WIDTH + COLUMN_GAP)
        boxes[branch.member] = Box(x, y, member, two_lines(member.name), theta_class(member.theta))
        above.append(branch.member)
    arrived: Counter[int] = Counter()
    strokes = []
    for tie in family.ties:
        end = max((tie.first, tie.second), key=lambda place: boxes[place].x)
        strokes.append(_stroke(tie, boxes[tie.first], boxes[tie.second], arrived[end]))
        arrived[end] += 1
    width = 2 * MARGIN + len(generations) * BOX_WIDTH + (len(generations) - 1) * COLUMN_GAP
    bulges = any(tie_box.x == boxes[tie.second].x for tie in family.ties if (tie_box := boxes[tie.first]))
    return KinGraph(
        width + (BULGE_MAX + 36 if bulges else 0),
        max(free.values(), default=0) - ROW_GAP + MARGIN,
        tuple(boxes[place] for place in sorted(boxes)),
        tuple(strokes),
    )


def two_lines(name: str) -> tuple[str, ...]:
    """`name` in at most two lines of 30 characters, broken behind a mark if there is one; what is over is left out."""
    name = " ".join(name.split())
    if len(name) <= LINE_CHARACTERS:
        return (name,)
    ends = range(LINE_CHARACTERS // 2, LINE_CHARACTERS)
    breaks = [[place for place in ends if name[place] in marks] for marks in BREAKS]
    cut = next((places[-1] + 1 for places in breaks if places), LINE_CHARACTERS)
    rest = name[cut:]
    return name[:cut], rest if len(rest) <= LINE_CHARACTERS else f"…{rest[1 - LINE_CHARACTERS :]}"


def _stroke(tie: Tie, first: Box, second: Box, beside: int) -> Stroke:
    """An elbow from box to box, its words above the last stretch; further ones to the same box are written below."""
    look = "like" if tie.evidence == MEASURED else "descent"
    if first.x == second.x:
        return _bulge(tie, first, second, look)
    left, right = (first, second) if first.x < second.x else (second, first)
    trunk = left.right + TRUNK + TRUNK_STEP * (left.y // (BOX_HEIGHT + ROW_GAP) % TRUNKS)
    path = f"M{left.right} {left.middle}H{trunk}V{right.middle}H{right.x}"
    point = ""
    if look == "descent":
        point = _point(right.x, right.middle, -8) if second is right else _point(left.right, left.middle, 8)
    y = right.middle - 6 if beside == 0 else right.middle + 1 + 13 * beside
    return Stroke(path, point, look, tie.words, right.x - 12, y, "end")


def _bulge(tie: Tie, first: Box, second: Box, look: str) -> Stroke:
    """Two boxes of one column: a bow on their right."""
    depth = min(BULGE_MAX, 24 + abs(first.y - second.y) // 8)
    x, top, bottom = first.right, first.middle, second.middle
    path = f"M{x} {top}C{x + depth} {top} {x + depth} {bottom} {x} {bottom}"
    point = _point(x, bottom, 8) if look == "descent" else ""
    return Stroke(path, point, look, tie.words, x + 3 * depth // 4, (top + bottom) // 2 + 4, "middle")


def _point(x: int, y: int, back: int) -> str:
    return f"M{x + back} {y - 4}L{x} {y}L{x + back} {y + 4}Z"
