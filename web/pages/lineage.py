"""Lineage: families of models as trees and as lists."""

from __future__ import annotations

from dataclasses import dataclass

from flask import request, url_for

from organs.registry.catalog.queries.model_lists import visible_models
from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.entities.lineage import Family, FamilyPage
from organs.registry.errors import BadName, NotFound
from organs.registry.names import parse_model_name
from organs.registry.relatives.families import FAMILIES_DEFAULT, families, family_of
from organs.web.charts.families import (
    BOX_HEIGHT,
    BOX_WIDTH,
    CHIP_WIDTH,
    Drawing,
    Link,
    Node,
    Tree,
    draw,
    family_tree,
)
from organs.web.error_pages import status_of
from organs.web.pages.routes import Context, Page, Sheet, paged, pages
from organs.web.params import requested_place
from organs.web.render import SHARE_STEPS
from organs.web.responses import plain_page, reading, settings, with_parameters

COLUMNS = ("child", "parent", "relation", "evidence", "likeness", "change")
"""Columns of the edges in a CSV file."""
NAMES_OFFERED = 200


@dataclass(frozen=True, slots=True)
class ListedNode:
    """A node in the list of a family, with the words of its link to the node above, and the nodes below."""

    node: Node
    words: str
    also: list[str]
    """The donors and other parents, each with the words of the link."""
    below: list[ListedNode]


@dataclass(frozen=True, slots=True)
class ShownFamily:
    """A family for the template, as a drawing and as a list."""

    name: str
    count: int
    left_out: int
    undrawn: int
    drawing: Drawing | None
    tree: list[ListedNode]


@paged(pages, "/lineage", csv=True, api="model_families")
def lineage() -> Page:
    """Show all families, the largest first. With `model`, show the family of that model."""
    name = request.args.get("model", "")
    if name:
        return _family_page(name)
    first = requested_place()
    with reading(settings().search_seconds) as session:
        page = families(session, first, FAMILIES_DEFAULT)
    return Page("lineage.html", _values(page, "", first), sheet=lambda: _sheet(page), next=page.next)


def _family_page(name: str) -> Page:
    try:
        with reading(settings().search_seconds) as session:
            family = family_of(session, model_by_name(session, parse_model_name(name)))
    except (NotFound, BadName) as error:
        if not plain_page():
            raise
        values = _values(FamilyPage(items=(), next=None, count=0), name, 0) | {"problem": str(error).rstrip("?.") + "."}
        return Page("lineage.html", values, status=status_of(error))
    page = FamilyPage(items=(family,), next=None, count=1)
    return Page("lineage.html", _values(page, name, 0), sheet=lambda: _sheet(page))


def _sheet(page: FamilyPage) -> Sheet:
    """Return the edges within the families."""
    rows = [
        (edge.child, edge.parent, edge.relation, edge.evidence, edge.likeness, edge.change)
        for family in page
        for edge in family.edges
    ]
    return Sheet(COLUMNS, rows)


def offered_names() -> list[str]:
    """Return the names of the newest models, as suggestions of a form."""
    with reading(settings().search_seconds) as session:
        return [model.full_name for model in visible_models(session, NAMES_OFFERED)]


def _values(page: FamilyPage, name: str, first: int) -> Context:
    return {
        "requested": name,
        "csv": with_parameters(url_for("pages.lineage_csv"), request.args.to_dict()),
        "names": offered_names(),
        "box": {"width": BOX_WIDTH, "height": BOX_HEIGHT, "chip": CHIP_WIDTH},
        "steps": SHARE_STEPS,
        "shown": [_shown_family(family) for family in page],
        "first": url_for("pages.lineage") if first else None,
        "following": url_for("pages.lineage", after=page.next) if page.next else None,
    }


def _shown_family(family: Family) -> ShownFamily:
    tree = family_tree(family)
    others: dict[int, list[Link]] = {}
    for link in tree.others:
        others.setdefault(link.child, []).append(link)
    return ShownFamily(
        name=tree.title,
        count=family.count,
        left_out=family.left_out,
        undrawn=tree.undrawn,
        drawing=draw(tree) if family.count > 1 or len(tree.nodes) > 1 else None,
        tree=[_listed(place, tree, others) for place in tree.roots],
    )


def _listed(place: int, tree: Tree, others: dict[int, list[Link]]) -> ListedNode:
    above = tree.above.get(place)
    return ListedNode(
        node=tree.nodes[place],
        words="" if above is None else above.words,
        also=[f"{tree.nodes[link.parent].name} ({link.words})" for link in others.get(place, ())],
        below=[_listed(child, tree, others) for child in tree.below(place)],
    )
