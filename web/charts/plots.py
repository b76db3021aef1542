"""Charts with axes, as SVG with a stylesheet of their own: a histogram of the weights of an organ, θ along the depth, θ
against size, θ by type, sizes of a model against their divergence. Pure.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from xml.etree.ElementTree import Element, SubElement, tostring

import numpy as np
from numpy.typing import NDArray

from organs.registry.amounts import count_text
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.gguf import DType
from organs.registry.measure.sample import Run, read_values, sample_runs, spread
from organs.registry.measure.zmeasure import QUANTILES, THETA_MIN_VALUES
from organs.registry.measures import caution_of_mean
from organs.registry.store import PlainReader, RangeReader
from organs.web.render import DARK, LIGHT, THETA_TONES, theta_class

FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', sans-serif"
TEXT_PIXELS = 12

_COLOURED_RULES = """
.guide, .box { stroke: LINE; }
.note, .mark { fill: QUIET; }
.name { fill: INK; }
.area { fill: LINE; stroke: QUIET; }
.band { fill: QUIET; }
.curve, .dashed, .dotted, .whisker, .dot, .cross { stroke: INK; }
.tn { fill: PAPER; }
"""
_SHAPE_RULES = """
path { fill: none; stroke-linejoin: round; }
text { font-variant-numeric: tabular-nums; }
.end { text-anchor: end; }
.middle { text-anchor: middle; }
.band { fill-opacity: .14; }
.curve { stroke-width: 1.75; }
.dashed { stroke-width: 1.5; stroke-dasharray: 6 4; }
.dotted { stroke-width: 1.5; stroke-dasharray: 1.5 3; }
.box { stroke-width: 13; }
.cross { stroke-width: 2; }
"""


def _with_colours(inks: dict[str, str]) -> str:
    return re.sub("|".join(inks).upper(), lambda match: inks[match[0].lower()], _COLOURED_RULES)


_TONES = "\n".join(f".t{step} {{ fill: {tone}; }}" for step, tone in enumerate(THETA_TONES))
STYLE = " ".join(
    f":root {{ color-scheme: light dark; font: {TEXT_PIXELS}px {FONT}; }} {_SHAPE_RULES} "
    f"{_with_colours(LIGHT)} {_TONES}"
    f"@media (prefers-color-scheme: dark) {{ {_with_colours(DARK)} {_TONES} }}".split()
)
"""The tones come last in both colour schemes, so that no other rule replaces the colour of θ of a dot."""

STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode("ascii")
POLICY = f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; frame-ancestors 'none'; base-uri 'none'"
"""Content-Security-Policy of an SVG that is opened as its own document. Only its stylesheet is allowed."""

DEGREES_MAX = 90.0
LABEL_PIXELS = 14
"""Least distance between two labels."""
MARGIN_TOP, MARGIN_RIGHT, MARGIN_BOTTOM, MARGIN_LEFT = 26, 14, 38, 54
STRIP_PIXELS = 5
CROSS_PIXELS = 4
"""Half the width of a cross."""
MARK_GAP = 11
"""Pixels from the y axis to its marks. The strip of colours is between them."""
AROUND = 0.02
"""Free space at both ends of an axis, as a share of its range."""


def printable(text: str) -> str:
    """Return `text` without characters that XML cannot hold."""
    return "".join(letter if letter.isprintable() and letter not in "\ufffe\uffff" else "\ufffd" for letter in text)


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: its range, its marks (value, text), and its title."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    title: str = ""

    def share(self, value: float) -> float:
        """Return the place of `value` along the axis: 0 at its begin, 1 at its end."""
        span = (self.high - self.low) or 1.0
        return ((value - self.low) / span + AROUND) / (1 + 2 * AROUND)


@dataclass(frozen=True, slots=True)
class ChartLine:
    """Points joined in order. `look` is a class of the stylesheet: area, band, curve, dashed, dotted, box, whisker."""

    points: Sequence[tuple[float, float]]
    look: str
    label: str = ""
    """Text behind the last point."""


@dataclass(frozen=True, slots=True)
class Dot:
    """A single point. `tone` is the CSS class of a colour of θ."""

    x: float
    y: float
    tone: str
    radius: float = 4.0


@dataclass(frozen=True, slots=True)
class Cross:
    """A point that is drawn as a cross, with its name beside it."""

    x: float
    y: float
    name: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart. Lines are painted first, then dots, then crosses."""

    title: str
    width: int
    height: int
    x: Axis
    y: Axis
    lines: tuple[ChartLine, ...] = ()
    dots: tuple[Dot, ...] = ()
    crosses: tuple[Cross, ...] = ()
    theta_on_y: bool = False
    """Whether the y axis is θ in degrees. If so, the colours of θ are drawn along it."""
    label_width: int = 0
    """Free pixels on the right, for the labels of lines."""
    name_width: int = 0
    """Additional pixels on the left, if the marks of the y axis are names."""


