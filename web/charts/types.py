"""How θ is spread in each type of organ: a row a type, a bar over its middle half, a dot at its mean. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from organs.web.charts.drawing import Axis, Chart, Dot, Line, drawn
from organs.web.render import theta_class

WIDTH, ROW_HEIGHT = 760, 34
HEAD_HEIGHT = 70
NAME_WIDTH = 44
TICK = 0.22
"""Half the height of the mark at the median, in rows."""


@dataclass(frozen=True, slots=True)
class TypeSpread:
    """Degrees of θ. The whisker goes one standard deviation to either side of the mean, within 0 to 90."""

    label: str
    mean: float
    deviation: float
    lower: float
    median: float
    upper: float


def types_chart(types: Sequence[TypeSpread]) -> bytes:
    """The picture of one type or more."""
    rows = list(enumerate(reversed(types)))
    lines: list[Line] = []
    for row, one in rows:
        ends = max(0.0, one.mean - one.deviation), min(90.0, one.mean + one.deviation)
        lines.append(Line([(end, float(row)) for end in ends], "whisker"))
        lines.append(Line([(one.lower, float(row)), (one.upper, float(row))], "box"))
        lines.append(Line([(one.median, row - TICK), (one.median, row + TICK)], "whisker"))
    return drawn(
        Chart(
            "θ by type of organ",
            *(WIDTH, types_height(len(types))),
            x=Axis(0.0, 90.0, tuple((float(theta), f"{theta}°") for theta in range(0, 91, 15)), "θ"),
            y=Axis(-0.6, len(rows) - 0.4, tuple((float(row), one.label) for row, one in rows)),
            lines=tuple(lines),
            dots=tuple(Dot(one.mean, float(row), theta_class(one.mean), 6.0) for row, one in rows),
            name_width=NAME_WIDTH,
        )
    )


def types_height(count: int) -> int:
    """The height in pixels of a picture of `count` types."""
    return HEAD_HEIGHT + ROW_HEIGHT * count
