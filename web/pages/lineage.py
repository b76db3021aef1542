"""Lineage: families of models as trees and as lists."""

from __future__ import annotations

from flask import request, url_for

from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.endpoints import models as endpoints
from organs.registry.entities.lineage import FAMILIES_DEFAULT, FAMILY_EDGE_COLUMNS, Family, FamilyPage
from organs.registry.errors import BadName, NotFound
from organs.registry.names import parse_model_name
from organs.registry.relatives.families import families, family_of
from organs.web.charts.families import (
    BOX_HEIGHT,
    BOX_WIDTH,
    CHIP_WIDTH,
    Tree,
    draw,
    family_tree,
)
from organs.web.error_pages import sentence_of, status_of
from organs.web.pages.routes import Context, WebPage, paged, sheet_of
from organs.web.params import requested
from organs.web.render import SHARE_STEPS
from organs.web.responses import plain_page, searching, with_parameters


@paged("/lineage", csv=True, api="model_families")
def lineage() -> WebPage:
    """Show all families, the largest first. With `model`, show the family of that model."""
    name, marked = request.args.get("model", ""), ""
    first = 0 if name else requested(endpoints.model_families, "after")["after"]
    try:
        with searching() as session:
            if name:
                model = model_by_name(session, parse_model_name(name))
                family, marked = family_of(session, model), model.full_name
                page = FamilyPage(items=(family,), next=None, count=1)
            else:
                page = families(session, first, FAMILIES_DEFAULT)
    except (NotFound, BadName) as error:
        if not plain_page():
            raise
        context = _context(FamilyPage(items=(), next=None, count=0), name, 0) | {"problem": sentence_of(error)}
        return WebPage("lineage.html", context, status=status_of(error))
    return WebPage(
        "lineage.html",
        lambda: _context(page, name, first) | {"marked": marked},
        sheet=lambda: sheet_of(FAMILY_EDGE_COLUMNS, [edge for family in page for edge in family.edges]),
        next=page.next,
    )


def _context(page: FamilyPage, name: str, first: int) -> Context:
    return {
        "requested": name,
        "csv": with_parameters(url_for("pages.lineage_csv"), request.args.to_dict()),
        "box": {"width": BOX_WIDTH, "height": BOX_HEIGHT, "chip": CHIP_WIDTH},
        "steps": SHARE_STEPS,
        "shown": [_shown_family(family) for family in page],
        "first": url_for("pages.lineage") if first else None,
        "following": url_for("pages.lineage", after=page.next) if page.next else None,
    }


def _shown_family(family: Family) -> Context:
    """Return a family as a drawing and as a list."""
    tree = family_tree(family)
    return {
        "name": tree.title,
        "count": family.count,
        "left_out": family.left_out,
        "undrawn": tree.undrawn,
        "drawing": draw(tree) if family.count > 1 or len(tree.nodes) > 1 else None,
        "tree": [_listed(place, tree) for place in tree.roots],
    }


def _listed(place: int, tree: Tree) -> Context:
    """Return a node of the list: with the words of its link to the node above, its other parents, and those below."""
    return {
        "node": tree.nodes[place],
        "words": tree.above[place].words if place in tree.above else "",
        "also": [f"{tree.nodes[link.parent].name} ({link.words})" for link in tree.others if link.child == place],
        "below": [_listed(child, tree) for child in tree.below(place)],
    }