def drawn(chart: Chart) -> bytes:
    """Return the chart as an SVG document. The same chart gives the same bytes."""
    left = MARGIN_LEFT + chart.name_width
    width = chart.width - left - MARGIN_RIGHT - chart.label_width
    height = chart.height - MARGIN_TOP - MARGIN_BOTTOM

    def x(value: float) -> float:
        return round(chart.x.share(value) * width, 1)

    def y(value: float) -> float:
        return round((1 - chart.y.share(value)) * height, 1)

    def write(text: str, look: str, x: float, y: float) -> None:
        SubElement(plot, "text", {"class": look, "x": f"{x:g}", "y": f"{y:g}"}).text = printable(text)

    size = {"viewBox": f"0 0 {chart.width} {chart.height}", "width": str(chart.width), "height": str(chart.height)}
    svg = Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size, "role": "img"})
    SubElement(svg, "title").text = printable(chart.title)
    SubElement(svg, "style").text = STYLE
    plot = SubElement(svg, "g", {"transform": f"translate({left}, {MARGIN_TOP})"})
    SubElement(plot, "path", {"class": "guide", "d": f"M0 0V{height}H{width}"})
    for value, text in chart.y.ticks:
        SubElement(plot, "path", {"class": "guide", "d": f"M0 {y(value):g}h{width}"})
        write(text, "mark end", -MARK_GAP, y(value) + 3.5)
    for value, text in chart.x.ticks:
        write(text, "mark middle", x(value), height + 15)
    for line in chart.lines:
        points = " ".join(f"{x(across):g} {y(up):g}" for across, up in line.points)
        SubElement(plot, "path", {"class": line.look, "d": f"M{points}"})
    for dot in chart.dots:
        place = {"cx": f"{x(dot.x):g}", "cy": f"{y(dot.y):g}", "r": f"{dot.radius:.3g}"}
        SubElement(plot, "circle", {"class": f"dot {dot.tone}", **place})
    for cross in chart.crosses:
        across, up = x(cross.x), y(cross.y)
        arm, span = CROSS_PIXELS, 2 * CROSS_PIXELS
        shape = f"M{across - arm:g} {up - arm:g}l{span} {span}m0 {-span}l{-span} {span}"
        SubElement(plot, "path", {"class": "cross", "d": shape})
        write(cross.name, "name", across + 9, up - 5)
    write(chart.y.title, "note", 2 - left, -12)
    write(chart.x.title, "note end", width, height + 34)
    step = DEGREES_MAX / len(THETA_TONES)
    for number in range(len(THETA_TONES) if chart.theta_on_y else 0):
        low, high = max(number * step, chart.y.low), min((number + 1) * step, chart.y.high)
        if low < high:
            place = {"x": str(-STRIP_PIXELS), "y": f"{y(high):g}"}
            size = {"width": str(STRIP_PIXELS), "height": f"{y(low) - y(high):.3g}"}
            SubElement(plot, "rect", {"class": f"t{number}", **place, **size})
    # The labels at the ends of lines are moved apart where they would overlap.
    labelled = [line for line in chart.lines if line.label and line.points]
    places, lowest = [], -float(LABEL_PIXELS)
    for line in sorted(labelled, key=lambda line: y(line.points[-1][1])):
        lowest = max(y(line.points[-1][1]), lowest + LABEL_PIXELS)
        places.append((lowest, line))
    excess = max(0.0, lowest - height)
    for end, line in places:
        write(line.label, "name", x(line.points[-1][0]) + 8, end - excess + 4)
    document: bytes = tostring(svg, encoding="utf-8")
    return document + b"\n"


