"""Which organs a step of a recipe means: by type, slot and blocks, or by a query."""

from __future__ import annotations

import re
from collections.abc import Mapping

from organs.registry.anatomy import BLOCK_DIGITS_MAX, OrganType, place_of
from organs.registry.catalog.search import Query, parse_query
from organs.registry.catalog.search.fields import SYNONYMS
from organs.registry.catalog.search.parse import QUERY_MAX_LENGTH, nearest
from organs.registry.compose.fields import Entry, quoted
from organs.registry.compose.recipe import BlockRange, Selection
from organs.registry.errors import BadQuery

CHOICES_MAX = 1000
"""In one list of types, slots or blocks."""
WORD_MAX_LENGTH = 200
SELECTION_KEYS = ("type", "slot", "blocks")
TYPES = tuple(kind.value for kind in (OrganType.SKELETON, OrganType.ORGAN, OrganType.EMBED, OrganType.NORM))
"""What can be chosen by its type; other tensors are chosen by slot."""
MEASURED_FIELDS = ("type", "slot", "block", "tower", "dtype", "size", "theta", "signal", "z", "spectral", "rank")
"""Of a query: what an organ has by itself, whatever model it is in."""

_BLOCKS = re.compile(rf"([0-9]{{1,{BLOCK_DIGITS_MAX}}})(?:\s*-\s*([0-9]{{1,{BLOCK_DIGITS_MAX}}}))?")
_SLOT = re.compile(r"[^\s\"?\[\],\x80-\U0010ffff]+")
_BLOCKS_DUE = "a block such as 3, a range such as 2-5, or a list of these"


def read_selection(members: Mapping[str, Entry]) -> Selection:
    """What `type`, `slot` and `blocks` of a step select."""
    types = [_type(entry) for entry in _choices(members, "type", f"one of {', '.join(TYPES)}")]
    slots = [_slot(entry) for entry in _choices(members, "slot", "a slot, or a list of slots")]
    blocks = [_block_range(entry) for entry in _choices(members, "blocks", _BLOCKS_DUE)]
    return Selection(
        types=tuple(dict.fromkeys(word for word in types if word is not None)),
        slots=tuple(dict.fromkeys(word for word in slots if word is not None)),
        blocks=tuple(dict.fromkeys(block for block in blocks if block is not None)),
    )


def read_query(entry: Entry) -> tuple[str, Query | None]:
    """The text of the query in `entry`, and what it asks; None where that was refused."""
    text = entry.text("a query", QUERY_MAX_LENGTH)
    if text is None:
        return "", None
    try:
        return text, parse_query(text)
    except BadQuery as error:
        entry.refuse(str(error))
        return text, None


def read_sort(entry: Entry, text: str, query: Query | None) -> str:
    """The order in `entry`, for what the query `text` finds."""
    sort = entry.text("a measure to rank by, such as -theta", WORD_MAX_LENGTH)
    if sort is None:
        return ""
    if query is not None and query.like is not None:
        entry.refuse("like: in the query ranks by likeness: leave sort out")
    elif query is not None and sorts_itself(text):
        entry.refuse(f"the query has a sort:{query.sort} of its own: leave one of the two out")
    try:
        return str(parse_query("", default_sort=sort).sort)
    except BadQuery as error:
        entry.refuse(error.reason)
        return ""


def sorts_itself(text: str) -> bool:
    """Whether the query `text`, which is a sound one, says how to sort."""
    # A parsed query always has an order; its own is the one that no default changes.
    by_theta, by_size = (parse_query(text, default_sort=sort).sort for sort in ("theta", "size"))
    return by_theta == by_size


def read_measured_query(entry: Entry) -> str:
    """The query in `entry` that narrows a model's own organs: by what they are and measure, not by whose they are."""
    text, query = read_query(entry)
    if query is None:
        return ""
    foreign = [term.field for term in query.terms if term.field not in MEASURED_FIELDS]
    ranks = [*(["like"] if query.like is not None else []), *(["unique"] if query.unique else [])]
    ranks += ["sort"] if query.like is None and sorts_itself(text) else []
    if foreign or ranks:
        entry.refuse(f"{[*foreign, *ranks][0]}: means nothing here; the fields are {', '.join(MEASURED_FIELDS)}")
    if query.words or query.excluded_words:
        word = [*query.words, *query.excluded_words][0]
        entry.refuse(f"{quoted(word)} looks for models by name; here one model's organs are narrowed")
    return text


def _choices(members: Mapping[str, Entry], key: str, due: str) -> list[Entry]:
    return members[key].one_or_more(due, CHOICES_MAX) if key in members else []


def _type(entry: Entry) -> str | None:
    word = entry.text(f"one of {', '.join(TYPES)}", WORD_MAX_LENGTH)
    if word is None or word.lower() in TYPES:
        return word and word.lower()
    if _is_row(entry, word):
        return None
    close = SYNONYMS.get(word.lower()) or nearest(word, TYPES)
    meant = f"; did you mean {close}?" if close in TYPES else ""
    entry.refuse(f"{quoted(word)} is no type to choose by: the types are {', '.join(TYPES)}{meant}")
    return None


def _slot(entry: Entry) -> str | None:
    word = entry.text("a slot", WORD_MAX_LENGTH)
    if word is None or _is_row(entry, word):
        return None
    place = place_of(word)
    if not _SLOT.fullmatch(word):
        entry.refuse(f"{quoted(word)} is no slot: one word with * for any text, without ? [ ] and quotation marks")
    elif word in TYPES:
        entry.refuse(f"{word} is a type: write type: {word}")
    elif place.slot != word:
        block = "" if place.block is None else f", its block {place.block}"
        entry.refuse(f"{quoted(word)} is a tensor's name: its slot is {place.slot}{block}")
    else:
        return word
    return None


def _block_range(entry: Entry) -> BlockRange | None:
    value = entry.whole()
    if value is not None and 0 <= value < 10**BLOCK_DIGITS_MAX:
        return (value, value)
    word = str(value) if value is not None else entry.text(_BLOCKS_DUE, WORD_MAX_LENGTH)
    if word is None or _is_row(entry, word):
        return None
    match = _BLOCKS.fullmatch(word.replace("–", "-"))
    if match is None:
        entry.refuse(f"{quoted(word)} is no block: write {_BLOCKS_DUE}")
        return None
    first, last = int(match[1]), int(match[2] or match[1])
    if first > last:
        entry.refuse(f"a range goes from the first block to the last: {last}-{first}")
        return None
    return (first, last)


def _is_row(entry: Entry, word: str) -> bool:
    """Whether several words stand between commas in one text, which is refused."""
    if "," in word:
        entry.refuse(f"several stand in a list: [{', '.join(part.strip() for part in word[:60].split(','))}]")
    return "," in word
