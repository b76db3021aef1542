"""The first page: what the registry holds, by family; the newest chimeras; a search and an introduction."""

from __future__ import annotations

from organs.registry.catalog.queries.chimeras import count_chimeras, newest_chimeras
from organs.registry.catalog.queries.gains import GainFilter, gains_of_models
from organs.registry.catalog.queries.jobs import has_jobs
from organs.registry.catalog.queries.reports import public_figures, running_totals
from organs.registry.compose.chimeras import chimera_page
from organs.registry.relatives.holdings import holdings
from organs.web.auth import ADMIN, identity
from organs.web.pages.routes import Context, Page, paged, pages
from organs.web.permissions import may_see_jobs, whose_jobs
from organs.web.responses import reading, settings

CHIMERAS_SHOWN = 5


@paged(pages, "/", api="root")
def home() -> Page:
    """Show what the registry holds."""
    with reading(settings().search_seconds) as session:
        ids = {model.full_name: model.id for model, _ in newest_chimeras(session, CHIMERAS_SHOWN).items}
        gains = gains_of_models(session, GainFilter(), ids.values())
        values: Context = {
            "figures": public_figures(session),
            "held": holdings(session),
            "chimeras": [
                (summary, gains.get(ids.get(summary.name, 0))) for summary in chimera_page(session, CHIMERAS_SHOWN)
            ],
        }
    return Page("home.html", values, extra=_page_context)


def _page_context() -> Context:
    user = identity()
    with reading(settings().search_seconds) as session:
        jobs, count = may_see_jobs() and has_jobs(session, whose_jobs()), count_chimeras(session)
        # The stored bytes of a registry of others stay private: they would tell whether submitted bytes are known.
        totals = running_totals(session) if user.is_local or user.may(ADMIN) else None
    return {"has_jobs": jobs, "chimeras_count": count, "totals": totals, "is_own": user.is_local}