CHUNKS_MAX = 32
"""128 MiB of plain bytes, 0.1 s to decode. For larger organs, only a part of the sample is read."""


def sampled_values(reader: PlainReader, dtype: DType, elements: int) -> NDArray[np.floating]:
    """Return the sampled weights of the organ, from at most 32 chunks. Raises CorruptBlob, UnsupportedDType."""
    begins = [chunk.plain_offset_bytes for chunk in reader.chunks]
    chosen = set(spread(len(begins), CHUNKS_MAX))

    def is_in_chosen_chunks(run: Run) -> bool:
        start, size = (number // dtype.block_elements * dtype.block_bytes for number in run)
        first, last = (bisect_right(begins, offset) - 1 for offset in (start, start + size - 1))
        return chosen.issuperset(range(first, last + 1))

    runs = list(filter(is_in_chosen_chunks, sample_runs(elements)))
    values: NDArray[np.floating] = read_values(RangeReader(reader).read, runs, dtype)
    return values


WEIGHTS_WIDTH, WEIGHTS_HEIGHT = 720, 260
BINS = 60
CURVE_POINTS = 121
TICKS_ABOUT = 6


@dataclass(frozen=True, slots=True)
class WeightHistogram:
    """A histogram of the finite values of a sample between two quantiles. Values outside are only counted."""

    looked_at: int
    """Number of values in the sample, including NaN and infinities."""
    mean: float
    deviation: float
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    bell: tuple[float, ...]
    """Number of values in each bin for a normal distribution with this mean and deviation."""
    beyond: int
    """Finite values outside the range."""


def weights_of(values: NDArray[np.floating]) -> WeightHistogram | str:
    """Return the histogram of `values`, or a sentence that says why there is no chart."""
    finite = np.asarray(values, np.float64)
    finite = finite[np.isfinite(finite)]
    if finite.size < THETA_MIN_VALUES:
        return f"There is no chart for fewer than {THETA_MIN_VALUES} finite values."
    low, high = (float(edge) for edge in np.quantile(finite, QUANTILES))
    if not low < high or not math.isfinite(high - low) or (high - low) / BINS <= abs(low) * 1e-12:
        return "Nearly all values are equal: there is nothing to draw."
    with np.errstate(over="ignore"):
        mean, deviation = float(finite.mean()), float(finite.std())
    if not (math.isfinite(mean) and math.isfinite(deviation)):
        return "The values are too large to draw."
    counts, edges = np.histogram(finite, BINS, (low, high))
    # The share of a normal distribution below each edge.
    shares = [0.5 * (1 + math.erf((edge - mean) / deviation / math.sqrt(2))) for edge in edges]
    bell = tuple(finite.size * (upper - lower) for lower, upper in pairwise(shares))
    beyond = int(finite.size - counts.sum())
    return WeightHistogram(
        int(values.size), mean, deviation, tuple(map(float, edges)), tuple(map(int, counts)), bell, beyond
    )


def weights_chart(weights: WeightHistogram) -> bytes:
    """Return the chart: bars for the weights, a line for the normal distribution."""
    edges, top = weights.edges, max(*weights.counts, *weights.bell)
    steps = [(edges[0], 0.0)]
    for (lower, upper), count in zip(pairwise(edges), weights.counts, strict=True):
        steps += [(lower, float(count)), (upper, float(count))]
    steps.append((edges[-1], 0.0))
    width = (edges[-1] - edges[0]) / BINS
    scale = weights.looked_at * width / (weights.deviation * math.sqrt(2 * math.pi))
    xs = [edges[0] + (edges[-1] - edges[0]) * step / (CURVE_POINTS - 1) for step in range(CURVE_POINTS)]
    curve = [(x, scale * math.exp(-(((x - weights.mean) / weights.deviation) ** 2) / 2)) for x in xs]
    return drawn(
        Chart(
            "Distribution of the weights",
            *(WEIGHTS_WIDTH, WEIGHTS_HEIGHT),
            x=Axis(edges[0], edges[-1], ticks_between(edges[0], edges[-1]), "value"),
            y=Axis(0.0, top, ticks_between(0.0, top, whole=True), f"values of {weights.looked_at:,}"),
            lines=(ChartLine(steps, "area"), ChartLine(curve, "dashed")),
        )
    )


def ticks_between(low: float, high: float, *, whole: bool = False) -> tuple[tuple[float, str], ...]:
    """Return about six round numbers from `low` to `high`, each with its text."""
    step_min = (high - low) / TICKS_ABOUT
    power = 10.0 ** math.floor(math.log10(step_min))
    step = next(size * power for size in (1, 2, 5, 10) if size * power >= step_min * 0.999)
    step = max(step, 1.0) if whole else step
    digits = max(0, -math.floor(math.log10(step)))
    ticks = []
    for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1):
        value = number * step
        if value == 0:
            text = "0"
        elif abs(value) < 1e6 and digits <= 4:
            text = f"{value:,.0f}" if step >= 1 else f"{value:.{digits}f}"
        else:
            text = f"{value:.3g}"
        ticks.append((value, text.replace("-", "−")))
    return tuple(ticks)


