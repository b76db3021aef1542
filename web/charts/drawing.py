"""A chart out of axes, lines and dots, and its stylesheet. pygal scales and draws it."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from organs.web.render import (
    DARK,
    LIGHT,
    THETA_TONES,
)

FONT = "system-ui, -apple-system, 'Segoe UI', 'Noto Sans', sans-serif"
TEXT_PIXELS = 12

_LOOKS = """
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
_SHAPES = """
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


def _inked(inks: dict[str, str]) -> str:
    looks = _LOOKS
    for name, colour in inks.items():
        looks = looks.replace(name.upper(), colour)
    return looks


_TONES = "\n".join(f".t{step} {{ fill: {tone}; }}" for step, tone in enumerate(THETA_TONES))
STYLE = " ".join(
    f":root {{ color-scheme: light dark; font: {TEXT_PIXELS}px {FONT}; }} {_SHAPES} {_inked(LIGHT)} {_TONES}"
    f"@media (prefers-color-scheme: dark) {{ {_inked(DARK)} {_TONES} }}".split()
)
"""The tones stand last in both, so that a dot of θ is never repainted by the ground."""

STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode("ascii")
POLICY = f"default-src 'none'; style-src 'sha256-{STYLE_HASH}'; frame-ancestors 'none'; base-uri 'none'"
"""Of an SVG that somebody opens by itself: its own stylesheet, and nothing else."""

_UNWANTED = {"script", "style", "desc", "title", "defs"}
_NUMBER = re.compile(r"-?\d+\.\d+")
_NUMBERS_IN = ("d", "x", "y", "cx", "cy", "width", "height", "transform")


def undress(root: Any) -> None:
    """Take out scripts, styles, tooltips and comments, which has the day in it; round what is finer than a pixel."""
    for parent in list(root.iter()):
        for child in list(parent):
            if _is_unwanted(child):
                parent.remove(child)
    for element in root.iter():
        for name in _NUMBERS_IN:
            if name in element.attrib:
                element.attrib[name] = _NUMBER.sub(_rounded, element.attrib[name])
        element.attrib.pop("id", None)


def node(parent: Any, tag: str, attributes: dict[str, str], text: str | None = None, place: int | None = None) -> Any:
    """Return a new element in `parent`, at its end by default. Text is escaped when it is written."""
    child = parent.makeelement(tag, attributes)
    child.text = None if text is None else printable(text)
    parent.insert(len(parent) if place is None else place, child)
    return child


def printable(text: str) -> str:
    """Return `text` without characters that XML cannot hold."""
    return "".join(letter if letter.isprintable() and letter not in "\ufffe\uffff" else "\ufffd" for letter in text)


def _is_unwanted(child: Any) -> bool:
    if callable(child.tag):  # a comment: its tag is what makes one
        return True
    return child.tag in _UNWANTED or "tooltip" in child.attrib.get("class", "").split()


def _rounded(number: re.Match[str]) -> str:
    text = f"{float(number[0]):.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


DEGREES_MAX = 90.0
LABEL_PIXELS = 14
"""From one label to the next, at least."""
MARGIN_TOP, MARGIN_RIGHT, MARGIN_BOTTOM, MARGIN_LEFT = 26, 14, 38, 54
STRIP_PIXELS = 5
LABEL_GAP = 11
"""Pixels from the y axis to its marks: the strip of colours stands between them."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One direction: what it begins and ends with, where it is marked, and what it measures."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """Points joined in order. `look` is a class of the stylesheet: area, band, curve, dashed, dotted, box, whisker."""

    points: Sequence[tuple[float, float]]
    look: str
    label: str = ""
    """Written behind its last point."""


@dataclass(frozen=True, slots=True)
class Dot:
    """A point by itself; `tone` is a class of a colour of θ."""

    x: float
    y: float
    tone: str
    radius: float = 4.0


@dataclass(frozen=True, slots=True)
class Chart:
    """A whole chart, in the order in which it is painted."""

    title: str
    width: int
    height: int
    x: Axis
    y: Axis
    lines: tuple[Line, ...] = ()
    dots: tuple[Dot, ...] = ()
    theta_on_y: bool = False
    """Whether the y axis is θ in degrees: then the scale of its colours stands along it."""
    label_width: int = 0
    """Pixels kept free on the right for the labels of lines."""
    name_width: int = 0
    """Pixels more on the left, where the marks of the y axis are names."""


_PLAIN = {"explicit_size": True, "no_prefix": True, "js": (), "css": (), "truncate_label": -1} | dict.fromkeys(
    ("show_legend", "show_dots", "show_x_guides"), False
)


