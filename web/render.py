"""Functions that turn numbers into text, colours and CSS classes, and descriptions into safe HTML."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from textwrap import shorten
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup, escape

from organs.registry.amounts import (
    count_text,
    percent_text,
    share_text,
    size_text,
    theta_text,
    weight_change,
    weight_change_text,
)
from organs.registry.anatomy import OrganType, type_name
from organs.registry.card_text import card_reader, image_name, is_too_much
from organs.registry.entities.organ import Organ
from organs.registry.entities.published import DESCRIPTION_MAX, CardImage
from organs.registry.kinds import KIND_NOTES
from organs.registry.measures import CAUTIONS, theta_caution
from organs.web.responses import model_address, organ_address, outside_link


def _colours(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Scales of colours on light paper. The stylesheet has them too, with those of the dark scheme.

THETA_TONES = _colours(
    """
    #56697f #5e7084 #66778a #6e7e8f #768694 #7e8d9a #87949f #8f9ca3 #9aa3a5 #a4a9a7 #aeb0a9 #b8b7ab
    #c3bead #cdc5ae #d8ccaf #dec9a8 #e1c09a #e3b68d #e5ac7f #e5a373 #e2996a #df8f61 #db8558 #d87b4e
    #d47045 #d0663c #cb5c34 #c4532e #bd4928 #b73f22 #b0351c #a92a16
    """
)
"""Colours of θ from 0° (uniform distribution of the weights) to 90° (heavy tails), in even steps."""

CHANGE_TONES = _colours(
    """
    #f6f2d0 #f1e3b1 #efd292 #efbf73 #eeaa57 #e99445 #e37d39 #db6633 #cd5236 #bc413c #a93240 #962342
    #821c47 #6d1949 #581647 #451342
    """
)
"""Colours of the change against another model, on a logarithmic scale from 1e-7 to 1."""

SPECTRAL_TONES = _colours(
    """
    #f2f6e0 #e1eed0 #cee6c3 #b7dfba #9ed6b4 #84c8ae #6cb9a9 #54aaa5 #3f9a9f #2d8999 #207891 #186688
    #19567e #1b4772 #1c3865 #1c2a58
    """
)
"""Colours of the spectral signal from 0 to SPECTRAL_MAX."""

DONOR_TONES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#9a8ad6")
BASE_TONE = "#cfc8b8"
"""Colours of the donors of a chimera, and of its base. People with any colour vision can tell them apart; each donor
also has a letter."""

SHARE_TONES = _colours(
    """
    #f1ede4 #e2dfd7 #d4d1cb #c5c4bf #b7b6b2 #a9a9a6 #9b9c9b #8e8f8f #818383 #737678 #676a6d #5a5e62
    #4e5257 #42474c #363c42 #2b3138
    """
)
"""Greys for sizes."""

LIGHT = {"paper": "#faf8f3", "plate": "#fffdf8", "ink": "#1b1e22", "quiet": "#585c63", "line": "#d9d4c7"}
DARK = {"paper": "#121518", "plate": "#171b1f", "ink": "#e8e5de", "quiet": "#a6aab0", "line": "#31373e"}
"""Colours of everything that shows no number: background, text and lines."""


OPENING_MAX = 2400
"""Maximum number of characters of a description that are shown before the rest is opened."""
HEADINGS_BELOW = 3
"""Level of the highest heading of a description. The page has its own headings above it."""
_HEADINGS_MAX = 6
_RELATION = "nofollow noopener noreferrer ugc"
_AS_TEXT = Markup('<p class="wrap as-typed">{}</p>')


class CardPicture(NamedTuple):
    """An image that a card shows: its name in the card, its address on this server, and its size in pixels."""

    name: str
    address: str
    width: int
    height: int


def card_pictures(images: Iterable[CardImage], model: str) -> tuple[CardPicture, ...]:
    """Return the images of the card of a model for `markdown` and `opening`."""
    return tuple(
        CardPicture(
            image.name,
            model_address(model, "downloads.card_image", image=image.digest, ending=image.format),
            image.width,
            image.height,
        )
        for image in images
    )


@lru_cache(maxsize=64)
def markdown(text: str, pictures: tuple[CardPicture, ...] = ()) -> Markup:
    """Return Markdown `text`, cut after DESCRIPTION_MAX characters, as safe HTML with these `pictures`."""
    text = text[:DESCRIPTION_MAX]
    return _AS_TEXT.format(text) if is_too_much(text) else _rendered(_parsed(text, pictures))


@lru_cache(maxsize=64)
def opening(text: str, pictures: tuple[CardPicture, ...] = ()) -> tuple[Markup, Markup]:
    """Return the first blocks of Markdown `text`, and its other blocks, as safe HTML with these `pictures`.

    If the first block alone is longer than OPENING_MAX characters, its beginning is returned as plain text, and then
    all blocks.
    """
    text = text[:DESCRIPTION_MAX]
    if is_too_much(text):
        return _beginning(text), _AS_TEXT.format(text)
    tokens, end, length = _parsed(text, pictures), 0, 0
    for number, token in enumerate(tokens, 1):
        length += len(_content(token))
        if length > OPENING_MAX:
            break
        if token.level == 0 and token.nesting != 1 and token.type != "heading_close":
            end = number
    if end == 0 and tokens:
        block = next((_content(token) for token in tokens if token.type == "inline"), text)
        return _beginning(block), _rendered(tokens)
    return _rendered(tokens[:end]), _rendered(tokens[end:])


def _content(token: Token) -> str:
    return token.content or "".join(child.content for child in token.children or ())


def _beginning(text: str) -> Markup:
    return _AS_TEXT.format(shorten(text, OPENING_MAX, placeholder=" …"))


def _rendered(tokens: Sequence[Token]) -> Markup:
    return Markup(_READER.renderer.render(tokens, _READER.options, {}))  # noqa: S704  # text is escaped, tags are ours


def _parsed(text: str, pictures: Sequence[CardPicture]) -> list[Token]:
    """Return the tokens of `text`: headings below those of the page, links marked as external, no other attributes."""
    tokens, by_name = _READER.parse(text), {picture.name: picture for picture in pictures}
    for token in tokens:
        token.children = list(_with_images(token.children or (), by_name))
        if [child.type for child in token.children] == ["image"]:
            token.children[0].attrs["class"] = "alone"
    for token in [part for whole in tokens for part in (whole, *(whole.children or ()))]:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1:]) + HEADINGS_BELOW - 1, _HEADINGS_MAX)}"
        elif token.type == "link_open":
            token.attrs = {"href": token.attrs.get("href", ""), "rel": _RELATION}
        elif token.type == "fence":
            token.info = ""
        elif token.type in ("th_open", "td_open"):
            token.attrs = {"class": "n"} if "right" in str(token.attrs.get("style", "")) else {}
        elif token.type not in ("ordered_list_open", "image"):
            token.attrs = {}
    return tokens


def _with_images(tokens: Iterable[Token], pictures: Mapping[str, CardPicture]) -> Iterator[Token]:
    """Yield the tokens of a block: images that are not among `pictures` as links, or as their texts; only the texts of
    links beside the card.
    """
    in_link = is_kept = False
    for token in tokens:
        if token.type in ("link_open", "link_close"):
            in_link = token.type == "link_open"
            is_kept = outside_link(token.attrs.get("href")) is not None if in_link else is_kept
            if is_kept:
                yield token
        elif token.type != "image":
            yield token
        elif (picture := pictures.get(image_name(str(token.attrs.get("src", ""))) or "")) is not None:
            token.attrs = {"src": picture.address, "alt": ""}  # the renderer writes the text of its children
            token.attrs |= {"width": picture.width, "height": picture.height, "loading": "lazy"}
            yield token
        else:
            source, name = str(token.attrs.get("src", "")), token.content or "image"
            is_link = not in_link and outside_link(source) is not None
            if is_link:
                yield Token("link_open", "a", 1, attrs={"href": source})
            yield Token("text", "", 0, content=name if in_link or is_link else f"{name} (an image that is not here)")
            if is_link:
                yield Token("link_close", "a", -1)


_TABLE_FRAME = {
    "table_open": '<div class="frame" tabindex="0" role="region" aria-label="Table">\n<table>\n',
    "table_close": "</table>\n</div>\n",
}
"""A wide table scrolls in its frame."""


def _make_reader() -> MarkdownIt:
    reader = card_reader(lambda address: outside_link(address) is not None)
    for kind, html in _TABLE_FRAME.items():
        reader.add_render_rule(kind, lambda *_, html=html: html)
    return reader


_READER = _make_reader()


THETA_STEPS = 32
THETA_MAX_DEGREES = 90
SHARE_STEPS = 16
WIDTH_STEPS = 40
SHORT_MAX = 120
"""Maximum length of names whose HTML is cached."""
CHANGE_DECADES = 7
"""Powers of ten on the scale of the change: from 1e-7 to 1."""
SPECTRAL_MAX = 0.8
"""The spectral signal at the end of its scale. Trained matrices have 0.15 to 0.6, random matrices 0."""

GLYPHS = {
    OrganType.SKELETON.value: "◆",
    OrganType.ORGAN.value: "●",
    OrganType.EMBED.value: "■",
    OrganType.NORM.value: "│",
    OrganType.ADAPTER.value: "▲",
    OrganType.OTHER.value: "○",
}
"""Symbols of types. Types differ by symbol and name, because colours mean numbers or donors."""

VERDICT_MEANINGS = {
    "gains": "runs, and is better than its base on at least one text",
    "coherent": "runs, and is at most 25% worse than its base",
    "degraded": "runs, but clearly worse than its base",
    "inert": "runs, but the grafted parts contribute nothing",
    "undecided": "the measurement does not settle it, or the grafted blocks have too little effect",
    "writes": "writes readable text in a runtime that measures nothing; how good it is is not known",
    "broken": "does not load, or produces garbage",
}
"""Meanings of the verdicts on a chimera that was run."""

STATE_NAMES = {"quarantined": "held for review"}
"""Names of states on pages, if they differ from the API."""


def theta_class(theta: float | None) -> str:
    """Return the CSS class of the colour of θ: `t0` (uniform) to `t31` (heavy tails); `tn` if θ was not measured."""
    return _tone("t", theta, THETA_MAX_DEGREES, THETA_STEPS)


def share_class(share: float | None) -> str:
    """Return the CSS class of a grey for a number from 0 to 1 that is not θ: `s0` to `s15`; `tn` for None."""
    return _tone("s", share, 1.0)


def width_class(share: float | None) -> str:
    """Return the CSS class of the length of a bar: `w0` to `w40` for 0 to 1; at least `w1` for a positive value."""
    if not share or share < 0:
        return "w0"
    return f"w{max(1, round(_clamp(share) * WIDTH_STEPS))}"


def _clamp(share: float) -> float:
    return max(0.0, min(share, 1.0))


def _tone(scale: str, value: float | None, end: float, steps: int = SHARE_STEPS) -> str:
    """Return the CSS class of the colour of `value` on a scale from 0 to `end`; `tn` for None."""
    return "tn" if value is None else f"{scale}{min(int(_clamp(value / end) * steps), steps - 1)}"


def change_share(change: float | None, likeness: float | None = None) -> float:
    """Return the place of a change on the logarithmic scale: 0 for 1e-7 and less, 1 for unrelated weights."""
    return _clamp((math.log10(max(weight_change(change, likeness), 1e-9)) + CHANGE_DECADES) / CHANGE_DECADES)


def change_tone(change: float | None, likeness: float | None = None) -> str:
    """Return the CSS class of a change of weights: `c0` (the same) to `c15`; `tn` if it is not known.

    A likeness is used instead of an unknown change.
    """
    is_known = change is not None or likeness is not None
    return _tone("c", change_share(change, likeness) if is_known else None, 1.0)


def spectral_class(signal: float | None) -> str:
    """Return the CSS class of a spectral signal: `p0` (as random numbers) to `p15`; `tn` for None."""
    return _tone("p", signal, SPECTRAL_MAX)


def donor_class(number: int) -> str:
    """Return the CSS class of the colour of a donor, counted from 0. With many donors, colours repeat."""
    return f"g{number % len(DONOR_TONES)}"


def number_text(value: object) -> str:
    """Return a number for people: a dash for None, three decimals, thousands separators."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


