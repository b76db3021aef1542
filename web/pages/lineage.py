"""Lineage: families of models as graphs and as lists."""

from __future__ import annotations

from dataclasses import dataclass

from flask import request, url_for

from organs.registry.catalog.queries.models import model_by_name, visible_models
from organs.registry.entities.lineage import Family, FamilyPage
from organs.registry.errors import BadName, NotFound
from organs.registry.names import parse_model_name
from organs.registry.relatives.families import FAMILIES_DEFAULT, families, family_of
from organs.web.charts.families import (
    BOX_HEIGHT,
    BOX_WIDTH,
    MEASURED,
    Branch,
    FamilyTree,
    KinGraph,
    Member,
    Tie,
    branches,
    family_tree,
    kin_graph,
    walk,
)
from organs.web.error_pages import status_of
from organs.web.pages.routes import Context, Page, Sheet, paged, pages
from organs.web.params import requested_place
from organs.web.responses import plain_page, reading, settings, with_parameters

COLUMNS = ("child", "parent", "relation", "evidence", "likeness")
"""Columns of the edges in a CSV file."""
NAMES_OFFERED = 200


@dataclass(frozen=True, slots=True)
class ListedBranch:
    """A member in the list of a family, with the words of its tie to the member above, and the members below."""

    member: Member
    words: str
    also: list[str]
    """The other parents, each with the words of the tie."""
    below: list[ListedBranch]


@dataclass(frozen=True, slots=True)
class ShownFamily:
    """A family for the template, as a graph and as a list."""

    name: str
    count: int
    left_out: int
    undrawn: int
    graph: KinGraph | None
    tree: list[ListedBranch]


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
        (edge.child, edge.parent, edge.relation, edge.evidence, edge.likeness)
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
        "box": {"width": BOX_WIDTH, "height": BOX_HEIGHT},
        "shown": [_shown_family(family) for family in page],
        "first": url_for("pages.lineage") if first else None,
        "following": url_for("pages.lineage", after=page.next) if page.next else None,
    }


def _shown_family(family: Family) -> ShownFamily:
    tree = family_tree(family)
    trees = branches(tree)
    listed_ties = {branch.tie for branch, _ in walk(trees)}
    return ShownFamily(
        name=family.name,
        count=family.count,
        left_out=family.left_out,
        undrawn=tree.measured_undrawn,
        graph=kin_graph(tree, trees) if len(tree.members) > 1 else None,
        tree=[_listed_branch(branch, tree, listed_ties) for branch in trees],
    )


def _listed_branch(branch: Branch, family: FamilyTree, listed_ties: set[Tie | None]) -> ListedBranch:
    others = [tie for tie in family.ties if tie.second == branch.member and tie not in listed_ties]
    return ListedBranch(
        member=family.members[branch.member],
        words="" if branch.tie is None else _tie_words(branch.tie),
        also=[f"{family.members[tie.first].name} ({_tie_words(tie)})" for tie in others],
        below=[_listed_branch(child, family, listed_ties) for child in branch.branches],
    )


def _tie_words(tie: Tie) -> str:
    likeness = "" if tie.likeness is None else f"likeness {tie.likeness:.3f}"
    descent = "" if tie.evidence == MEASURED else f"{tie.relation}, {tie.evidence}"
    return ", ".join(part for part in (descent, likeness) if part)
