"""θ along the depth of a model: a line a type from the first block to the last, with what each block spans. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from organs.web.charts.drawing import Axis, Chart, Line, drawn
from organs.web.charts.weights import ticks_between

WIDTH, HEIGHT = 760, 300
LABEL_WIDTH = 84
LOOKS = ("curve", "dashed", "dotted")
DEGREES_AROUND = 2.0
"""Kept free above and below the lines."""


@dataclass(frozen=True, slots=True)
class DepthPoint:
    """The organs of one type in one block: lowest, mean and highest θ in degrees."""

    position: int
    """Of the block among all blocks of the model, from 0: towers stand one behind the other."""
    lowest: float
    mean: float
    highest: float


@dataclass(frozen=True, slots=True)
class DepthLine:
    """One type along the blocks."""

    label: str
    points: tuple[DepthPoint, ...]


def depth_chart(lines: Sequence[DepthLine], blocks: int) -> bytes:
    """The picture of `lines` over `blocks` blocks, of which there are two or more."""
    points = [point for line in lines for point in line.points]
    low = max(0.0, min(point.lowest for point in points) - DEGREES_AROUND)
    high = min(90.0, max(point.highest for point in points) + DEGREES_AROUND)
    bands = [Line(_outline(line.points), "band") for line in lines]
    means = [
        Line([(float(point.position), point.mean) for point in line.points], LOOKS[index % len(LOOKS)], line.label)
        for index, line in enumerate(lines)
    ]
    return drawn(
        Chart(
            "Mean θ along the depth of the model, a line a type",
            *(WIDTH, HEIGHT),
            x=Axis(0.0, float(blocks - 1), _whole_ticks(blocks), "block"),
            y=Axis(low, high, tuple((value, f"{text}°") for value, text in ticks_between(low, high)), "θ"),
            lines=(*bands, *means),
            theta_on_y=True,
            label_width=LABEL_WIDTH,
        )
    )


def _outline(points: Sequence[DepthPoint]) -> list[tuple[float, float]]:
    """Along the highest and back along the lowest."""
    there = [(float(point.position), point.highest) for point in points]
    back = [(float(point.position), point.lowest) for point in reversed(points)]
    return [*there, *back, there[0]]


def _whole_ticks(blocks: int) -> tuple[tuple[float, str], ...]:
    ticks = ticks_between(0.0, float(blocks - 1), whole=True)
    return tuple((value, text) for value, text in ticks if value == int(value))
