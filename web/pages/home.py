"""The first page: what the registry holds, by family; the newest chimeras; a search and an introduction."""

from __future__ import annotations

from organs.registry.catalog.queries.chimeras import count_chimeras
from organs.registry.catalog.queries.jobs import has_jobs
from organs.registry.catalog.queries.reports import public_figures, running_totals
from organs.registry.compose.chimeras import chimera_page
from organs.registry.entities.chimera import ChimeraSummary
from organs.registry.entities.gain import Gain
from organs.registry.relatives.holdings import holdings
from organs.web.auth import identity
from organs.web.pages.routes import Context, Page, paged, pages
from organs.web.permissions import may_see_jobs, may_see_storage, whose_jobs
from organs.web.responses import reading, settings

CHIMERAS_SHOWN = 5


@paged(pages, "/", api="root")
def home() -> Page:
    """Show what the registry holds."""
    with reading(settings().search_seconds) as session:
        values: Context = {
            "figures": public_figures(session),
            "held": holdings(session),
            "chimeras": [(summary, _best_gain(summary)) for summary in chimera_page(session, CHIMERAS_SHOWN)],
        }
    return Page("home.html", values, extra=_page_context)


def _best_gain(chimera: ChimeraSummary) -> Gain | None:
    """Return the largest settled gain of a chimera."""
    settled = [gain for gain in chimera.gains if gain.settled]
    return max(settled, key=lambda gain: gain.percent, default=None)


def _page_context() -> Context:
    user = identity()
    with reading(settings().search_seconds) as session:
        jobs, count = may_see_jobs() and has_jobs(session, whose_jobs()), count_chimeras(session)
        totals = running_totals(session) if may_see_storage() else None
    return {"has_jobs": jobs, "chimeras_count": count, "totals": totals, "is_own": user.is_local}
