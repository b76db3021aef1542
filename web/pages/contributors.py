"""Contributors, as everybody may see them."""

from __future__ import annotations

from flask import request, url_for

from organs.registry.catalog.queries.accounts import (
    MODELS_MAX,
    contributors_page,
    visible_models_of,
    works_of,
)
from organs.registry.catalog.queries.models import composed_among, model_summary
from organs.registry.entities.account import Contributor, ContributorPage
from organs.registry.entities.report import Cell
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


@paged(pages, "/contributors", csv=True, api="contributors")
def contributors() -> Page:
    """The contributors with visible models, newest first."""
    limit, after = asked_limit(), asked_after()
    with reading(settings().search_seconds) as session:
        page = contributors_page(session, limit, after)
    return Page(
        "contributors.html",
        {"items": page.items},
        extra=lambda: _around(page),
        sheet=lambda: Sheet(COLUMNS, [_row(one) for one in page]),
        next=page.next,
    )


@paged(pages, "/contributors/<contributor>", api="contributor")
def contributor(contributor: str) -> Page:
    """One contributor, with the newest models."""
    with reading(settings().search_seconds) as session:
        found = works_of(session, contributor)
        models = visible_models_of(session, found.name)
        composed = composed_among(session, [model.id for model in models])
        newest = [model_summary(model, composed=model.id in composed) for model in models]
    return Page("contributor.html", {"contributor": found, "newest": newest}, extra=lambda: _links(found))


def _row(one: Contributor) -> list[Cell]:
    return [one.name, one.since.isoformat(), one.models, one.chimeras, one.downloads, one.grafts]


def _around(page: ContributorPage) -> Values:
    path, limit = url_for("pages.contributors"), request.args.get("limit", "")
    return {
        "following": page.next and with_parameters(path, {"after": page.next}, limit=limit),
        "first": with_parameters(path, {}, limit=limit) if request.args.get("after") else None,
        "csv": with_parameters(url_for("pages.contributors_csv"), {}, limit="1000"),
    }


def _links(contributor: Contributor) -> Values:
    query = url_for("pages.models", q=f'by:"{contributor.name}"')
    return {"all_models": query if contributor.models > MODELS_MAX else None}
