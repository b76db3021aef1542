"""Charts of axes, lines and dots, with their stylesheet. pygal computes the scales and draws."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from organs.web.render import DARK, LIGHT, THETA_TONES

FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', sans-serif"
TEXT_PIXELS = 12

_COLOURED_RULES = """
.axis .line, .guide { stroke: LINE; }
.edge { stroke: QUIET; }
.note, .axis text { fill: QUIET; }
.name, .shape { fill: INK; }
.area .line { fill: LINE; stroke: QUIET; }
.band .line { fill: QUIET; }
.curve .line, .dashed .line, .dotted .line, .whisker .line { stroke: INK; }
.box .line { stroke: LINE; }
.tn { fill: PAPER; }
.dot { stroke: INK; }
"""
_SHAPE_RULES = """
.background { fill: none; }
.line { fill: none; stroke-width: 1; stroke-linejoin: round; }
.guide, .axis .line { stroke-width: 1; }
.axis.x .guide { stroke: none; }
text { font-variant-numeric: tabular-nums; }
.axis.y text, .end { text-anchor: end; }
.axis.x text, .middle { text-anchor: middle; }
.band .line { stroke: none; fill-opacity: .14; }
.curve .line { stroke-width: 1.75; }
.dashed .line { stroke-width: 1.5; stroke-dasharray: 6 4; }
.dotted .line { stroke-width: 1.5; stroke-dasharray: 1.5 3; }
.box .line { stroke-width: 13; }
.whisker .line { stroke-width: 1; }
.dot { stroke-width: 1; }
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

_UNWANTED_TAGS = {"script", "style", "desc", "title", "defs"}
_NUMBER = re.compile(r"-?\d+\.\d+")
_NUMERIC_ATTRIBUTES = ("d", "x", "y", "cx", "cy", "width", "height", "transform")


def undress(root: Any) -> None:
    """Remove scripts, styles, ids, tooltips and comments (one has the date); round coordinates to 0.1 pixels."""
    for parent in list(root.iter()):
        for child in list(parent):
            is_comment = callable(child.tag)
            if is_comment or child.tag in _UNWANTED_TAGS or "tooltip" in child.attrib.get("class", "").split():
                parent.remove(child)
    for element in root.iter():
        for name in _NUMERIC_ATTRIBUTES:
            if name in element.attrib:
                element.attrib[name] = _NUMBER.sub(_rounded, element.attrib[name])
        element.attrib.pop("id", None)


def node(parent: Any, tag: str, attributes: dict[str, str], text: str | None = None, place: int | None = None) -> Any:
    """Insert a new element into `parent`, at the end by default, and return it. The text is escaped on output."""
    child = parent.makeelement(tag, attributes)
    child.text = None if text is None else printable(text)
    parent.insert(len(parent) if place is None else place, child)
    return child


def printable(text: str) -> str:
    """Return `text` without characters that XML cannot hold."""
    return "".join(letter if letter.isprintable() and letter not in "\ufffe\uffff" else "\ufffd" for letter in text)


def _rounded(number: re.Match[str]) -> str:
    text = f"{float(number[0]):.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


