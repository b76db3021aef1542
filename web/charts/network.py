"""The drawing of a network: its organs as shapes, from the embedding at the top to the output at the bottom.

The residual stream is a vertical band. In each block, attention is on its left and feed-forward on its right, next to
it first. Widths are to scale: the width of a matrix is its size on the side that does not face the residual stream, so
keys and values of grouped heads are narrower than queries, and the feed-forward width is visible. Blocks have equal
heights. This module computes positions; it knows nothing about colours.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from organs.registry.anatomy import is_beside_attention, reading_order

WINGS_WIDTH = 312.0
"""Width of attention and feed-forward together. Many slots, each with its least width, can make it wider."""
CELL_WIDTH_MIN, THIN_WIDTH, GAP = 11.0, 5.0, 1.6
SPINE_MIN, SPINE_MAX = 20.0, 34.0
MARGIN = 7.0
WING_MIN = 40.0
"""Least width of a side, also of one without organs."""
CAP_HEIGHT, CAP_GAP = 30.0, 9.0
HEADINGS_HEIGHT = 62.0
"""Least height of the names of slots."""
LETTER_WIDTH, HEADING_DEGREES = 5.5, 58.0
"""The width of a letter of a slot's name on a phone, where it is largest, and how steeply the name rises."""
HEADING_LETTERS_MAX = 24
"""Longer names of slots are cut."""
TOWER_GAP = 18.0
PITCHES = ((6, 40.0), (12, 32.0), (24, 24.0), (40, 18.0), (64, 15.0), (150, 12.0))
"""The height of a block, by the largest number of blocks that have it."""
PITCH_MIN = 7.0
LABEL_PITCH = 11.0
"""Least distance between two numbers of blocks; with flatter blocks, not all are numbered."""
EXPERT_DIMENSIONS = 3
LABEL_DISTANCE = 9.5
"""Least distance between the names of two slots. Matrices have their names first."""
BLOCK_STEPS = (1, 2, 4, 5, 8, 10, 20, 50, 100)

_EMBEDDING, _OUTPUT, _LAST_NORM = "token_embd", "output", "output_norm"


