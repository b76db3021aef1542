"""Two models side by side: their likeness by type, block and organ, and their other differences."""

from __future__ import annotations

from collections.abc import Sequence

from flask import request, url_for

from organs.registry.anatomy import Slot
from organs.registry.catalog.queries.model_names import models_by_name
from organs.registry.catalog.queries.organs import organs_of_model
from organs.registry.catalog.queries.relatives import related_pairs
from organs.registry.entities.comparison import COMPARED_COLUMNS, Comparison, OrganChange
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.errors import BadName, BadQuery, NotFound
from organs.registry.names import parse_model_name
from organs.registry.relatives.comparison import PAGE_TENSORS_MAX, compare_registered, organ_changes
from organs.web.error_pages import sentence_of, status_of
from organs.web.pages.anatomy import anatomy
from organs.web.pages.lineage import offered_names
from organs.web.pages.routes import Context, WebPage, paged, sheet_of
from organs.web.responses import plain_page, searching, wants_csv, with_parameters

SIDES = ("first", "second")
PAIRS_SHOWN = 12
CHANGED_SHOWN = 20
STACKS_SHOWN = 20
EXPERTS_SHOWN = 12
"""Experts of one stack that the page lists."""
NAMES_SHOWN = 100
BLOCKS_SHOWN = 200


@paged("/compare", csv=True, api="compare")
def compare() -> WebPage:
    """Show the comparison of the models `first` and `second`, or a form to choose them."""
    names = [request.args.get(side, "").strip() for side in SIDES]
    if not all(names):
        if wants_csv(request.path):
            raise BadQuery(SIDES[names.index("")], "enter two models to compare")
        with searching() as session:
            pairs = [
                pair._asdict() | {"first": pair.first.full_name, "second": pair.second.full_name}
                for pair in related_pairs(session, PAIRS_SHOWN)
            ]
        problem = "Enter two models to compare." if any(names) else None
        return WebPage("compare.html", _form(names, problem) | {"pairs": pairs})
    try:
        with searching() as session:
            own, other = models_by_name(session, map(parse_model_name, names))
            result, first, second = compare_registered(session, own, other, PAGE_TENSORS_MAX)
            organs, changes = organs_of_model(session, other), organ_changes(first, second)
    except (NotFound, BadName, BadQuery) as error:
        if not plain_page():
            raise
        return WebPage("compare.html", _form(names, sentence_of(error)), status=status_of(error))
    return WebPage(
        "compare.html",
        lambda: _form(names) | _comparison(result, organs, changes),
        sheet=lambda: sheet_of(COMPARED_COLUMNS, result.changed),
    )


def _form(names: list[str], problem: str | None = None) -> Context:
    return {"requested": names, "names": offered_names(), **({"problem": problem} if problem else {})}


def _comparison(result: Comparison, organs: Sequence[PlacedOrgan], changes: dict[Slot, OrganChange]) -> Context:
    swapped = {"first": result.second, "second": result.first}
    lists = ("only_first", "only_second", "shapes_differ")
    return {
        "result": result,
        "swapped": with_parameters(url_for("pages.compare"), swapped),
        "grid": anatomy(organs, "change", changes) if result.is_comparable and organs else None,
        "changed_shown": result.unequal[:CHANGED_SHOWN],
        "changed_count": len(result.unequal),
        "stacks_shown": result.stacks[:STACKS_SHOWN],
        "experts_shown": EXPERTS_SHOWN,
        "blocks_shown": result.blocks[:BLOCKS_SHOWN],
        "cut": {name: getattr(result, name)[:NAMES_SHOWN] for name in lists},
        "csv": with_parameters(url_for("pages.compare_csv"), {"first": result.first, "second": result.second}),
    }
