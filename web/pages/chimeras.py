"""The list of chimeras as a gallery: each with a small picture, its parents, its verdict and its gains."""

from __future__ import annotations

from flask import request, url_for

from organs.registry.amounts import gain_text
from organs.registry.catalog.queries.chimeras import GAINED, NEWEST
from organs.registry.compose.chimeras import chimera_page
from organs.registry.entities.chimera import ChimeraPage
from organs.web.charts.strips import donor_lines, strip
from organs.web.pages.routes import Context, Sheet, WebPage, list_links, paged, pages, sheet_of
from organs.web.params import requested_after, requested_choice, requested_limit
from organs.web.responses import plain_page, searching, with_parameters

COLUMNS = ("name", "parents", "lock_id", "verdict", "size_bytes", "mean_theta", "created_at")
"""Columns of the list as CSV, before the gains."""
ORDERS = {GAINED: "largest gain", NEWEST: "newest"}
CARDS = 24
GAINS_SHOWN = 5


@paged(pages, "/chimeras", csv=True, api="chimeras")
def chimeras() -> WebPage:
    """Show the models that were composed here, by gain or by age; `after` and `limit` page through them."""
    orders = tuple(ORDERS) if plain_page() else (NEWEST, GAINED)
    order, limit, after = requested_choice("order", orders), requested_limit(CARDS), requested_after()
    with searching() as session:
        page = chimera_page(session, limit, after, order=order)
    return WebPage(
        "chimeras.html",
        {"chimeras": page.items},
        extra=lambda: _context(page, order),
        sheet=lambda: _sheet(page),
        next=page.next,
    )


def _context(page: ChimeraPage, order: str) -> Context:
    path, limit = url_for("pages.chimeras"), request.args.get("limit", "")
    cards = []
    for chimera in page:
        gains = sorted(chimera.gains, key=lambda gain: not gain.settled)
        shown = sorted(gains[:GAINS_SHOWN], key=lambda gain: -gain.percent)
        donors = donor_lines(chimera)
        spoken = "; ".join(f"{line.words} from {line.model}" for line in donors) or "no other parts"
        card = {"chimera": chimera, "strip": strip(chimera), "words": spoken, "donors": donors}
        cards.append(card | {"gains": shown, "gains_left_out": max(0, len(gains) - GAINS_SHOWN)})
    return {
        "cards": cards,
        "orders": [
            {"label": label, "chosen": name == order, "address": with_parameters(path, {"order": name}, limit=limit)}
            for name, label in ORDERS.items()
        ],
        "csv": with_parameters(url_for("pages.chimeras_csv"), {"order": order}, limit="1000"),
        "twin": with_parameters(url_for("pages.chimeras_json"), {"order": order}, limit=limit),
        **list_links(page.next, "order"),
    }


def _sheet(page: ChimeraPage) -> Sheet:
    gains = [
        "; ".join(f"{gain_text(gain.percent, gain.margin)} {gain.text}" for gain in chimera.gains) for chimera in page
    ]
    rows = sheet_of(COLUMNS, page).rows
    return Sheet((*COLUMNS, "gains"), [[*row, text] for row, text in zip(rows, gains, strict=True)])