def drawn(chart: Chart) -> bytes:
    """Return the chart as an SVG document."""

    class Plain(_pygal().XY):  # type: ignore[misc]  # pygal has no types
        def _compute_margin(self) -> None:
            """Set the margins: pygal guesses them from the width of texts."""
            super()._compute_margin()
            box = self.margin_box
            box.top, box.right = MARGIN_TOP, MARGIN_RIGHT + chart.label_width
            box.bottom, box.left = MARGIN_BOTTOM, MARGIN_LEFT + chart.name_width

    plot = Plain(
        width=chart.width,
        height=chart.height,
        xrange=(chart.x.low, chart.x.high),
        range=(chart.y.low, chart.y.high),
        x_labels=_labels(chart.x),
        y_labels=_labels(chart.y),
        **_PLAIN,
    )
    for line in chart.lines:
        plot.add("", list(line.points), fill=line.look == "area")
    if chart.dots:
        plot.add("", [_dot(dot) for dot in chart.dots], stroke=False, show_dots=True)
    plot.add_xml_filter(lambda root: _dressed(root, chart, plot))
    written: bytes = plot.render(disable_xml_declaration=True, is_unicode=True).encode("utf-8")
    return written + b"\n"


def _pygal() -> Any:
    """Return the library, imported on first use: most pages have no chart.

    It puts a finder of plug-ins among Python's own, of a kind that Python 3.11 warns of at every later import. We have
    no plug-ins of it, so it is taken out again.
    """
    import pygal

    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__module__ != pygal.__name__]
    return pygal


def _labels(axis: Axis) -> list[dict[str, Any]]:
    return [{"value": value, "label": printable(text)} for value, text in axis.ticks]


def _dot(dot: Dot) -> dict[str, Any]:
    return {"value": (dot.x, dot.y), "node": {"r": dot.radius, "class": f"dot {dot.tone}"}}


def _dressed(root: Any, chart: Chart, plot: Any) -> Any:
    """Apply our own classes, labels, axis titles and stylesheet to a chart of pygal."""
    undress(root)
    for element in root.iter():
        kinds = element.attrib.get("class", "").split()
        numbers = [int(kind[6:]) for kind in kinds if kind.startswith("serie-")]
        if numbers and numbers[0] < len(chart.lines):
            element.attrib["class"] = chart.lines[numbers[0]].look
        elif numbers:
            element.attrib["class"] = "dots"
    for text in (text for axis in root.iter("g") if _is_y_axis(axis) for text in axis.iter("text")):
        text.attrib["x"] = str(-LABEL_GAP)
    root.attrib["role"] = "img"
    node(root, "title", {}, chart.title, 0)
    node(root, "style", {}, STYLE, 1)
    above = node(root, "g", {"transform": f"translate({plot.margin_box.left}, {plot.margin_box.top})"})
    view = plot.view
    bottom = str(round(view.height + 34))
    node(above, "text", {"class": "note", "x": str(-MARGIN_LEFT + 2 - chart.name_width), "y": "-12"}, chart.y.title)
    node(above, "text", {"class": "note end", "x": str(round(view.width)), "y": bottom}, chart.x.title)
    if chart.theta_on_y:
        _theta_strip(above, chart.y, view)
    _write_labels(above, chart, view)
    return root


def _is_y_axis(group: Any) -> bool:
    return {"axis", "y"} <= set(group.attrib.get("class", "").split())


def _theta_strip(above: Any, axis: Axis, view: Any) -> None:
    """Draw the colours of θ along the axis."""
    step = DEGREES_MAX / len(THETA_TONES)
    for number in range(len(THETA_TONES)):
        low, high = max(number * step, axis.low), min((number + 1) * step, axis.high)
        if low < high:
            top, bottom = round(view.y(high), 1), round(view.y(low), 1)
            size = {"width": str(STRIP_PIXELS), "height": f"{bottom - top:.1f}"}
            node(above, "rect", {"class": f"t{number}", "x": str(-STRIP_PIXELS), "y": f"{top:.1f}", **size})


def _write_labels(above: Any, chart: Chart, view: Any) -> None:
    """Draw the labels at the ends of lines, moved apart where they would overlap."""
    labelled = [line for line in chart.lines if line.label and line.points]
    wanted = sorted(((view.y(line.points[-1][1]), line) for line in labelled), key=lambda pair: float(pair[0]))
    lowest = -float(LABEL_PIXELS)
    places = []
    for y, line in wanted:
        lowest = max(y, lowest + LABEL_PIXELS)
        places.append((lowest, line))
    over = max(0.0, lowest - view.height)
    for y, line in places:
        x = f"{view.x(line.points[-1][0]) + 8:.1f}"
        node(above, "text", {"class": "name", "x": x, "y": f"{y - over + 4:.1f}"}, line.label)
