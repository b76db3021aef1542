"""Selections of places in a model by types, slots, blocks and experts: every step of a recipe has one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from organs.registry.anatomy import BLOCK_DIGITS_MAX, Place, is_expert_stack, place_of
from organs.registry.catalog.vocabulary import GRAFTED_TYPES
from organs.registry.documents import ONE_OR_MORE, Parse, line, quoted
from organs.registry.errors import BadQuery
from organs.registry.names import MODEL_TEXT_MAX_LENGTH, nearest
from organs.registry.search.language import QUERY_MAX_LENGTH, RECIPE_BASE, SYNONYMS, Query, parse_query

CHOICES_MAX = 1000
"""Items in one list of types, slots or blocks."""
WORD_MAX_LENGTH = 200

BlockRange = tuple[int, int]
"""First and last block, both included."""
MODEL = line("a model's name", MODEL_TEXT_MAX_LENGTH)

_BLOCKS = re.compile(rf"([0-9]{{1,{BLOCK_DIGITS_MAX}}})(?:\s*[-–]\s*([0-9]{{1,{BLOCK_DIGITS_MAX}}}))?")
_SLOT = re.compile(r"[^\s\"?\[\],\x80-\U0010ffff]+")


def several(item: object, *, repeated: bool = False) -> Parse:
    """Return the reader of one `item` or of a list of them; repeated items are left out, unless they are `repeated`."""
    items = tuple[item, ...]  # type: ignore[valid-type]  # only read by documents.convert
    items = Annotated[items, Meta(min_length=1, max_length=CHOICES_MAX), ONE_OR_MORE]  # type: ignore[misc, assignment]
    return Parse(tuple if repeated else unique, items)


def unique(items: Sequence[object]) -> tuple[object, ...]:
    return tuple(dict.fromkeys(items))


def _refuse_commas(word: str) -> None:
    if "," in word:
        listed = ", ".join(part.strip() for part in word[:60].split(","))
        raise ValueError(f"write several values as a list: [{listed}]")


def choice(words: Sequence[str], fold: Callable[[str], str]) -> Callable[[str], str]:
    """Return the check of one of `words`, in upper or lower case."""

    def check(word: str) -> str:
        if fold(word) in words:
            return fold(word)
        close = nearest(word, words)
        hint = f"; did you mean {close}?" if close else ""
        raise ValueError(f"{quoted(word)} is not one of {', '.join(words)}{hint}")

    return check


def _type(word: str) -> str:
    kind = SYNONYMS.get(word.lower(), word.lower())
    if kind not in GRAFTED_TYPES:
        _refuse_commas(word)
    return choice(GRAFTED_TYPES, str.lower)(kind)


def _slot(word: str) -> str:
    _refuse_commas(word)
    place = place_of(word)
    if not _SLOT.fullmatch(word):
        raise ValueError(
            f"{quoted(word)} is not a slot: write one word, without ? [ ] and quotation marks; * is any text"
        )
    if word in GRAFTED_TYPES:
        raise ValueError(f"{word} is a type: write type: {word}")
    if place.slot != word:
        block = "" if place.block is None else f", its block {place.block}"
        raise ValueError(f"{quoted(word)} is a tensor's name: its slot is {place.slot}{block}")
    return word


def ranges(article: str, noun: str, *, repeated: bool = False) -> Parse:
    """Return the reader of ranges of blocks or experts; `repeated` ones count each time."""
    due = f"{article} {noun} such as 3, a range such as 2-5, or a list of these"

    def check(value: int | str) -> BlockRange:
        word = str(value).strip()
        _refuse_commas(word)
        match = _BLOCKS.fullmatch(word)
        if match is None:
            raise ValueError(f"{quoted(word)} is not {article} {noun}: write {due}")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise ValueError(f"a range goes from the first {noun} to the last: {last}-{first}")
        return first, last

    return several(Annotated[BlockRange, Parse(check, int | str, due)], repeated=repeated)


class Selection(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A selection of places in a model by types, slots and blocks. An empty member selects all.

    A slot may contain `*`. Blocks are ranges. Places outside of blocks are selected only if `blocks` is empty. With
    `experts` (ranges), only these experts of the selected stacks are meant, and no other tensors.
    """

    types: Annotated[
        tuple[str, ...],
        several(Annotated[str, line(f"one of {', '.join(GRAFTED_TYPES)}", WORD_MAX_LENGTH, _type)]),
    ] = msgspec.field(default=(), name="type")
    slots: Annotated[tuple[str, ...], several(Annotated[str, line("a slot", WORD_MAX_LENGTH, _slot)])] = msgspec.field(
        default=(), name="slot"
    )
    blocks: Annotated[tuple[BlockRange, ...], ranges("a", "block")] = ()
    experts: Annotated[tuple[BlockRange, ...], ranges("an", "expert")] = ()

    def holds(self, place: Place) -> bool:
        """Return whether `place` is selected, or some experts of it."""
        if self.experts and not is_expert_stack(place):
            return False
        if self.types and place.type.value not in self.types:
            return False
        if self.slots and not any(matches_slot(place.slot, slot) for slot in self.slots):
            return False
        return not self.blocks or (place.block is not None and within(place.block, self.blocks))

    def expert_numbers(self, count: int) -> tuple[int, ...]:
        """Return the selected experts of a stack with `count` experts."""
        return tuple(number for number in range(count) if within(number, self.experts))

    def selects_as(self, other: Selection) -> bool:
        """Return whether this selection and `other` select the same places."""
        return (self.types, self.slots, self.blocks, self.experts) == (
            *(other.types, other.slots),
            *(other.blocks, other.experts),
        )


