"""Models and their ranking."""

from __future__ import annotations

from flask import request, url_for

from organs.registry.catalog.queries.model_search import ModelPage, search_models
from organs.registry.catalog.search import MODELS, Query
from organs.registry.catalog.search.refine import short_text, sorted_by
from organs.registry.errors import BadQuery
from organs.registry.present.models import models_values
from organs.registry.present.values import Values
from organs.web.answers import Page, Sheet, paged, plain_page, reading, settings
from organs.web.asked import asked_after, asked_limit, asked_query
from organs.web.links import with_parameters
from organs.web.pages.blueprint import pages

SORTS = {
    "theta": "mean θ",
    "signal": "signal",
    "params": "parameters",
    "tensors": "organs",
    "size": "size",
    "downloads": "downloads",
    "grafts": "grafted",
    "new": "added",
}
COLUMNS = (
    *("name", "title", "kind", "architecture", "license", "parameters", "tensors", "size_bytes", "mean_theta"),
    *("mean_signal", "complete", "digest", "created_at", "downloads", "grafts", "nonfinite_tensors"),
)
"""Of the list as CSV."""
EXAMPLES = ("kind:model sort:-theta", "kind:adapter", "sort:-downloads", "sort:-grafts", "license:apache-2.0")


@paged(pages, "/models", csv=True)
def models() -> Page:
    """What the query in `q` finds among models, newest first unless it sorts."""
    try:
        query, limit, after = asked_query(MODELS), asked_limit(), asked_after()
        with reading(settings().search_seconds) as session:
            found = search_models(session, query, limit, after)
    except BadQuery as error:
        if not plain_page():
            raise
        typed = request.args.get("q", "")
        extra = {"text": typed, "problem": str(error), "examples": _examples(), "heads": {}}
        return Page("models.html", {"items": [], "notes": []}, extra=lambda: extra, status=400)
    values = {"query": str(query)} | models_values(found)
    return Page(
        "models.html", values, extra=lambda: _links(query, found), sheet=lambda: _sheet(values), next=found.next
    )


def _links(query: Query, found: ModelPage) -> Values:
    return {
        "text": short_text(query, MODELS),
        "heads": {name: _head(query, name) for name in SORTS},
        "following": found.next and _address(query, after=found.next, limit=request.args.get("limit", "")),
        "first": _address(query) if request.args.get("after") else None,
        "examples": _examples(),
        "csv": with_parameters(url_for("pages.models_csv"), {"q": short_text(query, MODELS)}, limit="1000"),
    }


def _address(query: Query, **more: str) -> str:
    return with_parameters(url_for("pages.models"), {"q": short_text(query, MODELS)}, **more)


def _head(query: Query, name: str) -> Values:
    chosen = query.sort.field == name
    order = ("descending" if query.sort.descending else "ascending") if chosen else None
    return {"label": SORTS[name], "order": order, "address": _address(sorted_by(query, name))}


def _examples() -> list[Values]:
    return [{"text": text, "address": url_for("pages.models", q=text)} for text in EXAMPLES]


def _sheet(values: Values) -> Sheet:
    return Sheet(COLUMNS, [[model[key] for key in COLUMNS] for model in values["items"]])
