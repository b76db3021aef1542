"""The list of models: its filters with counts, its columns, and quantisations folded under their model."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from flask import request

from organs.registry.amounts import count_text
from organs.registry.columns import for_people
from organs.registry.endpoints import models as endpoints
from organs.registry.entities.model import COLUMNS, FoldedModelPage
from organs.registry.entities.organ import FacetCounts
from organs.registry.errors import BadQuery, TooSlow
from organs.registry.search.counts import PARAMS, SIZES, model_counts
from organs.registry.search.language import MADE_FROM, MODELS, QUANT, TAG, Query, Sort, bounded, parse_query
from organs.registry.search.models import folded_models, search_models
from organs.web.pages.lists import (
    FilterValue,
    ListFilter,
    choice_filter,
    divided,
    examples,
    list_address,
    query_context,
    saved_context,
)
from organs.web.pages.routes import Context, WebPage, paged, sheet_of
from organs.web.params import requested
from organs.web.responses import plain_page, reading, searching, settings

ENDPOINT = "pages.models"
FILTERS = {
    "kind": "kind",
    "arch": "architecture",
    PARAMS: "parameters",
    QUANT: "quantisation",
    TAG: "tag",
    "license": "license",
    MADE_FROM: "made from",
    "by": "contributor",
}
"""Headings of the filters beside the list, by field of queries, in their order."""
FOLDED = ("architecture", "license", "tensors", "mean_theta")
"""Columns that are in another one here, or that only a query about them shows."""
ORDERS = {"-new": "newest", "-grafts": "most used", "-downloads": "most downloaded", "-params": "largest"}
"""Orders that are links above the list, with their names."""
EXAMPLES = ("kind:model sort:-size", "tag:code", "quant:Q8_0 sort:new", "license:apache-2.0 params<10G")


@paged("/models", csv=True, api="models")
def models() -> WebPage:
    """Show the models that match the query in `q`, newest first unless it sorts; a CSV does not fold quantisations."""
    try:
        values = requested(endpoints.models, "q", "limit", "after")
        query, limit, after = parse_query(values["q"], MODELS), values["limit"], values["after"]
        with searching() as session:
            if not plain_page():
                found = search_models(session, query, limit, after)
                return WebPage("models.html", {}, sheet=lambda: sheet_of(COLUMNS, found), next=found.next)
            page = folded_models(session, query, limit, after)
    except BadQuery as error:
        if not plain_page():
            raise
        context: Context = {"items": [], "notes": [], "filters": [], "terms": [], "problem": str(error)}
        context |= saved_context() | {"text": request.args.get("q", ""), "examples": examples(ENDPOINT, EXAMPLES)}
        return WebPage("models.html", context, status=400)
    return WebPage("models.html", _list_context(query, page), next=page.next)


def _list_context(query: Query, page: FoldedModelPage) -> Context:
    counts: FacetCounts | None = None
    with suppress(TooSlow), reading(settings().counts_seconds) as session:
        counts = model_counts(session, query)
    orders = []
    for text, label in ORDERS.items():
        ordered = replace(query, sort=Sort(text.removeprefix("-"), descending=True))
        address = list_address(ENDPOINT, ordered, MODELS)
        orders.append({"label": label, "chosen": ordered.sort == query.sort, "address": address})
    wanted = query.wanted(MODELS.default_sort)
    shown = for_people(COLUMNS, [item.model for item in page], wanted)
    columns = [column for column in shown if column.name not in FOLDED or column.sort in wanted]
    columns.sort(key=lambda column: column.name != "name")
    return query_context(ENDPOINT, query, columns, page, MODELS) | {
        "filters": _filters(query, counts) if counts else [],
        "counts": counts,
        "orders": orders,
        "examples": examples(ENDPOINT, EXAMPLES),
    }


def _filters(query: Query, counts: FacetCounts) -> list[ListFilter]:
    """Return the filters of which a click on a value changes the list."""
    filters = []
    for name, title in FILTERS.items():
        counted = counts.fields.get(name, {})
        if name == PARAMS:
            shown = divided(name, title, _sizes(query, counted))
        else:
            shown = choice_filter(ENDPOINT, query, name, title, counted, MODELS)
        values = [value for value in (*shown.open, *shown.more) if value.value != "none"]
        if any(value.chosen for value in values) or (len(shown.open) > 1 and values):
            filters.append(shown)
    return filters


def _sizes(query: Query, counted: dict[str, int]) -> list[FilterValue]:
    """Return the classes of models by size as values of a filter. A click on the chosen class removes the filter."""
    values = []
    for lower, upper in zip(SIZES, (*SIZES[1:], None), strict=True):
        if (count := counted.get(str(lower))) is None:
            continue
        chosen = bounded(query, PARAMS, float(lower) or None, None if upper is None else float(upper))
        is_chosen = set(chosen.numbers(PARAMS)) == set(query.numbers(PARAMS))
        address = list_address(ENDPOINT, bounded(query, PARAMS, None, None) if is_chosen else chosen, MODELS)
        if upper is None:
            label = f"{count_text(lower)} and more"
        elif not lower:
            label = f"under {count_text(upper)}"
        else:
            label = f"{count_text(lower)} to {count_text(upper)}"
        values.append(FilterValue(str(lower), label, count, is_chosen, address))
    return values