def _degree_ticks(low: float, high: float) -> tuple[tuple[float, str], ...]:
    return tuple((value, f"{text}°") for value, text in ticks_between(low, high))


DEPTH_WIDTH, DEPTH_HEIGHT = 760, 300
DEPTH_LABEL_WIDTH = 108
LOOKS = ("curve", "dashed", "dotted")
BLOCKS_MAX = 400
"""Most blocks that are drawn. The largest models today have a few hundred; a hostile file can have any number."""
DEGREES_AROUND = 2.0
"""Free degrees above and below the lines."""


@dataclass(frozen=True, slots=True)
class BlockTheta:
    """The organs of one type in one block: how many have a θ, and their lowest, mean and highest θ in degrees."""

    type: str
    tower: str
    block: int
    position: int
    """Index of the block in all blocks of the model, from 0. Blocks are sorted by tower, then by number."""
    tensors: int
    lowest_theta: float
    mean_theta: float
    highest_theta: float
    caution: str = ""
    """Why the mean is uncertain; empty if it is not."""


def block_thetas(organs: Iterable[PlacedOrgan]) -> list[BlockTheta]:
    """Return θ by type and block, in the order of the types' names, then of the blocks.

    Organs outside the blocks and those without a θ are left out, as are blocks beyond the first `BLOCKS_MAX`.
    """
    thetas: dict[tuple[str, str, int], list[float]] = {}
    uncertain: Counter[tuple[str, str, int]] = Counter()
    blocks = set()
    for organ in organs:
        if organ.block is not None:
            blocks.add((organ.tower, organ.block))
            if organ.theta is not None:
                thetas.setdefault((organ.type, organ.tower, organ.block), []).append(organ.theta)
                uncertain[organ.type, organ.tower, organ.block] += organ.theta_caution != ""
    positions = {place: position for position, place in enumerate(sorted(blocks)[:BLOCKS_MAX])}
    return [
        BlockTheta(
            type=kind,
            tower=tower,
            block=block,
            position=positions[tower, block],
            tensors=len(values),
            lowest_theta=min(values),
            mean_theta=fmean(values),
            highest_theta=max(values),
            caution=caution_of_mean(uncertain[kind, tower, block], len(values)),
        )
        for (kind, tower, block), values in sorted(thetas.items())
        if (tower, block) in positions
    ]