_MOMENT_LENGTHS = {"days": 10, "minutes": 16, "seconds": 19}


def moment_text(moment: datetime | None, to: str = "days") -> str:
    """Return a time in UTC as `2026-01-31`, `2026-01-31 12:00` (`minutes`) or `2026-01-31 12:00:59` (`seconds`)."""
    return "–" if moment is None else moment.isoformat(" ")[: _MOMENT_LENGTHS[to]]


def short_digest(digest: str) -> str:
    """Return the first 12 characters of a digest."""
    return digest[:12]


def glyph(kind: str) -> str:
    """Return the symbol of an organ's type."""
    return GLYPHS.get(kind, "○")


def caution_of(organ: Organ) -> str:
    """Return why the θ of `organ` is uncertain, in words; an empty text if it is not."""
    return CAUTIONS.get(theta_caution(organ.measured("theta"), organ.dtype, organ.elements), "")


def foldable(text: str) -> Markup:
    """Return `text` as HTML that can wrap between the parts of a name."""
    return _short_foldable(text) if len(text) <= SHORT_MAX else _foldable(text)


def theta_bar(theta: float | None, caution: str = "") -> Markup:
    """Return θ as HTML: a coloured bar and the number, marked as uncertain with a `caution`."""
    return Markup("–") if theta is None else _theta_bar(round(theta, 1), caution)


