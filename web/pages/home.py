"""The first page: an introduction, the registry in figures, its top organs and newest models."""

from __future__ import annotations

from collections.abc import Sequence

from organs.registry.catalog.queries.chimeras import count_chimeras
from organs.registry.catalog.queries.jobs import has_jobs
from organs.registry.catalog.queries.models import model_by_name
from organs.registry.catalog.queries.organs import organs_of_model
from organs.registry.catalog.queries.reports import public_figures
from organs.registry.catalog.queries.search import search_models, search_organs
from organs.registry.catalog.search import MODELS, parse_query
from organs.registry.entities.model import ModelSummary
from organs.registry.names import parse_model_name
from organs.web.pages.anatomy import anatomy
from organs.web.pages.routes import Context, Page, paged, pages
from organs.web.permissions import (
    may_see_jobs,
    whose_jobs,
)
from organs.web.responses import reading, settings

TOP_QUERY = "type:organ unique:organ sort:-spectral"
TOP_SHOWN, NEWEST_SHOWN = 8, 8
FEATURED_TENSORS_MAX = 400


@paged(pages, "/", api="root")
def home() -> Page:
    """Show the registry at a glance."""
    with reading(settings().search_seconds) as session:
        top = search_organs(session, parse_query(TOP_QUERY), TOP_SHOWN).items
        newest = search_models(session, parse_query("", MODELS), NEWEST_SHOWN).items
        values: Context = {"figures": public_figures(session), "top_organs": top, "newest_models": newest}
    return Page("home.html", values, extra=lambda: _page_context(newest))


def _page_context(newest: Sequence[ModelSummary]) -> Context:
    with reading(settings().search_seconds) as session:
        jobs, chimeras = may_see_jobs() and has_jobs(session, whose_jobs()), count_chimeras(session)
    return {"top_query": TOP_QUERY, "featured": _featured(newest), "has_jobs": jobs, "chimeras_count": chimeras}


def _featured(newest: Sequence[ModelSummary]) -> Context | None:
    """Return the grid of the newest complete model that is small enough for the first page; None without one."""
    complete = (model for model in newest if model.kind == "model")
    chosen = next((model for model in complete if 0 < model.tensors <= FEATURED_TENSORS_MAX), None)
    if chosen is None:
        return None
    with reading(settings().search_seconds) as session:
        organs = organs_of_model(session, model_by_name(session, parse_model_name(chosen.name)))
    return {"name": chosen.name, "grid": anatomy(organs, "spectral", {})}
