"""The Markdown of cards: how it is read, within bounds, and the images beside a card that it names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from organs.registry.upload_limits import CARD_IMAGE_NAME_MAX

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_core import StateCore

NESTING_MAX = 12
"""Maximum depth of lists and quotes inside each other."""
LINES_MAX = 2000
"""Maximum number of lines of a description. Each may be a block of its own."""
CELLS_MAX = 20_000
"""Maximum number of lines times the bars of the line with the most, since rows of a table get cells that they lack."""
BRACKETS_MAX = 200
"""Maximum number of opening brackets in a block, such as a paragraph or a cell. Each may begin a link, and the time of
parsing grows with their square."""
MARKS_MAX = 1000
"""Maximum number of asterisks and underscores in a block, for the same reason."""
WORK_MAX = BRACKETS_MAX * 4096
"""Maximum of the brackets of a block times its length, summed over all blocks; blocks after it are shown as text."""
_BESIDE = re.compile(r"\.{0,2}(?!/)[\w./%()+,@=~!-]{1,200}(?:#[\w-]{0,100})?|#[\w-]{1,100}", re.ASCII)
"""An address of a file beside the card, or of a place in it."""


def card_reader(is_outside: Callable[[str], bool]) -> MarkdownIt:
    """Return a reader of cards, without HTML; links lead to addresses that are `is_outside`, and beside the card."""
    from markdown_it import MarkdownIt  # commands that read no card start without it

    reader = MarkdownIt("commonmark", {"html": False, "linkify": False, "maxNesting": NESTING_MAX}).enable("table")
    reader.disable(["html_block", "html_inline", "reference"])
    reader.core.ruler.after("block", "bound_blocks", _bound_blocks)
    validated: Any = reader
    validated.validateLink = lambda address: bool(is_outside(address) or _BESIDE.fullmatch(address))
    return reader


def is_too_much(text: str) -> bool:
    """Return whether `text` has too many lines or cells to be read as Markdown."""
    lines = text.splitlines()
    return len(lines) > LINES_MAX or len(lines) * max((line.count("|") for line in lines), default=0) > CELLS_MAX


def image_name(address: str) -> str | None:
    """Return the name of the image beside a card that `address` means: a path below the folder of the card, or None.

    Escapes are resolved once, and a fragment is left out.
    """
    try:
        name = unquote(address.partition("#")[0], errors="strict")
    except UnicodeError:
        return None
    while name.startswith("./"):
        name = name[2:]
    return name if is_image_name(name) else None


def is_image_name(name: str) -> bool:
    """Return whether `name` is a plain path below a folder. Names that lead out of it, or are no text, are not."""
    is_line = name.isprintable() and len(name) <= CARD_IMAGE_NAME_MAX
    return is_line and not {"", ".", ".."}.intersection(name.split("/")) and not {"\\", ":"}.intersection(name)


def image_names(text: str) -> tuple[str, ...]:
    """Return the names of the images beside the card that the Markdown `text` shows, in their order."""
    if "![" not in text or is_too_much(text):
        return ()
    tokens = [child for token in card_reader(_is_http).parse(text) for child in token.children or ()]
    names = (image_name(str(token.attrs.get("src", ""))) for token in tokens if token.type == "image")
    return tuple(dict.fromkeys(name for name in names if name))


def _is_http(address: str) -> bool:
    return address.startswith(("https://", "http://"))


def _bound_blocks(state: StateCore) -> None:
    """Make blocks whose brackets or marks would take long to read plain text."""
    from markdown_it.token import Token

    work = 0
    for token in state.tokens:
        brackets = token.content.count("[")
        marks = token.content.count("*") + token.content.count("_")
        if token.type != "inline":
            continue
        work += brackets * len(token.content)
        if brackets > BRACKETS_MAX or marks > MARKS_MAX or work > WORK_MAX:
            token.children = [Token("text", "", 0, content=token.content)]
            token.content = ""  # nothing is left to be read