def shape_text(shape: Sequence[int]) -> str:
    """Return a shape as text, such as `4096×1024`."""
    return "×".join(map(str, shape))


def _foldable(text: str) -> Markup:
    return Markup(_WRAP_POINTS.sub(r"\1<wbr>", str(escape(text))))  # noqa: S704  # escaped, then only tags of ours


# The HTML that lists have in every row is cached. With macros, a page of 50 organs took twice as long.
_KIND = Markup('<span class="type"><span class="glyph" aria-hidden="true">{}</span>{}</span>')
_BAR = Markup('<span class="track" aria-hidden="true"><i class="{} {}"></i></span>{}')
_UNCERTAIN = Markup('<span title="uncertain: {}">{}</span>')
_short_foldable = lru_cache(maxsize=8192)(_foldable)


@lru_cache(maxsize=64)
def kind_mark(kind: str) -> Markup:
    """Return an organ's type as HTML: its symbol and its name."""
    return _KIND.format(glyph(kind), type_name(kind))


@lru_cache(maxsize=1024)
def _theta_bar(theta: float, caution: str) -> Markup:
    text = theta_text(theta, caution)
    number = _UNCERTAIN.format(CAUTIONS[caution], text) if caution in CAUTIONS else text
    return _BAR.format(width_class(theta / THETA_MAX_DEGREES), theta_class(theta), number)


