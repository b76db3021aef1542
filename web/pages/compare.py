"""Two models side by side: their likeness by type, block and organ, and their other differences."""

from __future__ import annotations

from collections.abc import Sequence

from flask import request, url_for
from sqlalchemy.orm import Session

from organs.registry.anatomy import Slot
from organs.registry.catalog.queries.model_names import models_by_name
from organs.registry.catalog.queries.organs import organs_of_model
from organs.registry.catalog.queries.relatives import RelatedPair, parents_of, related_pairs
from organs.registry.entities.comparison import COMPARED_COLUMNS, Comparison, OrganChange
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.errors import BadName, BadQuery, NotFound
from organs.registry.names import parse_model_name
from organs.registry.relatives.comparison import PAGE_TENSORS_MAX, compare_registered, organ_changes
from organs.web.error_pages import sentence_of, status_of
from organs.web.pages.anatomy import anatomy
from organs.web.pages.routes import Context, WebPage, paged, sheet_of
from organs.web.responses import plain_page, searching, wants_csv, with_parameters

SIDES = ("first", "second")
PAIRS_READ = 500
"""Related pairs that are read: the newest."""
PAIRS_SHOWN = 4
"""Pairs that are offered of each kind."""
PAIR_HEADINGS = (
    "A model and its quantisation",
    "A model and what was made from it",
    "Two models made from one base",
    "Models with similar weights",
)
QUANTIZED = "quantized"
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
            pairs = _offered_pairs(session)
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


def _offered_pairs(session: Session) -> list[Context]:
    """Return pairs of models to compare, by what they have in common, each with pairs of the smallest change first."""
    pairs = related_pairs(session, PAIRS_READ)
    ids = {model.id for pair in pairs for model in (pair.first, pair.second)}
    parents: dict[int, set[int]] = {model_id: set() for model_id in ids}
    for edge in parents_of(session, ids, ("declared", "recorded")):
        if edge.child_model_id is not None and edge.parent_model_id is not None:
            parents[edge.child_model_id].add(edge.parent_model_id)
    groups: dict[str, list[RelatedPair]] = {heading: [] for heading in PAIR_HEADINGS}
    for pair in pairs:
        first, second = pair.first, pair.second
        if pair.relation == QUANTIZED and (first.namespace, first.stem) == (second.namespace, second.stem):
            kind = 0
        elif first.id in parents[second.id] or second.id in parents[first.id]:
            kind = 1
        elif parents[first.id] & parents[second.id]:
            kind = 2
        else:
            kind = 3
        groups[PAIR_HEADINGS[kind]].append(pair)
    return [
        {"heading": heading, "pairs": [_shown_pair(pair) for pair in sorted(found, key=_distance)[:PAIRS_SHOWN]]}
        for heading, found in groups.items()
        if found
    ]


def _distance(pair: RelatedPair) -> tuple[float, float]:
    """Return a number that is smaller for more similar models; the likeness decides where the change is not known."""
    return (2.0 if pair.change is None else pair.change, -(pair.likeness or 0.0))


def _shown_pair(pair: RelatedPair) -> Context:
    return pair._asdict() | {"first": pair.first.full_name, "second": pair.second.full_name}


def _form(names: list[str], problem: str | None = None) -> Context:
    return {"requested": names, **({"problem": problem} if problem else {})}


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
