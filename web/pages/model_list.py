"""The list of models: its filters with counts, its columns, and quantisations folded under their model."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from flask import request, url_for

from organs.registry.amounts import count_text
from organs.registry.entities.model import FoldedModelPage, ModelPage
from organs.registry.entities.organ import FacetCounts
from organs.registry.errors import BadQuery, TooSlow
from organs.registry.search.counts import PARAMS, SIZES, model_counts
from organs.registry.search.language import (
    GAIN,
    LIKENESS,
    MADE_FROM,
    MODELS,
    QUANT,
    TAG,
    Query,
    Sort,
    bounded,
    short_text,
    sorted_by,
)
from organs.registry.search.models import folded_models, search_models
from organs.web.pages.facets import Filter, FilterValue, choice_filter, divided, list_address, term_links
from organs.web.pages.organs import GAIN_COLUMNS, Column, gain_cells, heading
from organs.web.pages.routes import Context, Page, Sheet, paged, pages
from organs.web.params import (
    requested_after,
    requested_limit,
    requested_query,
)
from organs.web.responses import plain_page, reading, settings

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
CSV_MODEL_COLUMNS = (
    *("name", "title", "kind", "architecture", "license", "parameters", "tensors", "size_bytes", "mean_theta"),
    *(
        "mean_signal",
        "complete",
        "digest",
        "created_at",
        "downloads",
        "grafts",
        "nonfinite_tensors",
        LIKENESS,
        "change",
    ),
)
"""Columns of the list as CSV."""
ORDERS = {"-new": "newest", "-grafts": "most used", "-downloads": "most downloaded", "-params": "largest"}
"""Orders that are links above the list, with their names."""
EXAMPLES = ("kind:model sort:-size", "tag:code", "quant:Q8_0 sort:new", "license:apache-2.0 params<10G")


@paged(pages, "/models", csv=True, api="models")
def models() -> Page:
    """Show the models that match the query in `q`, newest first unless it sorts; a CSV does not fold quantisations."""
    try:
        query, limit, after = requested_query(MODELS), requested_limit(), requested_after()
        with reading(settings().search_seconds) as session:
            if not plain_page():
                return _sheet_page(query, search_models(session, query, limit, after))
            page = folded_models(session, query, limit, after)
    except BadQuery as error:
        if not plain_page():
            raise
        extra = {"text": request.args.get("q", ""), "problem": str(error), "examples": _examples()}
        values: Context = {"items": [], "notes": [], "filters": [], "terms": []}
        return Page("models.html", values, extra=lambda: extra, status=400)
    return Page(
        "models.html",
        {"query": str(query), "items": page.items, "notes": page.notes},
        extra=lambda: _list_context(query, page, _counts(query)),
        next=page.next,
    )


def _sheet_page(query: Query, page: ModelPage) -> Page:
    return Page("models.html", {"query": str(query)}, sheet=lambda: _models_sheet(page), next=page.next)


def _counts(query: Query) -> FacetCounts | None:
    """Return the counts beside the list; None if they would take too long."""
    try:
        with reading(settings().counts_seconds) as session:
            return model_counts(session, query)
    except TooSlow:
        return None


def _list_context(query: Query, page: FoldedModelPage, counts: FacetCounts | None) -> Context:
    columns = columns_of(query)
    limit = request.args.get("limit", "")
    return {
        "text": short_text(query, MODELS),
        "terms": term_links(ENDPOINT, query, MODELS),
        "filters": _filters(query, counts) if counts else [],
        "counts": counts,
        "headings": [heading(query, column, _sort_address(query, column)) for column in columns],
        "orders": _orders(query),
        "following": page.next and list_address(ENDPOINT, query, MODELS, after=page.next, limit=limit),
        "first": list_address(ENDPOINT, query, MODELS) if request.args.get("after") else None,
        "examples": _examples(),
        "csv": list_address("pages.models_csv", query, MODELS, limit="1000"),
    }


def columns_of(query: Query) -> list[Column]:
    """Return the columns of the table. Change, gain and means are shown only if the query is about them."""
    firsts = [*([CHANGE_COLUMN] if query.base is not None else []), *([GAIN_COLUMN] if query.mentions_gains else [])]
    means = [column for name, column in MEAN_COLUMNS.items() if query.sort.field == name or query.numbers(name)]
    return [COLUMNS[0], *firsts, *means, *COLUMNS[1:]]


def _filters(query: Query, counts: FacetCounts) -> list[Filter]:
    filters = []
    for name, title in FILTERS.items():
        counted = counts.fields.get(name, {})
        if name == PARAMS:
            filters.append(divided(name, title, _sizes(query, counted)))
        else:
            filters.append(choice_filter(ENDPOINT, query, name, title, counted, MODELS))
    return [shown for shown in filters if _separates(shown)]


def _separates(shown: Filter) -> bool:
    """Return whether a click on a value of the filter changes the list."""
    values = [value for value in (*shown.open, *shown.more) if value.value != "none"]
    return any(value.chosen for value in values) or (len(shown.open) > 1 and bool(values))


def _sizes(query: Query, counted: dict[str, int]) -> list[FilterValue]:
    """Return the classes of models by size as values of a filter. A click on the chosen class removes the filter."""
    values = []
    for lower, upper in zip(SIZES, (*SIZES[1:], None), strict=True):
        if (count := counted.get(str(lower))) is None:
            continue
        chosen = bounded(query, PARAMS, float(lower) or None, None if upper is None else float(upper))
        is_chosen = set(chosen.numbers(PARAMS)) == set(query.numbers(PARAMS))
        address = list_address(ENDPOINT, bounded(query, PARAMS, None, None) if is_chosen else chosen, MODELS)
        values.append(FilterValue(str(lower), _size_label(lower, upper), count, is_chosen, address))
    return values


def _size_label(lower: int, upper: int | None) -> str:
    if upper is None:
        return f"{count_text(lower)} and more"
    return f"under {count_text(upper)}" if not lower else f"{count_text(lower)} to {count_text(upper)}"


def _orders(query: Query) -> list[Context]:
    orders = []
    for text, label in ORDERS.items():
        ordered = replace(query, sort=Sort(text.removeprefix("-"), descending=True))
        address = list_address(ENDPOINT, ordered, MODELS)
        orders.append({"label": label, "chosen": ordered.sort == query.sort, "address": address})
    return orders


def _sort_address(query: Query, column: Column) -> str:
    return list_address(ENDPOINT, sorted_by(query, column.sort), MODELS) if column.sort else ""


def _examples() -> list[Context]:
    return [{"text": text, "address": url_for(ENDPOINT, q=text)} for text in EXAMPLES]


def _models_sheet(page: ModelPage) -> Sheet:
    rows = []
    for model in page:
        values = msgspec.to_builtins(model)
        rows.append([*(values[key] for key in CSV_MODEL_COLUMNS), *gain_cells(model.gain)])
    return Sheet((*CSV_MODEL_COLUMNS, *GAIN_COLUMNS), rows)