def depth_chart(lines: Mapping[str, Sequence[BlockTheta]], blocks: int) -> bytes:
    """Return the chart of labelled lines over two or more blocks."""
    points = [point for line in lines.values() for point in line]
    low = max(0.0, min(point.lowest_theta for point in points) - DEGREES_AROUND)
    high = min(90.0, max(point.highest_theta for point in points) + DEGREES_AROUND)
    bands, means = [], []
    for index, (label, line) in enumerate(lines.items()):
        highest = [(float(point.position), point.highest_theta) for point in line]
        lowest = [(float(point.position), point.lowest_theta) for point in reversed(line)]
        bands.append(ChartLine([*highest, *lowest, highest[0]], "band"))
        mean = [(float(point.position), point.mean_theta) for point in line]
        means.append(ChartLine(mean, LOOKS[index % len(LOOKS)], label))
    ticks = ticks_between(0.0, float(blocks - 1), whole=True)
    return drawn(
        Chart(
            "Mean θ along the depth of the model, one line for each type",
            *(DEPTH_WIDTH, DEPTH_HEIGHT),
            x=Axis(0.0, float(blocks - 1), tuple(tick for tick in ticks if tick[0] == int(tick[0])), "block"),
            y=Axis(low, high, _degree_ticks(low, high), "θ"),
            lines=(*bands, *means),
            theta_on_y=True,
            label_width=DEPTH_LABEL_WIDTH,
        )
    )


SCALE_WIDTH, SCALE_HEIGHT = 760, 360
SCALE_LABEL_WIDTH = 96
TENFOLDS_FINE = 2.5
"""Decades of the longest range in which more than the powers of ten are marked."""


@dataclass(frozen=True, slots=True)
class SizedPoint:
    """A family of models: its mean number of parameters, and its mean θ in degrees."""

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
    """Return the chart. `points` has at least one point."""
    sizes = [math.log10(point.parameters) for point in points]
    left, right = min(sizes) - 0.05, max(sizes) + 0.05
    if right - left < 0.2:
        left, right = left - 0.1, right + 0.1
    fitted = [
        ChartLine([(x, line.intercept + line.slope * x) for x in (left, right)], line.look, line.label)
        for line in lines
    ]
    thetas = [*(point.theta for point in points), *(y for line in fitted for _, y in line.points)]
    low, high = max(0.0, min(thetas) - 1), min(90.0, max(thetas) + 1)
    dots = (
        Dot(size, point.theta, theta_class(point.theta), min(3.5 + math.log2(point.models), 9.0))
        for size, point in zip(sizes, points, strict=True)
    )
    factors: Sequence[float] = (1, 2, 5) if right - left <= TENFOLDS_FINE else (1,)
    if right - left < 0.5:
        factors = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)
    marked = [factor * 10.0**power for power in range(math.floor(left), math.ceil(right) + 1) for factor in factors]
    ticks = tuple(
        (math.log10(size), count_text(size).replace(".0", "")) for size in marked if left <= math.log10(size) <= right
    )
    return drawn(
        Chart(
            "θ against the number of parameters, one dot for each family",
            *(SCALE_WIDTH, SCALE_HEIGHT),
            x=Axis(left, right, ticks, "parameters"),
            y=Axis(low, high, _degree_ticks(low, high), "θ of matrices"),
            lines=tuple(fitted),
            dots=tuple(dots),
            theta_on_y=True,
            label_width=SCALE_LABEL_WIDTH if lines else 0,
        )
    )


TYPES_WIDTH, ROW_HEIGHT = 760, 34
HEAD_HEIGHT = 70
NAME_WIDTH = 64
TICK = 0.22
"""Half the height of the mark at the median, in rows."""


@dataclass(frozen=True, slots=True)
class TypeSpread:
    """θ of a type, in degrees. The whisker is the mean ± one standard deviation, cut to 0 to 90."""

    label: str
    mean: float
    deviation: float
    lower: float
    median: float
    upper: float


