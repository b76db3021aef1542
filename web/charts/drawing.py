"""Charts of axes, lines and dots as SVG, with their stylesheet."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, tostring

from organs.web.render import DARK, LIGHT, THETA_TONES

FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', sans-serif"
TEXT_PIXELS = 12

_COLOURED_RULES = """
.guide, .box { stroke: LINE; }
.note, .mark { fill: QUIET; }
.name { fill: INK; }
.area { fill: LINE; stroke: QUIET; }
.band { fill: QUIET; }
.curve, .dashed, .dotted, .whisker, .dot { stroke: INK; }
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
class Chart:
    """A chart. Lines are painted first, then dots."""

    title: str
    width: int
    height: int
    x: Axis
    y: Axis
    lines: tuple[ChartLine, ...] = ()
    dots: tuple[Dot, ...] = ()
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
