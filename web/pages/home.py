"""The first page: what this is, the registry in figures, its top organs and newest models."""

from __future__ import annotations

from organs.registry.catalog.queries.composing import count_chimeras
from organs.registry.catalog.queries.jobs import has_jobs
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.catalog.queries.search import search_models, search_organs
from organs.registry.catalog.search import MODELS, parse_query
from organs.registry.names import parse_model_name
from organs.registry.present.models import models_values, placements_values, public_figures
from organs.registry.present.search import search_values
from organs.registry.present.values import Values
from organs.web.pages.anatomy import anatomy
from organs.web.pages.blueprint import pages
from organs.web.permissions import (
    may_see_jobs,
    whose_jobs,
)
from organs.web.responses import (
    Page,
    paged,
    reading,
    settings,
)

TOP_QUERY = "type:organ unique:organ sort:-spectral"
TOP_SHOWN, NEWEST_SHOWN = 8, 8
FEATURED_TENSORS_MAX = 400


@paged(pages, "/")
def home() -> Page:
    """The registry at a glance."""
    with reading(settings().search_seconds) as session:
        values: Values = {"figures": public_figures(session)}
        top = search_organs(session, parse_query(TOP_QUERY), TOP_SHOWN)
        newest = models_values(search_models(session, parse_query("", MODELS), NEWEST_SHOWN))
    values["top_organs"] = search_values(top)["items"]
    values["newest_models"] = newest["items"]
    return Page("home.html", values, extra=lambda: _more(values))


def _more(values: Values) -> Values:
    with reading(settings().search_seconds) as session:
        jobs, chimeras = may_see_jobs() and has_jobs(session, whose_jobs()), count_chimeras(session)
    return {"top_query": TOP_QUERY, "featured": _featured(values), "has_jobs": jobs, "chimeras_count": chimeras}


def _featured(values: Values) -> Values | None:
    """The grid of the newest whole model that is not too long for a first page."""
    fitting = (one for one in values["newest_models"] if one["kind"] == "model" and one["complete"])
    chosen = next((one for one in fitting if 0 < one["tensors"] <= FEATURED_TENSORS_MAX), None)
    if chosen is None:
        return None
    with reading(settings().search_seconds) as session:
        row = model_by_name(session, parse_model_name(chosen["name"]))
        placements = placements_values(session, row.id)
    return {"name": chosen["name"], "grid": anatomy(placements, "theta", {})}