class Drawable(Protocol):
    """What the drawing needs of an organ."""

    @property
    def type(self) -> str: ...
    @property
    def tower(self) -> str: ...
    @property
    def block(self) -> int | None: ...
    @property
    def slot(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


Drawn = TypeVar("Drawn", bound=Drawable)


@dataclass(frozen=True, slots=True)
class Shape(Generic[Drawn]):
    """An organ as it is drawn, in the units of the drawing."""

    organ: Drawn
    x: float
    y: float
    width: float
    height: float
    look: str
    """`cell`, `thin` (a vector), `stack` (experts), `head` (embedding), `foot` (output), or `bar` (the last norm)."""
    taper: tuple[float, float] = (0.0, 0.0)
    """Of `head` and `foot`: x and width of the residual stream."""

    @property
    def path(self) -> str:
        """The outline as data of an SVG path."""
        x, y, width, height = self.x, self.y, self.width, self.height
        if self.look in ("head", "foot"):
            return "M" + " ".join(f"{_short(a)} {_short(b)}" for a, b in self.corners) + "z"
        return f"M{_short(x)} {_short(y)}h{_short(width)}v{_short(height)}h{_short(-width)}z"

    @property
    def corners(self) -> tuple[tuple[float, float], ...]:
        """The corners of the outline. The embedding narrows to the residual stream; the output widens from it."""
        left, right, top, bottom = self.x, self.x + self.width, self.y, self.y + self.height
        narrow_left, narrow_right = self.taper[0], self.taper[0] + self.taper[1]
        if self.look == "head":
            return (left, top), (right, top), (narrow_right, bottom), (narrow_left, bottom)
        if self.look == "foot":
            return (narrow_left, top), (narrow_right, top), (right, bottom), (left, bottom)
        return (left, top), (right, top), (right, bottom), (left, bottom)


@dataclass(frozen=True, slots=True)
class Label:
    """A text at a position: the number of a block, the name of a slot or of a tower."""

    text: str
    x: float
    y: float
    is_minor: bool = False
    """Whether it is the name of vectors, which a small drawing leaves out."""


@dataclass(frozen=True, slots=True)
class Network(Generic[Drawn]):
    """The drawing. All lengths are in its own units; it can be shown at any size."""

    width: float
    height: float
    shapes: tuple[Shape[Drawn], ...]
    spine: tuple[float, float, float, float]
    """The residual stream: x, y, width, height."""
    ribs: tuple[tuple[float, float, float], ...]
    """A line through the organs of each block: from x, to x, y."""
    blocks: tuple[Label, ...]
    slots: tuple[Label, ...]
    towers: tuple[Label, ...]
    others: tuple[Drawn, ...]
    """Organs without a place in the drawing."""
    tied: Shape[Drawn] | None
    """The embedding once more, if it is also the output."""
    pitch: float
    """The height of a block."""


@dataclass(frozen=True, slots=True)
class SlotColumn:
    """The organs of one slot, one below the other, between `x` and `x` + `width`."""

    slot: str
    inner: int
    """The largest size on the side that does not face the residual stream; 0 for vectors."""
    x: float
    width: float


def network(
    organs: Sequence[Drawn],
    pitch: float | None = None,
    *,
    named: bool = True,
    former: Mapping[int, int] | None = None,
) -> Network[Drawn]:
    """Return the drawing of `organs`, with the names of the slots if `named`.

    `pitch` is the height of a block; by default it follows the number of blocks. `former` has the former numbers of
    blocks of the text tower that were placed elsewhere.
    """
    inside = [organ for organ in organs if organ.block is not None]
    outside: dict[str, Drawn] = {}
    for organ in organs:
        if organ.block is None and organ.tower == "text" and organ.slot in (_EMBEDDING, _OUTPUT, _LAST_NORM):
            outside.setdefault(organ.slot, organ)
    columns, (spine_x, spine_width), width = _columns(inside, _stream_width(organs))
    rows = sorted({(organ.tower, organ.block or 0) for organ in inside})
    if pitch is None:
        pitch = next((pitch for most, pitch in PITCHES if len(rows) <= most), PITCH_MIN)
    headings = MARGIN
    if inside and named:
        reaches = (_reach(_heading(column.slot), math.sin) for column in columns.values())
        headings = max([HEADINGS_HEIGHT, *(10 + reach for reach in reaches)])
    below_head = MARGIN + (CAP_HEIGHT + CAP_GAP if _EMBEDDING in outside else 0.0)
    tops, towers, bottom = _rows(rows, below_head + headings, pitch)
    shapes = [_block_shape(organ, columns[_key(organ)], tops, pitch) for organ in inside]
    ribs = {row: (spine_x, spine_x, top + pitch / 2) for row, top in tops.items()}
    for shape in shapes:
        row = (shape.organ.tower, shape.organ.block or 0)
        low, high, middle = ribs[row]
        ribs[row] = (min(low, shape.x), max(high, shape.x + shape.width), middle)

    spine, wide = (spine_x, spine_width), width - 2 * MARGIN
    foot_y = bottom + 8.0 + CAP_GAP
    caps, tied = [], None
    if _EMBEDDING in outside:
        caps.append(Shape(outside[_EMBEDDING], MARGIN, MARGIN, wide, CAP_HEIGHT, "head", spine))
    if _LAST_NORM in outside:
        caps.append(Shape(outside[_LAST_NORM], spine_x - 8, bottom + 3, spine_width + 16, 6.0, "bar"))
    if _OUTPUT in outside:
        caps.append(Shape(outside[_OUTPUT], MARGIN, foot_y, wide, CAP_HEIGHT, "foot", spine))
    elif _EMBEDDING in outside:
        tied = Shape(outside[_EMBEDDING], MARGIN, foot_y, wide, CAP_HEIGHT, "foot", spine)
    has_foot = _EMBEDDING in outside or _OUTPUT in outside
    height = (foot_y + CAP_HEIGHT if has_foot else bottom + 8.0) + MARGIN
    spine_top = MARGIN + (CAP_HEIGHT if _EMBEDDING in outside else 0.0)
    spine_bottom = height - MARGIN - (CAP_HEIGHT if has_foot else 0.0)
    step = next((step for step in BLOCK_STEPS if step * pitch >= LABEL_PITCH), BLOCK_STEPS[-1])
    slots = _slot_labels(columns.values(), below_head + headings - 6) if named else ()
    return Network(
        width=round(max([width, *(label.x + _reach(label.text, math.cos) for label in slots)]), 1),
        height=round(height, 1),
        shapes=(*shapes, *caps),
        spine=(spine_x, spine_top, spine_width, spine_bottom - spine_top),
        ribs=tuple(ribs[row] for row in rows),
        blocks=tuple(
            Label(_numbers(tower, block, former or {}), spine_x + spine_width / 2, tops[tower, block] + pitch / 2)
            for tower, block in rows
            if block % step == 0
        ),
        slots=slots,
        towers=towers,
        others=tuple(organ for organ in organs if organ.block is None and outside.get(organ.slot) is not organ),
        pitch=pitch,
        tied=tied,
    )


def _stream_width(organs: Sequence[Drawable]) -> int:
    """Return the width of the residual stream: that of the embedding, else the size that most organs have."""
    for organ in organs:
        if organ.slot == _EMBEDDING and organ.block is None:
            return organ.shape[0]
    sizes = Counter(size for organ in organs for size in set(organ.shape[:2]))
    return max(sizes, key=lambda size: (sizes[size], -size), default=1)


def _key(organ: Drawable) -> tuple[str, bool]:
    """Return the key of a column: a slot can be on the left beside attention, in another tower on the right."""
    return organ.slot, is_beside_attention(organ.slot, organ.type)


def _columns(
    organs: Iterable[Drawable], stream: int
) -> tuple[dict[tuple[str, bool], SlotColumn], tuple[float, float], float]:
    """Return the place of each column by its key, x and width of the residual stream, and the width of the drawing.

    The columns follow each other outwards from the residual stream on both sides.
    """
    sizes: dict[tuple[str, bool], int] = {}
    for organ in organs:
        inner = 0  # of a vector
        if len(organ.shape) >= 2:
            first, second = organ.shape[:2]
            inner = second if first == stream else first if second == stream else max(first, second)
        sizes[_key(organ)] = max(sizes.get(_key(organ), 0), inner)
    sizes = {key: sizes[key] for key in sorted(sizes, key=lambda key: (reading_order(key[0]), key))}
    thin, total = sum(1 for inner in sizes.values() if not inner), sum(sizes.values())
    scale = max(0.0, (WINGS_WIDTH - thin * (THIN_WIDTH + GAP)) / total) if total else 1.0
    widths = {key: max(CELL_WIDTH_MIN, inner * scale) if inner else THIN_WIDTH for key, inner in sizes.items()}
    left_width = sum(width + GAP for (_, on_left), width in widths.items() if on_left)
    right_width = sum(width + GAP for (_, on_left), width in widths.items() if not on_left)
    spine_width = min(max(SPINE_MIN, stream * scale), SPINE_MAX)
    spine_x = MARGIN + max(left_width, WING_MIN)
    columns = {}
    left, right = spine_x, spine_x + spine_width
    for (slot, on_left), width in widths.items():
        if on_left:
            left -= width + GAP
        columns[slot, on_left] = SlotColumn(slot, sizes[slot, on_left], left if on_left else right + GAP, width)
        if not on_left:
            right += width + GAP
    full_width = spine_x + spine_width + max(right_width, WING_MIN) + MARGIN
    return columns, (spine_x, spine_width), full_width


def _rows(
    rows: Sequence[tuple[str, int]], top: float, pitch: float
) -> tuple[dict[tuple[str, int], float], tuple[Label, ...], float]:
    """Return the y of each block, the names of the towers, and the y below the last block."""
    tops: dict[tuple[str, int], float] = {}
    towers: list[Label] = []
    several = len({tower for tower, _ in rows}) > 1
    last = None
    for row in rows:
        if several and row[0] != last:
            towers.append(Label(row[0], MARGIN, top + 12))
            top += TOWER_GAP
            last = row[0]
        tops[row] = top
        top += pitch
    return tops, tuple(towers), top


def _block_shape(organ: Drawn, column: SlotColumn, tops: Mapping[tuple[str, int], float], pitch: float) -> Shape[Drawn]:
    """Return the shape of an organ of a block, which has the width of its column."""
    gap = 5.0 if pitch >= 32 else 3.0 if pitch >= 18 else 2.0 if pitch > PITCH_MIN else 1.0
    look = "stack" if len(organ.shape) >= EXPERT_DIMENSIONS else "thin" if len(organ.shape) < 2 else "cell"
    top = tops[organ.tower, organ.block or 0] + gap / 2
    return Shape(organ, column.x, top, column.width, pitch - gap, look)


def _heading(slot: str) -> str:
    return slot if len(slot) <= HEADING_LETTERS_MAX else f"{slot[: HEADING_LETTERS_MAX - 1]}…"


def _reach(text: str, along: Callable[[float], float]) -> float:
    """Return how far a slanted name reaches to the right (`math.cos`) or upwards (`math.sin`)."""
    return len(text) * LETTER_WIDTH * along(math.radians(HEADING_DEGREES))


def _slot_labels(columns: Iterable[SlotColumn], y: float) -> tuple[Label, ...]:
    """Return the names of the slots above their columns, those of the largest matrices first."""
    labels: list[Label] = []
    taken: list[float] = []
    for column in sorted(columns, key=lambda column: column.inner, reverse=True):
        x = column.x + column.width / 2
        place = bisect(taken, x)
        if all(abs(other - x) >= LABEL_DISTANCE for other in taken[max(0, place - 1) : place + 1]):
            labels.append(Label(_heading(column.slot), x, y, is_minor=not column.inner))
            taken.insert(place, x)
    return tuple(labels)


def _numbers(tower: str, block: int, former: Mapping[int, int]) -> str:
    """Return the number of a block, after an arrow the one that it had in its own model: `9←7`."""
    before = former.get(block) if tower == "text" else None
    return str(block) if before in (None, block) else f"{block}←{before}"


def _short(number: float) -> str:
    """Return a coordinate with at most one decimal."""
    return f"{number:.1f}".removesuffix(".0")
