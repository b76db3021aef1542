"""Contributors, as everybody may see them."""

from __future__ import annotations

from flask import request, url_for

from organs.registry.catalog.queries.accounts import (
    MODELS_MAX,
    contributors_page,
    works_of,
)
from organs.registry.present.accounts import contributor_page, contributors_values
from organs.registry.present.values import Values
from organs.web.links import with_parameters
from organs.web.pages.blueprint import pages
from organs.web.params import (
    asked_after,
    asked_limit,
)
from organs.web.responses import (
    Page,
    Sheet,
    paged,
    reading,
    settings,
)

COLUMNS = ("name", "since", "models", "chimeras", "downloads", "grafts")
"""Of the list as CSV."""


@paged(pages, "/contributors", csv=True)
def contributors() -> Page:
    """Who has visible models, the newest contributor first."""
    limit, after = asked_limit(), asked_after()
    with reading(settings().search_seconds) as session:
        values = contributors_values(contributors_page(session, limit, after))
    return Page(
        "contributors.html",
        values,
        extra=lambda: _around(values),
        sheet=lambda: Sheet(COLUMNS, [[one[key] for key in COLUMNS] for one in values["items"]]),
        next=values["next"],
    )


@paged(pages, "/contributors/<contributor>")
def contributor(contributor: str) -> Page:
    """One of them, with the newest models."""
    with reading(settings().search_seconds) as session:
        values = contributor_page(session, works_of(session, contributor))
    return Page("contributor.html", values, extra=lambda: _links(values))


def _around(values: Values) -> Values:
    path, limit = url_for("pages.contributors"), request.args.get("limit", "")
    return {
        "following": values["next"] and with_parameters(path, {"after": values["next"]}, limit=limit),
        "first": with_parameters(path, {}, limit=limit) if request.args.get("after") else None,
        "csv": with_parameters(url_for("pages.contributors_csv"), {}, limit="1000"),
    }


def _links(values: Values) -> Values:
    query = url_for("pages.models", q=f'by:"{values["name"]}"')
    return {"all_models": query if values["models"] > MODELS_MAX else None}