DEGREES_MAX = 90.0
LABEL_PIXELS = 14
"""Least distance between two labels."""
MARGIN_TOP, MARGIN_RIGHT, MARGIN_BOTTOM, MARGIN_LEFT = 26, 14, 38, 54
STRIP_PIXELS = 5
LABEL_GAP = 11
"""Pixels from the y axis to its marks. The strip of colours is between them."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: its range, its marks (value, text), and its title."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    title: str = ""


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


_PYGAL_OPTIONS = {"explicit_size": True, "no_prefix": True, "js": (), "css": (), "truncate_label": -1} | dict.fromkeys(
    ("show_legend", "show_dots", "show_x_guides"), False
)


def drawn(chart: Chart) -> bytes:
    """Return the chart as an SVG document."""

    class PlainChart(_pygal().XY):  # type: ignore[misc]  # pygal has no types
        def _compute_margin(self) -> None:
            """Set fixed margins. pygal estimates them from the width of texts."""
            super()._compute_margin()
            box = self.margin_box
            box.top, box.right = MARGIN_TOP, MARGIN_RIGHT + chart.label_width
            box.bottom, box.left = MARGIN_BOTTOM, MARGIN_LEFT + chart.name_width

    plot = PlainChart(
        width=chart.width,
        height=chart.height,
        xrange=(chart.x.low, chart.x.high),
        range=(chart.y.low, chart.y.high),
        x_labels=_labels(chart.x),
        y_labels=_labels(chart.y),
        **_PYGAL_OPTIONS,
    )
    for line in chart.lines:
        plot.add("", list(line.points), fill=line.look == "area")
    if chart.dots:
        dots = [{"value": (dot.x, dot.y), "node": {"r": dot.radius, "class": f"dot {dot.tone}"}} for dot in chart.dots]
        plot.add("", dots, stroke=False, show_dots=True)
    plot.add_xml_filter(lambda root: _styled(root, chart, plot))
    svg: bytes = plot.render(disable_xml_declaration=True, is_unicode=True).encode("utf-8")
    return svg + b"\n"


def _pygal() -> Any:
    """Return the library, imported on first use: most pages have no chart.

    pygal adds a finder for plug-ins to `sys.meta_path`. Python 3.11 warns about it at every later import. The finder is
    removed because no plug-ins are used.
    """
    import pygal

    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != pygal.__name__]
    return pygal


def _labels(axis: Axis) -> list[dict[str, Any]]:
    return [{"value": value, "label": printable(text)} for value, text in axis.ticks]


def _styled(root: Any, chart: Chart, plot: Any) -> Any:
    """Set the classes, labels, axis titles and stylesheet of a chart drawn by pygal."""
    undress(root)
    for element in root.iter():
        classes = element.attrib.get("class", "").split()
        numbers = [int(name[6:]) for name in classes if name.startswith("serie-")]
        if numbers and numbers[0] < len(chart.lines):
            element.attrib["class"] = chart.lines[numbers[0]].look
        elif numbers:
            element.attrib["class"] = "dots"
    for group in root.iter("g"):
        if {"axis", "y"} <= set(group.attrib.get("class", "").split()):
            for text in group.iter("text"):
                text.attrib["x"] = str(-LABEL_GAP)
    root.attrib["role"] = "img"
    node(root, "title", {}, chart.title, 0)
    node(root, "style", {}, STYLE, 1)
    overlay = node(root, "g", {"transform": f"translate({plot.margin_box.left}, {plot.margin_box.top})"})
    view = plot.view
    bottom = str(round(view.height + 34))
    node(overlay, "text", {"class": "note", "x": str(-MARGIN_LEFT + 2 - chart.name_width), "y": "-12"}, chart.y.title)
    node(overlay, "text", {"class": "note end", "x": str(round(view.width)), "y": bottom}, chart.x.title)
    step = DEGREES_MAX / len(THETA_TONES)
    for number in range(len(THETA_TONES) if chart.theta_on_y else 0):
        low, high = max(number * step, chart.y.low), min((number + 1) * step, chart.y.high)
        if low < high:
            top, bottom = round(view.y(high), 1), round(view.y(low), 1)
            size = {"width": str(STRIP_PIXELS), "height": f"{bottom - top:.1f}"}
            node(overlay, "rect", {"class": f"t{number}", "x": str(-STRIP_PIXELS), "y": f"{top:.1f}", **size})
    _draw_labels(overlay, chart, view)
    return root


def _draw_labels(overlay: Any, chart: Chart, view: Any) -> None:
    """Draw the labels at the ends of lines, moved apart where they would overlap."""
    labelled = [line for line in chart.lines if line.label and line.points]
    by_height = sorted(((view.y(line.points[-1][1]), line) for line in labelled), key=lambda pair: float(pair[0]))
    lowest = -float(LABEL_PIXELS)
    places = []
    for y, line in by_height:
        lowest = max(y, lowest + LABEL_PIXELS)
        places.append((lowest, line))
    excess = max(0.0, lowest - view.height)
    for y, line in places:
        x = f"{view.x(line.points[-1][0]) + 8:.1f}"
        node(overlay, "text", {"class": "name", "x": x, "y": f"{y - excess + 4:.1f}"}, line.label)
