"""Lineage: families of models, as graphs and as lists."""

from __future__ import annotations

from flask import request, url_for

from organs.registry.catalog.queries.models import model_by_name, visible_models
from organs.registry.errors import BadName, BadQuery, NotFound
from organs.registry.names import parse_model_name
from organs.registry.present.kinship import families, family_of
from organs.registry.present.values import Values
from organs.web.charts.kin import (
    BOX_HEIGHT,
    BOX_WIDTH,
    MEASURED,
    Branch,
    Family,
    Tie,
    branches,
    family_tree,
    kin_graph,
    walk,
)
from organs.web.errors import status_of
from organs.web.links import with_parameters
from organs.web.pages.blueprint import pages
from organs.web.params import asked_after
from organs.web.responses import (
    Page,
    Sheet,
    paged,
    plain_page,
    reading,
    settings,
)

COLUMNS = ("child", "parent", "relation", "evidence", "score")
"""Of the edges as CSV."""
FAMILIES_SHOWN = 6
PLACE_MAX = 1_000_000
NAMES_OFFERED = 200


@paged(pages, "/lineage", csv=True)
def lineage() -> Page:
    """All families, the largest first, `after` as many; or with `model` the family of that one."""
    asked = request.args.get("model", "")
    if asked:
        return _of_one(asked)
    first = _asked_place()
    with reading(settings().search_seconds) as session:
        found, count = families(session, first, FAMILIES_SHOWN)
    following = str(first + FAMILIES_SHOWN) if first + FAMILIES_SHOWN < count else None
    values = {"families": found, "count": count, "next": following}
    return Page(
        "lineage.html", values, extra=lambda: _links(values, "", first), sheet=lambda: _sheet(found), next=following
    )


def _of_one(asked: str) -> Page:
    problem, status = None, 200
    found: list[Values] = []
    try:
        with reading(settings().search_seconds) as session:
            found.append(family_of(session, model_by_name(session, parse_model_name(asked))))
    except (NotFound, BadName) as error:
        if not plain_page():
            raise
        problem, status = str(error).rstrip("?.") + ".", status_of(error)
    values: Values = {"families": found, "count": len(found), "next": None}
    extra = {"problem": problem} if problem else {}
    return Page(
        "lineage.html",
        values,
        extra=lambda: _links(values, asked, 0) | extra,
        sheet=lambda: _sheet(found),
        status=status,
    )


def _sheet(found: list[Values]) -> Sheet:
    """The edges within the families."""
    return Sheet(COLUMNS, [[edge[key] for key in COLUMNS] for family in found for edge in family["edges"]])


def _asked_place() -> int:
    """How many families stand before the first that is asked for; raises BadQuery."""
    text = asked_after() or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= 7 and int(text) <= PLACE_MAX):
        raise BadQuery("after", "a whole number, the `next` of the page before")
    return int(text)


def offered_names() -> list[str]:
    """The names of the newest models, to choose from."""
    with reading(settings().search_seconds) as session:
        return [model.full_name for model in visible_models(session, NAMES_OFFERED)]


def _links(values: Values, asked: str, first: int) -> Values:
    following = values["next"]
    return {
        "asked": asked,
        "csv": with_parameters(url_for("pages.lineage_csv"), request.args.to_dict()),
        "names": offered_names(),
        "box": {"width": BOX_WIDTH, "height": BOX_HEIGHT},
        "shown": [_shown(family) for family in values["families"]],
        "first": url_for("pages.lineage") if first else None,
        "following": url_for("pages.lineage", after=following) if following else None,
    }


def _shown(family: Values) -> Values:
    tree = family_tree(family)
    trees = branches(tree)
    return {
        "name": family["name"],
        "count": family["count"],
        "left_out": family["left_out"],
        "undrawn": tree.measured_undrawn,
        "graph": kin_graph(tree, trees) if len(tree.members) > 1 else None,
        "tree": [_listed(branch, tree, {one.tie for one, _ in walk(trees)}) for branch in trees],
    }


def _listed(branch: Branch, family: Family, listed: set[Tie | None]) -> Values:
    """A branch for the list: the member, in words how it hangs on the one above, other ties, and what is below."""
    others = [tie for tie in family.ties if tie.second == branch.member and tie not in listed]
    return {
        "member": family.members[branch.member],
        "words": "" if branch.tie is None else _words(branch.tie),
        "also": [f"{family.members[tie.first].name} ({_words(tie)})" for tie in others],
        "below": [_listed(one, family, listed) for one in branch.branches],
    }


def _words(tie: Tie) -> str:
    alike = "" if tie.score is None else f"alike {tie.score:.3f}"
    said = "" if tie.evidence == MEASURED else f"{tie.relation}, {tie.evidence}"
    return ", ".join(part for part in (said, alike) if part)
