"""The look of a chart: one stylesheet inside every SVG, and what is taken out of what pygal draws.

An `<img>` takes nothing from the page around it, so its colours, light and dark, are its own. The stylesheet is one
text for all charts: the policy of an SVG answer names its hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

from organs.web.scales import DARK, LIGHT, THETA_TONES

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
    """A new element in `parent`, at its end unless told otherwise. Text is escaped when it is written."""
    made = parent.makeelement(tag, attributes)
    made.text = None if text is None else printable(text)
    parent.insert(len(parent) if place is None else place, made)
    return made


def printable(text: str) -> str:
    """`text` without what XML cannot hold: controls, halves of characters, the two that are none."""
    return "".join(one if one.isprintable() and one not in "\ufffe\uffff" else "\ufffd" for one in text)


def _is_unwanted(child: Any) -> bool:
    if callable(child.tag):  # a comment: its tag is what makes one
        return True
    return child.tag in _UNWANTED or "tooltip" in child.attrib.get("class", "").split()


def _rounded(number: re.Match[str]) -> str:
    text = f"{float(number[0]):.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
