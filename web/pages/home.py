"""The first page: what the registry holds, by family; the newest chimeras; a search and an introduction."""

from __future__ import annotations

from organs.registry.catalog.queries.chimeras import count_chimeras
from organs.registry.catalog.queries.reports import public_figures, running_totals
from organs.registry.compose.chimeras import chimera_page
from organs.registry.relatives.holdings import holdings
from organs.web.auth import identity
from organs.web.pages.routes import Context, WebPage, paged
from organs.web.permissions import may_see_storage
from organs.web.responses import searching

CHIMERAS_SHOWN = 5


@paged("/", api="root")
def home() -> WebPage:
    """Show what the registry holds."""
    with searching() as session:
        chimeras = []
        for chimera in chimera_page(session, CHIMERAS_SHOWN, mixed=True):
            settled = [gain for gain in chimera.gains if gain.settled]
            chimeras.append((chimera, max(settled, key=lambda gain: gain.percent, default=None)))
        values: Context = {
            "figures": public_figures(session),
            "held": holdings(session),
            "chimeras": chimeras,
            "chimeras_count": count_chimeras(session),
            "totals": running_totals(session) if may_see_storage() else None,
            "is_own": identity().is_local,
        }
    return WebPage("home.html", values)
