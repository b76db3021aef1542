"""A small picture of a chimera: blocks run across, types run down, and colours show which model gave each part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from organs.registry.anatomy import OrganType, type_name
from organs.registry.entities.chimera import ChimeraSummary
from organs.web.render import donor_class

BLOCK, GAP = 10, 2
"""Units of a block, and between rows."""
CAP_SHARE = 20
"""The column for organs outside the blocks is one part in so many of the width of the blocks."""
ROWS = {OrganType.SKELETON.value: 14, OrganType.NORM.value: 4, OrganType.ORGAN.value: 20}
"""Units of the row of each type, from top to bottom. Types without a row are in the first column."""
BLOCKS_MAX = 200
"""Blocks with lines between them."""


@dataclass(frozen=True, slots=True)
class Strip:
    """The picture, in units: rectangles of the base, rectangles of donors, and the lines between blocks."""

    width: float
    height: int
    ground: tuple[Rectangle, ...]
    parts: tuple[Rectangle, ...]
    lines: str
    """The path of the lines."""


@dataclass(frozen=True, slots=True)
class Rectangle:
    """A rectangle with the class of its colour."""

    x: float
    y: int
    width: float
    height: int
    tone: str = ""


@dataclass(frozen=True, slots=True)
class DonorLine:
    """A model that gave parts, with the class of its colour and its parts in words."""

    model: str
    tone: str
    words: str


def donor_tone(parents: Sequence[str], model: str) -> str:
    """Return the class of the colour of a parent. The base has a colour only where its own organs were changed."""
    place = parents.index(model) if model in parents else 0
    return donor_class(place - 1) if place else "own-change"


def strip(chimera: ChimeraSummary) -> Strip:
    """Return the picture of a chimera."""
    long = BLOCK * max(chimera.blocks, 1)
    cap, left = long / CAP_SHARE, long / CAP_SHARE * 1.3
    tops: dict[str, tuple[int, int]] = {}
    y = 0
    for kind, height in ROWS.items():
        tops[kind] = (y, height)
        y += height + GAP
    height = y - GAP
    ground = [Rectangle(0, 0, cap, height)]
    ground += [Rectangle(left, top, long, tall) for top, tall in tops.values()]
    parts: list[Rectangle] = []
    for part in chimera.parts:
        tone = donor_tone(chimera.parents, part.model)
        inside = [block for block in part.blocks if block is not None]
        if part.type not in tops or len(inside) < len(part.blocks):
            parts.append(Rectangle(0, 0, cap, height, tone))
        top, tall = tops.get(part.type, (0, height))
        parts += [
            Rectangle(left + BLOCK * first, top, BLOCK * (last - first + 1), tall, tone) for first, last in runs(inside)
        ]
    edges = range(1, chimera.blocks) if chimera.blocks <= BLOCKS_MAX else ()
    lines = "".join(f"M{left + BLOCK * block:g} 0v{height}" for block in edges)
    return Strip(left + long, height, tuple(ground), tuple(parts), lines)


def donor_lines(chimera: ChimeraSummary) -> list[DonorLine]:
    """Return the models that gave parts, in the order of the recipe."""
    words: dict[str, list[str]] = {}
    for part in chimera.parts:
        inside = runs(block for block in part.blocks if block is not None)
        numbers = ", ".join(str(first) if first == last else f"{first}–{last}" for first, last in inside)
        words.setdefault(part.model, []).append(f"{type_name(part.type)} {numbers}".strip())
    return [
        DonorLine(model, donor_tone(chimera.parents, model), "; ".join(words[model]))
        for model in chimera.parents
        if model in words
    ]


def runs(blocks: Iterable[int]) -> list[tuple[int, int]]:
    """Return the first and the last block of each run of neighbours."""
    found: list[tuple[int, int]] = []
    for block in sorted(blocks):
        if found and found[-1][1] == block - 1:
            found[-1] = (found[-1][0], block)
        else:
            found.append((block, block))
    return found