_WRAP_POINTS = re.compile(r"([/-]|(?<!\d)\.|\.(?!\d))(?=[^./-])")
"""Positions at which a name can wrap: after `/`, `-` and `.`, but not after the point of a number."""


def state_name(state: str) -> str:
    """Return the state of a model or a submission on pages, such as `held for review` for `quarantined`."""
    return STATE_NAMES.get(state, state)


FILTERS: Mapping[str, Callable[..., Any]] = {
    "card_pictures": card_pictures,
    "change": weight_change_text,
    "change_share": change_share,
    "change_tone": change_tone,
    "count": count_text,
    "degrees": theta_text,
    "donor_class": donor_class,
    "foldable": foldable,
    "glyph": glyph,
    "kind_mark": kind_mark,
    "kind_note": KIND_NOTES.get,
    "type_name": type_name,
    "markdown": markdown,
    "opening": opening,
    "model_address": model_address,
    "moment": moment_text,
    "number": number_text,
    "organ_address": organ_address,
    "outside_link": outside_link,
    "share_class": share_class,
    "share": share_text,
    "short_digest": short_digest,
    "shape": shape_text,
    "percent": percent_text,
    "size": size_text,
    "state_name": state_name,
    "theta_bar": theta_bar,
    "theta_class": theta_class,
    "verdict_meaning": VERDICT_MEANINGS.__getitem__,
    "width_class": width_class,
}
