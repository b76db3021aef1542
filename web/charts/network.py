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
from dataclasses import dataclass, replace

from organs.registry.anatomy import is_beside_attention, reading_order
from organs.registry.entities.organ import PlacedOrgan

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


@dataclass(frozen=True, slots=True)
class Shape:
    """An organ as it is drawn, in the units of the drawing."""

    organ: PlacedOrgan
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
class Network:
    """The drawing. All lengths are in its own units; it can be shown at any size."""

    width: float
    height: float
    shapes: tuple[Shape, ...]
    spine: tuple[float, float, float, float]
    """The residual stream: x, y, width, height."""
    ribs: tuple[tuple[float, float, float], ...]
    """A line through the organs of each block: from x, to x, y."""
    blocks: tuple[Label, ...]
    slots: tuple[Label, ...]
    towers: tuple[Label, ...]
    others: tuple[PlacedOrgan, ...]
    """Organs without a place in the drawing."""
    tied: Shape | None
    """The embedding once more, if it is also the output."""
    pitch: float
    """The height of a block."""


_Key = tuple[str, bool]
"""A slot, and whether it is beside attention: another tower can have it on the other side."""


@dataclass(frozen=True, slots=True)
class _Column:
    """The organs of one slot, one below the other, between `x` and `x` + `width`."""

    slot: str
    inner: int
    """The largest size on the side that does not face the residual stream; 0 for vectors."""
    x: float
    width: float


def network(organs: Sequence[PlacedOrgan], pitch: float | None = None, *, named: bool = True) -> Network:
    """Return the drawing of `organs`, with the names of the slots if `named`.

    `pitch` is the height of a block; by default it follows the number of blocks.
    """
    inside = [organ for organ in organs if organ.block is not None]
    outside = _outside([organ for organ in organs if organ.block is None])
    stream = _stream_width(organs)
    sizes = _sizes(inside, stream)
    scale = _scale(sizes)
    widths = {key: max(CELL_WIDTH_MIN, inner * scale) if inner else THIN_WIDTH for key, inner in sizes.items()}
    left_width = sum(width + GAP for (_, on_left), width in widths.items() if on_left)
    right_width = sum(width + GAP for (_, on_left), width in widths.items() if not on_left)
    spine_width = min(max(SPINE_MIN, stream * scale), SPINE_MAX)
    spine_x = MARGIN + max(left_width, WING_MIN)
    width = spine_x + spine_width + max(right_width, WING_MIN) + MARGIN
    columns = _columns(sizes, widths, spine_x, spine_width)
    rows = sorted({(organ.tower, organ.block or 0) for organ in inside})
    pitch = _pitch(len(rows)) if pitch is None else pitch
    headings = _headings_height(columns.values()) if inside and named else MARGIN
    head_height = CAP_HEIGHT + CAP_GAP if _EMBEDDING in outside else 0.0
    tops, towers, bottom = _rows(rows, MARGIN + head_height + headings, pitch)
    shapes = [_block_shape(organ, columns[_key(organ)], tops, pitch) for organ in inside]
    has_foot = _EMBEDDING in outside or _OUTPUT in outside
    caps = _caps(outside, (MARGIN, width - 2 * MARGIN), (spine_x, spine_width), bottom)
    height = bottom + (MARGIN + 8.0 + CAP_HEIGHT + CAP_GAP if has_foot else MARGIN + 8.0)
    middle = spine_x + spine_width / 2
    spine_top = MARGIN + (CAP_HEIGHT if _EMBEDDING in outside else 0.0)
    spine_bottom = height - MARGIN - (CAP_HEIGHT if has_foot else 0.0)
    ends = _rib_ends(shapes, spine_x)
    slots = _slot_labels(columns.values(), MARGIN + head_height + headings - 6) if named else ()
    return Network(
        width=round(max([width, *(label.x + _reach(label.text, math.cos) for label in slots)]), 1),
        height=round(height, 1),
        shapes=(*shapes, *caps),
        spine=(spine_x, spine_top, spine_width, spine_bottom - spine_top),
        ribs=tuple((*ends[row], tops[row] + pitch / 2) for row in rows if row in ends),
        blocks=_block_labels(rows, tops, pitch, middle),
        slots=slots,
        towers=towers,
        others=tuple(organ for organ in organs if organ.block is None and outside.get(organ.slot) is not organ),
        pitch=pitch,
        tied=_tied(outside, caps, height - MARGIN - CAP_HEIGHT),
    )


def _outside(organs: Iterable[PlacedOrgan]) -> dict[str, PlacedOrgan]:
    """Return the embedding, the last norm and the output, by slot."""
    named: dict[str, PlacedOrgan] = {}
    for organ in organs:
        if organ.slot in (_EMBEDDING, _OUTPUT, _LAST_NORM) and organ.tower == "text":
            named.setdefault(organ.slot, organ)
    return named


def _stream_width(organs: Sequence[PlacedOrgan]) -> int:
    """Return the width of the residual stream: that of the embedding, else the size that most organs have."""
    for organ in organs:
        if organ.slot == _EMBEDDING and organ.block is None:
            return organ.shape[0]
    sizes = Counter(size for organ in organs for size in set(organ.shape[:2]))
    return max(sizes, key=lambda size: (sizes[size], -size), default=1)


def _inner(organ: PlacedOrgan, stream: int) -> int:
    """Return the size of a matrix on the side that does not face the residual stream; 0 for a vector."""
    if len(organ.shape) < 2:  # a vector has one dimension
        return 0
    first, second = organ.shape[:2]
    if stream in (first, second):
        return second if first == stream else first
    return max(first, second)


