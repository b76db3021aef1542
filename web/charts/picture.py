"""Pictures to send around: a model or a chimera with its title, its drawing, its measured gain and its address.

A picture consists of polygons and texts. It is written as SVG, and painted as PNG for programs that show previews of
links. Its size is the usual one of such previews.
"""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol
from xml.sax.saxutils import escape, quoteattr

from organs.registry.entities.organ import PlacedOrgan
from organs.web.charts.network import network
from organs.web.charts.plots import printable
from organs.web.render import (
    BASE_TONE,
    CHANGE_TONES,
    DONOR_TONES,
    LIGHT,
    SHARE_TONES,
    SPECTRAL_TONES,
    THETA_TONES,
)

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont, ImageFont

WIDTH, HEIGHT = 1200, 630
MARGIN = 56
TEXT_WIDTH = 470
DRAWING = (560.0, 50.0, 590.0, 500.0)
"""The place of the drawing: x, y, width, height."""
PITCH_MAX, BLOCKS_HEIGHT = 60.0, 340.0
"""The largest height of a block, and of all blocks, in the units of the drawing."""
LETTER_ROOM = 11.0
"""The least width and height of a shape with a letter, in pixels."""
ANCHORS = {"start": "ls", "middle": "ms"}
"""The anchors of texts in SVG, as Pillow names them."""
DONORS_MAX = 4
FAMILIES = {
    "serif": (
        "ui-serif, Georgia, 'Times New Roman', serif",
        ("DejaVuSerif.ttf", "LiberationSerif-Regular.ttf", "georgia.ttf"),
    ),
    "sans": (
        "system-ui, 'Segoe UI', 'Noto Sans', sans-serif",
        ("DejaVuSans.ttf", "LiberationSans-Regular.ttf", "arial.ttf"),
    ),
    "mono": (
        "ui-monospace, 'DejaVu Sans Mono', monospace",
        ("DejaVuSansMono.ttf", "LiberationMono-Regular.ttf", "consola.ttf"),
    ),
}
"""Fonts in SVG, and the files of fonts in PNG: the first that this machine has."""
LETTER_WIDTHS = {"serif": 0.56, "sans": 0.56, "mono": 0.62}
"""Mean width of a letter, as a share of its size."""
OVERSAMPLING = 2
"""The PNG is painted at this multiple of its size, so that edges are smooth."""


@dataclass(frozen=True, slots=True)
class PictureParent:
    """A parent in the legend: its name, its letter, and its colour."""

    name: str
    mark: str
    tone: str


@dataclass(frozen=True, slots=True)
class PictureTexts:
    """The texts of a picture."""

    kind: str
    name: str
    title: str
    figure: str
    """The most important number: the measured gain."""
    remark: str
    """What the number means."""
    address: str
    parents: Sequence[PictureParent] = ()


class Canvas(Protocol):
    """What a picture is painted on. Positions and sizes are in pixels, colours are `#rrggbb` or `none`."""

    def polygon(self, points: Sequence[tuple[float, float]], fill: str, line: str | None = None) -> None:
        """Paint a polygon."""

    def text(self, x: float, y: float, text: str, size: float, family: str, fill: str, anchor: str = "start") -> None:
        """Paint a text whose base line begins at x and y, or has its middle there."""


class SvgCanvas:
    """A picture as an SVG document."""

    def __init__(self, title: str) -> None:
        size = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(printable(title))}</title>",
        ]

    def polygon(self, points: Sequence[tuple[float, float]], fill: str, line: str | None = None) -> None:
        corners = " ".join(f"{round(x, 1):g},{round(y, 1):g}" for x, y in points)
        stroke = f' stroke="{line}"' if line else ""
        self._parts.append(f'<polygon points="{corners}" fill="{fill}"{stroke}/>')

    def text(self, x: float, y: float, text: str, size: float, family: str, fill: str, anchor: str = "start") -> None:
        self._parts.append(
            f'<text x="{x:g}" y="{y:g}" font-family={quoteattr(FAMILIES[family][0])} font-size="{size:g}" '
            f'text-anchor="{anchor}" fill="{fill}">{escape(printable(text))}</text>'
        )

    def document(self) -> bytes:
        """Return the document."""
        return "\n".join([*self._parts, "</svg>\n"]).encode()


