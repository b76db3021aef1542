"""The list of models: its filters with counts, its columns, and quantisations folded under their model."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import msgspec
from flask import request

from organs.registry.amounts import count_text
from organs.registry.entities.model import FoldedModelPage, ModelPage
from organs.registry.entities.organ import FacetCounts
from organs.registry.errors import BadQuery, TooSlow
from organs.registry.search.counts import PARAMS, SIZES, model_counts
from organs.registry.search.language import GAIN, LIKENESS, MADE_FROM, MODELS, QUANT, TAG, Query, Sort, bounded
from organs.registry.search.models import folded_models, search_models
from organs.web.pages.lists import (
    GAIN_COLUMNS,
    Column,
    FilterValue,
    ListFilter,
    choice_filter,
    divided,
    examples,
    gain_cells,
    list_address,
    query_context,
)
from organs.web.pages.routes import Context, Sheet, WebPage, paged
from organs.web.params import requested_page, requested_query
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
COLUMNS = (
    Column("model", "model", classes=""),
    Column("architecture", "kind", classes="hide-small"),
    Column("parameters", "parameters", "Number of weights.", sort="params"),
    Column("size_bytes", "size", "Size of all files.", sort="size"),
    Column("downloads", "downloads", "Number of downloads.", sort="downloads", classes="n hide-small"),
    Column("grafts", "uses", "Number of chimeras that use its organs.", sort="grafts", classes="n hide-small"),
    Column("created_at", "added", "When the model was added.", sort="new", classes="n hide-small"),
)
"""Columns of the table of models. `models.html` has its table cells in the same order."""
GAIN_COLUMN = Column(
    GAIN,
    GAIN,
    "Fall of the perplexity: of a chimera against its base, or of a base with organs of this model.",
    sort=GAIN,
)
CHANGE_COLUMN = Column(
    "change",
    "change",
    "Energy of the difference from the matrices of the base, as a share of their energy: 1e-5 is a light fine-tune.",
    sort=LIKENESS,
)
"""The column after the name, in lists with a base. GAIN_COLUMN follows it if the query is about gains."""
MEAN_COLUMNS = {
    "theta": Column("mean_theta", "mean θ", "Mean of θ over all organs, in degrees.", sort="theta"),
    "signal": Column("mean_signal", "mean sin θ", "Mean of sin θ over all organs, from 0 to 1.", sort="signal"),
}
"""Columns of lists whose query filters or sorts by this field."""
CSV_COLUMNS = (
    *("name", "title", "kind", "architecture", "license", "parameters", "tensors", "size_bytes", "mean_theta"),
    *("mean_signal", "complete", "digest", "created_at", "downloads", "grafts", "nonfinite_tensors", "likeness"),
    "change",
)
"""Columns of the list as CSV, before the gain."""
ORDERS = {"-new": "newest", "-grafts": "most used", "-downloads": "most downloaded", "-params": "largest"}
"""Orders that are links above the list, with their names."""
EXAMPLES = ("kind:model sort:-size", "tag:code", "quant:Q8_0 sort:new", "license:apache-2.0 params<10G")


@paged("/models", csv=True, api="models")
def models() -> WebPage:
    """Show the models that match the query in `q`, newest first unless it sorts; a CSV does not fold quantisations."""
    try:
        query, (limit, after) = requested_query(MODELS), requested_page()
        with searching() as session:
            if not plain_page():
                found = search_models(session, query, limit, after)
                return WebPage("models.html", {}, sheet=lambda: _models_sheet(found), next=found.next)
            page = folded_models(session, query, limit, after)
    except BadQuery as error:
        if not plain_page():
            raise
        values: Context = {"items": [], "notes": [], "filters": [], "terms": [], "problem": str(error)}
        values |= {"text": request.args.get("q", ""), "examples": examples(ENDPOINT, EXAMPLES)}
        return WebPage("models.html", values, status=400)
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
    return query_context(ENDPOINT, query, _columns(query), page, MODELS) | {
        "filters": _filters(query, counts) if counts else [],
        "counts": counts,
        "orders": orders,
        "examples": examples(ENDPOINT, EXAMPLES),
    }


def _columns(query: Query) -> list[Column]:
    """Return the columns of the table. Change, gain and means are shown only if the query is about them."""
    firsts = [*([CHANGE_COLUMN] if query.base is not None else []), *([GAIN_COLUMN] if query.mentions_gains else [])]
    means = [column for name, column in MEAN_COLUMNS.items() if query.sort.field == name or query.numbers(name)]
    return [COLUMNS[0], *firsts, *means, *COLUMNS[1:]]


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


def _models_sheet(page: ModelPage) -> Sheet:
    rows = []
    for model in page:
        values = msgspec.to_builtins(model)
        rows.append([*(values[name] for name in CSV_COLUMNS), *gain_cells(model.gain)])
    return Sheet((*CSV_COLUMNS, *GAIN_COLUMNS), rows)
