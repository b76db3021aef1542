"""Charts of an evolution: the change of each trial with the best so far, and two texts against each other. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from organs.web.charts.plots import Axis, Chart, ChartLine, Cross, Dot, drawn, ticks_between

TRIALS_WIDTH, TRIALS_HEIGHT = 760, 320
FRONT_WIDTH, FRONT_HEIGHT = 760, 380
LABEL_WIDTH = 84
POINTS_MAX = 1500
"""The most points that are drawn; of more, the best ones and every so many of the others."""
UPPER_SHARE = 0.9
"""Trials above this share of all are drawn at the upper edge, so that one bad trial does not flatten the others."""
PERCENT_MAX = 1e6
FOUND_TONE, OTHER_TONE = "name", "tn"
"""The classes of dots on the front, or better than all before them, and of the others: filled and hollow, because
colours mean θ."""

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class TrialPoint:
    """A trial with its mean change in nats."""

    number: int
    change: float
    counts: bool
    """Whether it can be the best: neither stopped early nor above a limit."""


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A trial with its changes on two texts, in percent."""

    number: int
    across: float
    up: float
    is_front: bool


def percent(change: float) -> float:
    """Return a change of the logarithm of the perplexity in percent of the perplexity."""
    return min(100.0 * math.expm1(min(change, 20.0)), PERCENT_MAX)


def trials_chart(points: Sequence[TrialPoint]) -> bytes:
    """Return the chart; `points` has at least one, in the order of their numbers.

    Dots: trials that are better than all before them, and others. Crosses: trials that were stopped early or exceed a
    limit. The line is the best so far, and the dotted one the base.
    """
    values = [percent(point.change) for point in points]
    low, high = _range([*values, 0.0])
    best = math.inf
    steps: list[tuple[float, float]] = []
    marked: set[int] = set()
    for point, value in zip(points, values, strict=True):
        if point.counts and value < best:
            if steps:
                steps.append((float(point.number), steps[-1][1]))
            best = value
            steps.append((float(point.number), min(value, high)))
            marked.add(point.number)
    first, last = float(points[0].number), float(max(points[-1].number, points[0].number + 1))
    if steps:
        steps.append((last, steps[-1][1]))
    shown = _thinned(list(zip(points, values, strict=True)), lambda one: one[0].number in marked)
    lines = [ChartLine([(first, 0.0), (last, 0.0)], "dotted", "base")]
    lines += [ChartLine(steps, "curve", "best so far")] if steps else []
    ticks = tuple(tick for tick in ticks_between(first, last, whole=True) if tick[0] == int(tick[0]))
    return drawn(
        Chart(
            "The mean change of the perplexity by each trial",
            *(TRIALS_WIDTH, TRIALS_HEIGHT),
            x=Axis(first, last, ticks, "trial"),
            y=Axis(low, high, _percent_ticks(low, high), "mean change of the perplexity"),
            lines=tuple(lines),
            dots=tuple(
                Dot(point.number, min(value, high), FOUND_TONE if point.number in marked else OTHER_TONE)
                for point, value in shown
                if point.counts
            ),
            crosses=tuple(Cross(point.number, min(value, high), "") for point, value in shown if not point.counts),
            label_width=LABEL_WIDTH,
        )
    )


def front_chart(points: Sequence[FrontPoint], across: str, up: str, *, is_joined: bool) -> bytes:
    """Return the chart of two texts, whose names are `across` and `up`; `points` has at least one.

    If they are all texts, the front `is_joined` by a line.
    """
    left, right = _range([*(point.across for point in points), 0.0])
    low, high = _range([*(point.up for point in points), 0.0])
    front = sorted((point for point in points if point.is_front), key=lambda point: point.across)
    lines = [ChartLine([(left, 0.0), (right, 0.0)], "dotted"), ChartLine([(0.0, low), (0.0, high)], "dotted")]
    if is_joined and len(front) > 1:
        lines.append(ChartLine([(min(one.across, right), min(one.up, high)) for one in front], "curve"))
    shown = _thinned(points, lambda one: one.is_front)
    return drawn(
        Chart(
            f"Change of the perplexity on {up} against {across}",
            *(FRONT_WIDTH, FRONT_HEIGHT),
            x=Axis(left, right, _percent_ticks(left, right), f"change on {across}"),
            y=Axis(low, high, _percent_ticks(low, high), f"change on {up}"),
            lines=tuple(lines),
            dots=tuple(
                Dot(min(one.across, right), min(one.up, high), FOUND_TONE if one.is_front else OTHER_TONE)
                for one in sorted(shown, key=lambda one: one.is_front)
            ),
            label_width=LABEL_WIDTH,
        )
    )


def _range(values: Iterable[float]) -> tuple[float, float]:
    """Return the ends of an axis: from the smallest value to that of UPPER_SHARE, with 0 and some room."""
    ordered = sorted(values)
    low = min(ordered[0], 0.0)
    high = max(ordered[min(len(ordered) - 1, int(UPPER_SHARE * len(ordered)))], 0.0)
    room = (high - low) * 0.06 or 0.5
    return low - room, high + room


def _thinned(points: Sequence[P], is_kept: Callable[[P], bool]) -> list[P]:
    """Return at most about POINTS_MAX points: those that are kept, and every so many of the others."""
    step = max(1, math.ceil(len(points) / POINTS_MAX))
    return [point for place, point in enumerate(points) if place % step == 0 or is_kept(point)]


def _percent_ticks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    return tuple((value, f"{text}%") for value, text in ticks_between(low, high))
