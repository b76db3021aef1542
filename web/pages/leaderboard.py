"""The leaderboard: validated chimeras by their gains."""

from __future__ import annotations

from flask import request, url_for

from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.catalog.vocabulary import TEXT_GROUPS
from organs.registry.compose.chimeras import leaderboard as leaderboard_page
from organs.registry.endpoints import chimeras as endpoints
from organs.registry.entities.gain import COLUMNS, Leaderboard
from organs.registry.errors import BadQuery
from organs.registry.search.language import on_term
from organs.registry.validation.texts import KINDS
from organs.web.error_pages import sentence_of, status_of
from organs.web.pages.routes import UNKNOWN_MODEL, Context, WebPage, list_links, paged, sheet_of
from organs.web.pages.steps import recipe_address
from organs.web.params import requested
from organs.web.responses import plain_page, searching, with_parameters


@paged("/leaderboard", csv=True, api="leaderboard")
def leaderboard() -> WebPage:
    """Show the validated chimeras of the base in `base`, or of all, by their largest gain on the texts in `on`."""
    values = requested(endpoints.leaderboard)
    base, on = values["base"], values["on"]
    try:
        with searching() as session:
            row = None if base is None else model_by_text(session, base)
            page = leaderboard_page(session, row, on, values["limit"], values["after"])
            name = None if row is None else row.full_name
    except (*UNKNOWN_MODEL, BadQuery) as error:
        if not plain_page():
            raise
        nothing, problem, status = Leaderboard(items=(), next=None), sentence_of(error), status_of(error)
        return WebPage("leaderboard.html", _context(nothing, problem=problem), status=status)
    return WebPage(
        "leaderboard.html", lambda: _context(page, name, on), sheet=lambda: sheet_of(COLUMNS, page), next=page.next
    )


def _context(page: Leaderboard, base: str | None = None, on: str | None = None, problem: str | None = None) -> Context:
    typed = {name: request.args.get(name, "").strip() for name in ("base", "on", "limit")}
    terms = ["type:organ", f"fits:{base}" if base else "", str(on_term(on)) if on else "", "sort:-gain"]
    search_text = " ".join(filter(None, terms))
    return {
        "items": page.items,
        "notes": page.notes,
        "base": base,
        "problem": problem,
        "requested": (typed["base"], typed["on"]),
        "texts": [*TEXT_GROUPS, *KINDS],
        "recipes": {graft.lock_id: recipe_address(graft.recipe) for graft in page},
        "search": url_for("pages.organs", q=search_text),
        "search_text": search_text,
        "compose": url_for("pages.compose", base=base),
        "csv": with_parameters(url_for("pages.leaderboard_csv"), typed, limit="1000"),
        **list_links(page.next, "base", "on"),
    }
