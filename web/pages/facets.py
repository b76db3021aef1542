"""Filters beside a list: the values of each field with their counts, and the terms of the query, all as links."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from flask import url_for

from organs.registry.search.language import (
    ORGANS,
    TAG,
    Choice,
    Query,
    Vocabulary,
    has_choice,
    short_text,
    toggled_texts,
    without,
)
from organs.web.responses import with_parameters

VALUES_OPEN = 8
"""Values of a filter that are always shown. The others are in a closed section."""


@dataclass(frozen=True, slots=True)
class FilterValue:
    """A value of a filter: its name, the number of results, and the address of the list after a click on it."""

    value: str
    label: str
    count: int
    chosen: bool
    address: str


@dataclass(frozen=True, slots=True)
class Filter:
    """A field beside a list, with its most frequent values and the others."""

    name: str
    heading: str
    open: list[FilterValue]
    more: list[FilterValue]


@dataclass(frozen=True, slots=True)
class TermLink:
    """A term of a query, and the address of the list without it."""

    text: str
    address: str


def list_address(endpoint: str, query: Query, vocabulary: Vocabulary = ORGANS, **more: str) -> str:
    """Return the address of the results of `query` at `endpoint`."""
    return with_parameters(url_for(endpoint), {"q": _with_order(short_text(query, vocabulary), vocabulary)}, **more)


def choice_filter(
    endpoint: str,
    query: Query,
    name: str,
    heading: str,
    counts: Mapping[str, int],
    vocabulary: Vocabulary = ORGANS,
    label: Callable[[str], str] = str,
) -> Filter:
    """Return the filter of a field whose values are words. A click adds a value, or removes it."""
    path = url_for(endpoint)
    texts = toggled_texts(query, name, counts, vocabulary)
    values = [
        FilterValue(
            value,
            label(value),
            count,
            has_choice(query, name, value),
            with_parameters(path, {"q": _with_order(texts[value], vocabulary)}),
        )
        for value, count in counts.items()
    ]
    return divided(name, heading, values)


def divided(name: str, heading: str, values: list[FilterValue]) -> Filter:
    """Return a filter with the first values open; chosen values are always open."""
    shown = [value for place, value in enumerate(values) if place < VALUES_OPEN or value.chosen]
    return Filter(name, heading, shown, [value for value in values if value not in shown])


def term_links(endpoint: str, query: Query, vocabulary: Vocabulary = ORGANS) -> list[TermLink]:
    """Return the terms and words of `query`, each with the address of the list without it."""
    parts: Iterable[object] = (*query.terms, *query.words, *(f"-{word}" for word in query.excluded_words))
    return [TermLink(str(part), list_address(endpoint, without(query, part, vocabulary), vocabulary)) for part in parts]


def tag_query(tag: str) -> str:
    """Return the query for the models with this tag."""
    return str(Choice(TAG, (tag.replace('"', "*"),)))


def _with_order(text: str, vocabulary: Vocabulary) -> str:
    """Return `text`, or if it is empty the order in words, where an address without a query begins with another one."""
    return text or (f"sort:{vocabulary.default_sort}" if vocabulary.start else "")