def matches_slot(slot: str, pattern: str) -> bool:
    """Return whether `slot` matches `pattern`, in which each `*` matches any text.

    The pattern is not compiled, because a recipe may have thousands of patterns, each compared with few slots.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return slot == pattern
    *middle, last = rest
    begin, end = len(first), len(slot) - len(last)
    if begin > end or not slot.startswith(first) or not slot.endswith(last):
        return False
    for piece in middle:
        position = slot.find(piece, begin, end)
        if position < 0:
            return False
        begin = position + len(piece)
    return True


def range_text(blocks: BlockRange) -> str:
    """Return a range of blocks or experts as text: `2-5`, or `3` for one."""
    first, last = blocks
    return str(first) if first == last else f"{first}-{last}"


def runs_of(numbers: Sequence[int]) -> tuple[BlockRange, ...]:
    """Return rising numbers as ranges: 0, 1, 2 and 7 are (0, 2) and (7, 7)."""
    runs: list[BlockRange] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return tuple(runs)


def in_ranges(numbers: Sequence[int]) -> list[str]:
    """Return rising numbers as ranges of a recipe: `0-3`, `7`."""
    return list(map(range_text, runs_of(numbers)))


def within(block: int, ranges: Sequence[BlockRange]) -> bool:
    return any(first <= block <= last for first, last in ranges)


MEASURED_FIELDS = ("type", "slot", "block", "tower", "dtype", "size", "theta", "signal", "z", "spectral", "rank")
"""Fields of queries that depend only on the organ, not on its model."""


def read_query(text: str) -> Query:
    try:
        return parse_query(text, base=RECIPE_BASE)
    except BadQuery as error:
        raise ValueError(str(error)) from error


def checked_query(text: str) -> str:
    read_query(text)
    return text


def sorts_itself(text: str) -> bool:
    """Return whether the valid query `text` has an order of its own."""
    # A parsed query always has an order. The order of a query without sort: depends on the default.
    by_theta, by_size = (parse_query(text, default_sort=sort, base=RECIPE_BASE).sort for sort in ("theta", "size"))
    return by_theta == by_size


def _measured_query(text: str) -> str:
    """Return a query on organs of one model: by type, place and measures, not by model."""
    query = read_query(text)
    foreign = [term.field for term in query.terms if term.field not in MEASURED_FIELDS]
    ranks = [*(["like"] if query.like is not None else []), *(["unique"] if query.unique else [])]
    ranks += ["sort"] if query.like is None and sorts_itself(text) else []
    if foreign or ranks:
        raise ValueError(f"{[*foreign, *ranks][0]}: cannot be used here; the fields are {', '.join(MEASURED_FIELDS)}")
    if query.words or query.excluded_words:
        word = [*query.words, *query.excluded_words][0]
        raise ValueError(f"{quoted(word)} searches models by name; this query narrows the tensors of one model")
    return text


MEASURED_QUERY = line("a query", QUERY_MAX_LENGTH, _measured_query)