class PngCanvas:
    """A picture as a PNG, painted larger and then reduced, so that edges are smooth."""

    def __init__(self) -> None:
        from PIL import Image, ImageDraw  # only for pictures

        self._image = Image.new("RGB", (WIDTH * OVERSAMPLING, HEIGHT * OVERSAMPLING), LIGHT["paper"])
        self._painter = ImageDraw.Draw(self._image)

    def polygon(self, points: Sequence[tuple[float, float]], fill: str, line: str | None = None) -> None:
        corners = [(round(x, 1) * OVERSAMPLING, round(y, 1) * OVERSAMPLING) for x, y in points]
        self._painter.polygon(corners, fill=None if fill == "none" else fill, outline=line)

    def text(self, x: float, y: float, text: str, size: float, family: str, fill: str, anchor: str = "start") -> None:
        font, is_full = _font(family, round(size * OVERSAMPLING))
        shown = printable(text) if is_full else _plain(printable(text))
        place = (x * OVERSAMPLING, y * OVERSAMPLING)
        self._painter.text(place, shown, font=font, fill=fill, anchor=ANCHORS[anchor])

    def document(self) -> bytes:
        """Return the PNG."""
        from PIL import Image

        out = io.BytesIO()
        self._image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).save(out, "PNG", optimize=True)
        return out.getvalue()


def picture(
    form: str,
    facts: PictureTexts,
    organs: Sequence[PlacedOrgan],
    tone_of: Callable[[PlacedOrgan], str],
    marks: Mapping[str, str],
) -> bytes:
    """Return the picture in the form `svg` or `png`.

    `tone_of` returns the colour of an organ, as `#rrggbb`. `marks` has the letters of donors, by name of the organ.
    """
    title = f"{facts.kind} {facts.name}: {facts.figure}, {facts.remark}"
    canvas = SvgCanvas(title) if form == "svg" else PngCanvas()
    canvas.polygon(_rectangle(0, 0, WIDTH, HEIGHT), LIGHT["paper"])
    _draw_network(canvas, organs, tone_of, marks)
    _write_facts(canvas, facts)
    return canvas.document()


def tone(name: str) -> str:
    """Return the colour of a CSS class of a drawing, on light paper."""
    if name == "gb":
        return BASE_TONE
    tones = _TONES.get(name[:1])
    return tones[int(name[1:])] if tones and name[1:].isdigit() else LIGHT["plate"]


