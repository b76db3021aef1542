"""The leaderboard: validated chimeras by their gains."""

from __future__ import annotations

from collections.abc import Sequence

from flask import request, url_for

from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.vocabulary import TEXT_GROUPS
from organs.registry.compose.chimeras import leaderboard as leaderboard_page
from organs.registry.entities.gain import Leaderboard, MeasuredGraft
from organs.registry.errors import Ambiguous, BadDigest, BadName, BadQuery, NotFound
from organs.registry.search.language import on_term
from organs.registry.validation.texts import KINDS
from organs.web.error_pages import status_of
from organs.web.pages.compose import recipe_address
from organs.web.pages.lineage import offered_names
from organs.web.pages.organs import gain_cells
from organs.web.pages.routes import Context, Page, Sheet, paged, pages
from organs.web.params import (
    requested_after,
    requested_gains,
    requested_limit,
)
from organs.web.responses import plain_page, reading, settings, with_parameters

LEADERBOARD_COLUMNS = (
    *("chimera", "lock_id", "base", "donors", "grafted", "likeness", "change", "verdict"),
    *("gain", "gain_margin", "gain_on", "loss", "loss_margin", "loss_on"),
)
"""Columns of the leaderboard as CSV."""


@paged(pages, "/leaderboard", csv=True, api="leaderboard")
def leaderboard() -> Page:
    """Show the validated chimeras of the base in `base`, or of all, by their largest gain on the texts in `on`."""
    base, on = requested_gains()
    limit, after = requested_limit(), requested_after()
    try:
        with reading(settings().search_seconds) as session:
            row = None if base is None else model_by_text(session, base)
            page = leaderboard_page(session, row, on, limit, after)
            name = None if row is None else row.full_name
    except (NotFound, BadName, BadDigest, Ambiguous, BadQuery) as error:
        if not plain_page():
            raise
        problem, status = str(error).rstrip("?.") + ".", status_of(error)
        return Page("leaderboard.html", {"items": []}, extra=lambda: _board_context((), None, problem), status=status)
    return Page(
        "leaderboard.html",
        {"items": page.items, "notes": page.notes},
        extra=lambda: _board_context(page.items, name, None, page.next),
        sheet=lambda: _board_sheet(page),
        next=page.next,
    )


def _board_context(
    grafts: Sequence[MeasuredGraft], base: str | None, problem: str | None, following: str | None = None
) -> Context:
    requested = {name: request.args.get(name, "").strip() for name in ("base", "on", "limit")}
    path, chosen = url_for("pages.leaderboard"), {name: text for name, text in requested.items() if text}
    on = [] if problem or not requested["on"] else [str(on_term(requested["on"]))]
    search_text = " ".join(["type:organ", *([f"fits:{base}"] if base else []), *on, "sort:-gain"])
    return {
        "base": base,
        "problem": problem,
        "requested": (requested["base"], requested["on"]),
        "names": offered_names(),
        "texts": [*TEXT_GROUPS, *KINDS],
        "recipes": {graft.lock_id: recipe_address(graft.recipe) for graft in grafts},
        "following": following and with_parameters(path, chosen | {"after": following}),
        "first": with_parameters(path, chosen) if request.args.get("after") else None,
        "search": url_for("pages.organs", q=search_text),
        "search_text": search_text,
        "compose": url_for("pages.compose", base=base),
        "csv": with_parameters(url_for("pages.leaderboard_csv"), chosen | {"limit": "1000"}),
    }


def _board_sheet(page: Leaderboard) -> Sheet:
    rows = [
        [
            *(graft.chimera, graft.lock_id, graft.base, " ".join(graft.donors), graft.grafted),
            *(graft.likeness, graft.change, graft.verdict, *gain_cells(graft.best), *gain_cells(graft.worst)),
        ]
        for graft in page
    ]
    return Sheet(LEADERBOARD_COLUMNS, rows)