def _key(organ: PlacedOrgan) -> _Key:
    return organ.slot, is_beside_attention(organ.slot, organ.type)


def _sizes(organs: Iterable[PlacedOrgan], stream: int) -> dict[_Key, int]:
    """Return the largest inner size of each column, those next to the residual stream first."""
    sizes: dict[_Key, int] = {}
    for organ in organs:
        sizes[_key(organ)] = max(sizes.get(_key(organ), 0), _inner(organ, stream))
    return {key: sizes[key] for key in sorted(sizes, key=lambda key: (reading_order(key[0]), key))}


def _scale(sizes: Mapping[_Key, int]) -> float:
    """Return the units of the drawing for one column or row of a matrix."""
    thin = sum(1 for inner in sizes.values() if not inner)
    total = sum(sizes.values())
    return max(0.0, (WINGS_WIDTH - thin * (THIN_WIDTH + GAP)) / total) if total else 1.0


def _columns(
    sizes: Mapping[_Key, int], widths: Mapping[_Key, float], spine_x: float, spine_width: float
) -> dict[_Key, _Column]:
    """Return the place of each column: outwards from the residual stream on both sides."""
    columns: dict[_Key, _Column] = {}
    left, right = spine_x, spine_x + spine_width
    for (slot, on_left), inner in sizes.items():
        width = widths[slot, on_left]
        if on_left:
            left -= width + GAP
        columns[slot, on_left] = _Column(slot, inner, left if on_left else right + GAP, width)
        if not on_left:
            right += width + GAP
    return columns


def _pitch(blocks: int) -> float:
    return next((pitch for most, pitch in PITCHES if blocks <= most), PITCH_MIN)


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


def _block_shape(organ: PlacedOrgan, column: _Column, tops: Mapping[tuple[str, int], float], pitch: float) -> Shape:
    """Return the shape of an organ of a block, which has the width of its column."""
    is_vector = len(organ.shape) < 2
    gap = 5.0 if pitch >= 32 else 3.0 if pitch >= 18 else 2.0 if pitch > PITCH_MIN else 1.0
    look = "stack" if len(organ.shape) >= EXPERT_DIMENSIONS else "thin" if is_vector else "cell"
    top = tops[organ.tower, organ.block or 0] + gap / 2
    return Shape(organ, column.x, top, column.width, pitch - gap, look)


def _caps(
    outside: Mapping[str, PlacedOrgan], across: tuple[float, float], spine: tuple[float, float], bottom: float
) -> list[Shape]:
    """Return the embedding, the last norm and the output."""
    caps = []
    if _EMBEDDING in outside:
        caps.append(Shape(outside[_EMBEDDING], across[0], MARGIN, across[1], CAP_HEIGHT, "head", spine))
    if _LAST_NORM in outside:
        caps.append(Shape(outside[_LAST_NORM], spine[0] - 8, bottom + 3, spine[1] + 16, 6.0, "bar"))
    if _OUTPUT in outside:
        caps.append(Shape(outside[_OUTPUT], across[0], bottom + 8.0 + CAP_GAP, across[1], CAP_HEIGHT, "foot", spine))
    return caps


def _tied(outside: Mapping[str, PlacedOrgan], caps: Iterable[Shape], bottom: float) -> Shape | None:
    """Return the embedding in the place of the output, if there is no output matrix."""
    if _OUTPUT in outside:
        return None
    return next((replace(cap, y=bottom, look="foot") for cap in caps if cap.look == "head"), None)


def _rib_ends(shapes: Iterable[Shape], spine_x: float) -> dict[tuple[str, int], tuple[float, float]]:
    """Return from where to where the organs of each block reach."""
    ends: dict[tuple[str, int], tuple[float, float]] = {}
    for shape in shapes:
        row = (shape.organ.tower, shape.organ.block or 0)
        low, high = ends.get(row, (spine_x, spine_x))
        ends[row] = (min(low, shape.x), max(high, shape.x + shape.width))
    return ends


def _block_labels(
    rows: Sequence[tuple[str, int]], tops: Mapping[tuple[str, int], float], pitch: float, middle: float
) -> tuple[Label, ...]:
    """Return the numbers of the blocks, as many as are legible."""
    step = next((step for step in BLOCK_STEPS if step * pitch >= LABEL_PITCH), BLOCK_STEPS[-1])
    return tuple(Label(str(row[1]), middle, tops[row] + pitch / 2) for row in rows if row[1] % step == 0)


def _headings_height(columns: Iterable[_Column]) -> float:
    return max([HEADINGS_HEIGHT, *(10 + _reach(_heading(column.slot), math.sin) for column in columns)])


def _heading(slot: str) -> str:
    return slot if len(slot) <= HEADING_LETTERS_MAX else f"{slot[: HEADING_LETTERS_MAX - 1]}…"


def _reach(text: str, along: Callable[[float], float]) -> float:
    """Return how far a slanted name reaches to the right (`math.cos`) or upwards (`math.sin`)."""
    return len(text) * LETTER_WIDTH * along(math.radians(HEADING_DEGREES))


def _slot_labels(columns: Iterable[_Column], y: float) -> tuple[Label, ...]:
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


def _short(number: float) -> str:
    """Return a coordinate with at most one decimal."""
    return f"{number:.1f}".removesuffix(".0")
