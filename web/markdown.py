"""Descriptions, which anybody may write, as HTML that can do no harm: Markdown without HTML, images and odd links.

Only tags of ours come out: paragraphs, headings, lists, quotes, code, emphasis, rules, and links that pass
`web.links.outside_link`. What is nested too deep, or is made to be slow, is shown as the text that it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from organs.registry.catalog.edits import DESCRIPTION_MAX
from organs.web.links import outside_link

NESTING_MAX = 12
"""Lists and quotes inside each other."""
BRACKETS_MAX = 200
"""Opening brackets: each is a link to be, and the time to find out grows with their square."""
MARKS_MAX = 1000
"""Stars and underscores, for the same reason."""
HEADINGS_BELOW = 3
"""The level that a first heading gets: the page has its own above it."""
_HEADINGS_MAX = 6
_RELATION = "nofollow noopener noreferrer ugc"
_AS_TEXT = Markup('<p class="wrap as-typed">{}</p>')


@lru_cache(maxsize=256)
def markdown(text: str) -> Markup:
    """`text` as HTML; beyond 4,096 characters it is cut."""
    text = text[:DESCRIPTION_MAX]
    if _is_too_much(text):
        return _AS_TEXT.format(text)
    tokens = _READER.parse(text)
    for token in _all(tokens):
        _dress(token)
    return Markup(_READER.renderer.render(tokens, _READER.options, {}))  # noqa: S704  # text is escaped, tags are ours


def _is_too_much(text: str) -> bool:
    return text.count("[") > BRACKETS_MAX or text.count("*") + text.count("_") > MARKS_MAX


def _all(tokens: Sequence[Token]) -> Sequence[Token]:
    return [one for token in tokens for one in (token, *(token.children or ()))]


def _dress(token: Token) -> None:
    """Headings lower, links with what keeps them apart from ours, no other attributes."""
    if token.type in ("heading_open", "heading_close"):
        token.tag = f"h{min(int(token.tag[1:]) + HEADINGS_BELOW - 1, _HEADINGS_MAX)}"
    elif token.type == "link_open":
        token.attrs = {"href": token.attrs.get("href", ""), "rel": _RELATION}
    elif token.type == "fence":
        token.info = ""
    elif token.type not in ("ordered_list_open",):
        token.attrs = {}


def _reader() -> MarkdownIt:
    reader = MarkdownIt("commonmark", {"html": False, "linkify": False, "maxNesting": NESTING_MAX})
    reader.disable(["image", "html_block", "html_inline", "reference"])
    validated: Any = reader
    validated.validateLink = _may_be_linked
    return reader


def _may_be_linked(address: str) -> bool:
    return outside_link(address) is not None


_READER = _reader()