def _on_tone(colour: str) -> str:
    """Return the colour of text on `colour`: white if it has the contrast 4.5 of WCAG 2, else black."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#ffffff" if 1.05 / (luminance + 0.05) >= 4.5 else "#050607"


_TONES = {
    "g": DONOR_TONES,
    "c": CHANGE_TONES,
    "p": SPECTRAL_TONES,
    "t": THETA_TONES,
    "s": SHARE_TONES,
}


@lru_cache(maxsize=64)
def _font(family: str, size: int) -> tuple[FreeTypeFont | ImageFont, bool]:
    """Return a font, and whether it has more than ASCII. Without fonts on this machine, it is that of the library."""
    from PIL import ImageFont

    for name in FAMILIES[family][1]:
        try:
            return ImageFont.truetype(name, size), True
        except OSError:
            continue
    return ImageFont.load_default(size), False


_ASCII = {"−": "-", "×": "x", "±": "+/-", "·": "-", "…": "...", "–": "-", "θ": "theta "}


def _plain(text: str) -> str:
    """Return `text` in ASCII."""
    text = "".join(_ASCII.get(letter, letter) for letter in text)
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()


def _rectangle(x: float, y: float, width: float, height: float) -> list[tuple[float, float]]:
    return [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]


def _draw_network(
    canvas: Canvas, organs: Sequence[PlacedOrgan], tone_of: Callable[[PlacedOrgan], str], marks: Mapping[str, str]
) -> None:
    """Draw the network as on the page of the model: from the embedding at the top to the output."""
    blocks = len({(organ.tower, organ.block) for organ in organs if organ.block is not None})
    drawing = network(organs, min(PITCH_MAX, BLOCKS_HEIGHT / max(blocks, 1)), named=False)
    x, y, width, height = DRAWING
    scale = min(width / drawing.width, height / drawing.height)
    left, top = x + (width - drawing.width * scale) / 2, y + (height - drawing.height * scale) / 2

    def placed(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        return [(left + across * scale, top + down * scale) for across, down in points]

    canvas.polygon(placed(_rectangle(*drawing.spine)), LIGHT["plate"], LIGHT["quiet"])
    if drawing.tied is not None:
        canvas.polygon(placed(drawing.tied.corners), "none", LIGHT["quiet"])
    for start, end, middle in drawing.ribs:
        canvas.polygon(placed(_rectangle(start, middle - 0.3, end - start, 0.6)), LIGHT["quiet"])
    for shape in drawing.shapes:
        fill = tone_of(shape.organ)
        canvas.polygon(placed(shape.corners), fill, LIGHT["line"] if fill == LIGHT["plate"] else None)
        mark, room = marks.get(shape.organ.name, ""), min(shape.width, shape.height) * scale
        if mark and room >= LETTER_ROOM:
            size = min(20.0, 0.7 * room)
            ((middle_x, middle_y),) = placed([(shape.x + shape.width / 2, shape.y + shape.height / 2)])
            canvas.text(middle_x, middle_y + 0.36 * size, mark, size, "sans", _on_tone(fill), "middle")


def _write_facts(canvas: Canvas, facts: PictureTexts) -> None:
    """Write the texts below each other, at the left."""
    ink, quiet = LIGHT["ink"], LIGHT["quiet"]
    y = 92.0
    canvas.text(MARGIN, y, f"{facts.kind.upper()} · ORGAN REGISTRY", 17, "sans", quiet)
    y += 58
    for line in _lines(facts.name, 42, "serif", 2):
        canvas.text(MARGIN, y, line, 42, "serif", ink)
        y += 50
    for line in _lines(facts.title, 21, "serif", 2):
        canvas.text(MARGIN, y - 8, line, 21, "serif", quiet)
        y += 28
    y += 22
    for parent in facts.parents[: DONORS_MAX + 1]:
        canvas.polygon(_rectangle(MARGIN, y - 15, 18, 18), parent.tone)
        name = _lines(f"{parent.mark} {parent.name}".strip(), 18, "sans", 1, TEXT_WIDTH - 30)
        canvas.text(MARGIN + 30, y, name[0] if name else "", 18, "sans", ink)
        y += 29
    if len(facts.parents) > DONORS_MAX + 1:
        canvas.text(MARGIN + 30, y, f"and {len(facts.parents) - DONORS_MAX - 1} more", 18, "sans", quiet)
    base = HEIGHT - 168
    for line in _lines(facts.figure, 46, "serif", 1):
        canvas.text(MARGIN, base, line, 46, "serif", ink)
    for number, line in enumerate(_lines(facts.remark, 18, "sans", 3)):
        canvas.text(MARGIN, base + 32 + 25 * number, line, 18, "sans", quiet)
    for line in _lines(facts.address, 17, "mono", 1, WIDTH - 2 * MARGIN):
        canvas.text(MARGIN, HEIGHT - 40, line, 17, "mono", quiet)


def _lines(text: str, size: float, family: str, most: int, width: float = TEXT_WIDTH) -> list[str]:
    """Return `text` in at most `most` lines that fit; the last one ends in `…` if something is left out."""
    length = max(4, int(width / (size * LETTER_WIDTHS[family])))
    lines: list[str] = []
    rest = " ".join(text.split())
    while rest and len(lines) < most:
        if len(rest) <= length:
            lines.append(rest)
            return lines
        cut = max(rest.rfind(mark, 0, length) for mark in " -/_.") + 1
        cut = cut if cut > length // 3 else length
        lines.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    if rest and lines:
        lines[-1] = lines[-1][: length - 1].rstrip() + "…"
    return lines