def types_chart(types: Sequence[TypeSpread]) -> bytes:
    """Return the chart. `types` has at least one type."""
    rows = list(enumerate(reversed(types)))
    lines: list[ChartLine] = []
    for row, stats in rows:
        ends = (max(0.0, stats.mean - stats.deviation), min(90.0, stats.mean + stats.deviation))
        lines.append(ChartLine([(end, float(row)) for end in ends], "whisker"))
        lines.append(ChartLine([(stats.lower, float(row)), (stats.upper, float(row))], "box"))
        lines.append(ChartLine([(stats.median, row - TICK), (stats.median, row + TICK)], "whisker"))
    return drawn(
        Chart(
            "θ by type",
            *(TYPES_WIDTH, types_height(len(types))),
            x=Axis(0.0, 90.0, tuple((float(theta), f"{theta}°") for theta in range(0, 91, 15)), "θ"),
            y=Axis(-0.6, len(rows) - 0.4, tuple((float(row), stats.label) for row, stats in rows)),
            lines=tuple(lines),
            dots=tuple(Dot(stats.mean, float(row), theta_class(stats.mean), 6.0) for row, stats in rows),
            name_width=NAME_WIDTH,
        )
    )


def types_height(count: int) -> int:
    """Return the height in pixels of a picture of `count` types."""
    return HEAD_HEIGHT + ROW_HEIGHT * count


SIZES_WIDTH, SIZES_HEIGHT = 760, 340
SIZES_LABEL_WIDTH = 70
"""Free pixels on the right, for the name of the largest plain mix."""


@dataclass(frozen=True, slots=True)
class SizeDivergence:
    """A file of a model: its size in bytes, its divergence from the source (above 0), and its name."""

    size_bytes: int
    divergence: float
    name: str
    is_plain: bool


def sizes_chart(points: Sequence[SizeDivergence], fits_bytes: int | None = None) -> bytes:
    """Return the chart: a line of chosen sizes, a cross for each plain mix; the axis of divergence is logarithmic.

    `points` has at least one point. `fits_bytes` is marked by a dotted line: the largest file that fits.
    """
    sizes = [point.size_bytes for point in points]
    unit, name = (1e9, "GB") if max(sizes) >= 1e9 else (1e6, "MB")
    left, right = min(sizes) / unit, max(sizes) / unit
    room = (right - left) * 0.04 or right * 0.1
    left, right = left - room, right + room
    ups = [math.log10(point.divergence) for point in points]
    low, high = min(ups) - 0.15, max(ups) + 0.15
    factors = (1, 2, 5) if high - low <= TENFOLDS_FINE else (1,)
    marked = [(power, factor) for power in range(math.floor(low), math.ceil(high) + 1) for factor in factors]
    ticks = tuple(
        (power + math.log10(factor), f"{factor * 10.0**power:.3g}")
        for power, factor in marked
        if low <= power + math.log10(factor) <= high
    )
    places = [(point.size_bytes / unit, up) for point, up in zip(points, ups, strict=True)]
    chosen = sorted(place for place, point in zip(places, points, strict=True) if not point.is_plain)
    lines = [ChartLine(chosen, "curve")] if len(chosen) > 1 else []
    if fits_bytes is not None and left <= fits_bytes / unit <= right:
        lines.append(ChartLine([(fits_bytes / unit, low), (fits_bytes / unit, high)], "dotted"))
    return drawn(
        Chart(
            "Divergence from the source against the size of the file",
            *(SIZES_WIDTH, SIZES_HEIGHT),
            x=Axis(left, right, ticks_between(left, right), f"size in {name}"),
            y=Axis(low, high, ticks, "divergence in nats, logarithmic"),
            lines=tuple(lines),
            dots=tuple(Dot(across, up, "tn") for across, up in chosen),
            crosses=tuple(
                Cross(*place, point.name) for place, point in zip(places, points, strict=True) if point.is_plain
            ),
            label_width=SIZES_LABEL_WIDTH,
        )
    )
