"""θ over the number of parameters: a dot a family, and the lines that were fitted. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from organs.registry.amounts import count_text
from organs.web.charts.drawing import Axis, Chart, Dot, Line, drawn
from organs.web.charts.weights import ticks_between
from organs.web.render import theta_class

WIDTH, HEIGHT = 760, 360
LABEL_WIDTH = 96
ROUND = (1, 2, 5)
"""Numbers of parameters that are marked in each tenfold, when there are few tenfolds."""
TENFOLDS_FINE = 2.5


@dataclass(frozen=True, slots=True)
class SizedPoint:
    """A family of models: how many numbers its weights are, and its mean θ in degrees."""

    parameters: float
    theta: float
    models: int


@dataclass(frozen=True, slots=True)
class FittedLine:
    """θ = intercept + slope · log10(parameters)."""

    label: str
    look: str
    slope: float
    intercept: float


def scale_chart(points: Sequence[SizedPoint], lines: Sequence[FittedLine]) -> bytes:
    """The picture of one point or more."""
    sizes = [math.log10(point.parameters) for point in points]
    left, right = min(sizes) - 0.05, max(sizes) + 0.05
    if right - left < 0.2:
        left, right = left - 0.1, right + 0.1
    fitted = [
        Line([(x, line.intercept + line.slope * x) for x in (left, right)], line.look, line.label) for line in lines
    ]
    thetas = [*(point.theta for point in points), *(y for line in fitted for _, y in line.points)]
    low, high = max(0.0, min(thetas) - 1), min(90.0, max(thetas) + 1)
    dots = (
        Dot(size, point.theta, theta_class(point.theta), min(3.5 + math.log2(point.models), 9.0))
        for size, point in zip(sizes, points, strict=True)
    )
    return drawn(
        Chart(
            "θ over the number of parameters, a dot a family",
            *(WIDTH, HEIGHT),
            x=Axis(left, right, _size_ticks(left, right), "parameters"),
            y=Axis(low, high, tuple((value, f"{text}°") for value, text in ticks_between(low, high)), "θ of matrices"),
            lines=tuple(fitted),
            dots=tuple(dots),
            theta_on_y=True,
            label_width=LABEL_WIDTH if lines else 0,
        )
    )


def _size_ticks(left: float, right: float) -> tuple[tuple[float, str], ...]:
    """Tenfolds, and 2 and 5 between them where there is room."""
    factors = ROUND if right - left <= TENFOLDS_FINE else ROUND[:1]
    if right - left < 0.5:
        factors = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)  # type: ignore[assignment]
    powers = range(math.floor(left), math.ceil(right) + 1)
    sizes = [factor * 10.0**power for power in powers for factor in factors]
    return tuple(
        (math.log10(size), count_text(size).replace(".0", "")) for size in sizes if left <= math.log10(size) <= right
    )
