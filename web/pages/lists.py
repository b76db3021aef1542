"""Lists of what a query selects: headings that sort, filters with counts, and the terms of the query, all as links."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flask import request, url_for

from organs.registry.catalog.queries.accounts import saved_queries_of
from organs.registry.catalog.queries.model_lists import visible_models
from organs.registry.columns import Column
from organs.registry.entities.base import Page
from organs.registry.entities.query import SavedQuery
from organs.registry.search.language import (
    LIKENESS,
    ORGANS,
    TAG,
    Choice,
    Query,
    Vocabulary,
    has_choice,
    short_text,
    sorted_by,
    toggled_texts,
    without,
)
from organs.web.auth import ANY, identity
from organs.web.permissions import may_write
from organs.web.responses import reading, with_parameters

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
class ListFilter:
    """A field beside a list, with its most frequent values and the others."""

    name: str
    heading: str
    open: list[FilterValue]
    more: list[FilterValue]


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
) -> ListFilter:
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


def divided(name: str, heading: str, values: list[FilterValue]) -> ListFilter:
    """Return a filter with the first values open; chosen values are always open."""
    shown = [value for place, value in enumerate(values) if place < VALUES_OPEN or value.chosen]
    return ListFilter(name, heading, shown, [value for value in values if value not in shown])


def query_context(
    endpoint: str, query: Query, columns: Sequence[Column], page: Page[Any], vocabulary: Vocabulary = ORGANS
) -> dict[str, object]:
    """Return what is shown of a `page` of the results of `query`, and around it."""

    def address(changed: Query, to: str = endpoint, **more: str) -> str:
        return list_address(to, changed, vocabulary, **more)

    headings = []
    for column in columns:
        is_chosen = bool(column.sort) and query.like is None and query.sort.field == column.sort
        is_descending = query.sort.descending is not (column.sort == LIKENESS)  # shown as the change, which falls then
        order = "descending" if is_descending else "ascending"
        link = address(sorted_by(query, column.sort)) if column.sort else ""
        headings.append({"column": column, "order": order if is_chosen else None, "address": link})
    terms: Iterable[object] = (*query.terms, *query.words, *(f"-{word}" for word in query.excluded_words))
    limit = request.args.get("limit", "")
    return saved_context(vocabulary.plural) | {
        "items": page.items,
        "notes": page.notes,
        "text": short_text(query, vocabulary),
        "terms": [{"text": str(term), "address": address(without(query, term, vocabulary))} for term in terms],
        "headings": headings,
        "following": page.next and address(query, after=page.next, limit=limit),
        "first": address(query, limit=limit) if request.args.get("after") else None,
        "csv": address(query, f"{endpoint}_csv", limit="1000"),
    }


def saved_context(*kinds: str) -> dict[str, object]:
    """Return the saved queries of the user for the lists `kinds`, and whether the user may save one."""
    name = identity().name
    saved: list[SavedQuery] = []
    if name is not None:
        with reading() as session:
            saved = [query for query in saved_queries_of(session, name).items if query.kind in kinds]
    return {"saved": saved, "may_save": may_write(ANY)}


def registry_is_empty() -> bool:
    """Return whether no model is visible. Pages then say how a first model is added."""
    with reading() as session:
        return not visible_models(session, 1)


def examples(endpoint: str, texts: Iterable[str]) -> list[dict[str, str]]:
    """Return queries to try, each with its address."""
    return [{"text": text, "address": url_for(endpoint, q=text)} for text in texts]


def tag_query(tag: str) -> str:
    """Return the query for the models with this tag."""
    return str(Choice(TAG, (tag.replace('"', "*"),)))


def _with_order(text: str, vocabulary: Vocabulary) -> str:
    """Return `text`, or if it is empty the order in words, where an address without a query begins with another one."""
    return text or (f"sort:{vocabulary.default_sort}" if vocabulary.start else "")
