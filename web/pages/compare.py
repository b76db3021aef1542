"""Two models side by side: how alike they are, by type, by block and by organ, and what else differs."""

from __future__ import annotations

from flask import request, url_for
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.models import model_by_name
from organs.registry.errors import BadName, BadQuery, NotFound
from organs.registry.lineage import Kinship
from organs.registry.names import parse_model_name
from organs.registry.present.comparison import PAGE_TENSORS_MAX, changes, comparison, registered_model
from organs.registry.present.models import placements_values
from organs.registry.present.values import Values
from organs.web.errors import status_of
from organs.web.links import with_parameters
from organs.web.pages.anatomy import anatomy
from organs.web.pages.blueprint import pages
from organs.web.pages.lineage import offered_names
from organs.web.responses import (
    Page,
    Sheet,
    paged,
    plain_page,
    reading,
    settings,
    wants_csv,
)

SIDES = ("first", "second")
COLUMNS = (
    *("name", "type", "tower", "block", "slot", "shape", "likeness", "identical", "first_theta", "second_theta"),
    *("first_digest", "second_digest"),
)
"""Of the compared organs as CSV."""
CHANGED_SHOWN = 20
NAMES_SHOWN = 100
BLOCKS_SHOWN = 200


@paged(pages, "/compare", csv=True)
def compare() -> Page:
    """The comparison of the models in `first` and `second`; without them the form to choose two."""
    names = [request.args.get(side, "").strip() for side in SIDES]
    if not all(names):
        half = any(names) and "Two models are compared: name both."
        if wants_csv(request.path) or (half and not plain_page()):
            raise BadQuery(SIDES[names.index("")], "two models are compared: name both")
        return Page("compare.html", {}, extra=lambda: _form(names, half or None))
    try:
        with reading(settings().search_seconds) as session:
            values, placements, changed = _compared(session, names)
    except (NotFound, BadName, BadQuery) as error:
        if not plain_page():
            raise
        problem = str(error).rstrip("?.") + "."
        return Page("compare.html", {}, extra=lambda: _form(names, problem), status=status_of(error))
    extra = {"csv": with_parameters(url_for("pages.compare_csv"), dict(zip(SIDES, names, strict=True)))}
    return Page(
        "compare.html",
        values,
        extra=lambda: _form(names) | _links(values, placements, changed) | extra,
        sheet=lambda: Sheet(COLUMNS, [[one[key] for key in COLUMNS] for one in values["changed"]]),
    )


def _compared(session: Session, names: list[str]) -> tuple[Values, list[Values], list[Values]]:
    """The comparison, the second model's organs at their places, and what became of each."""
    rows = [model_by_name(session, parse_model_name(name)) for name in names]
    first, second = (registered_model(session, row, PAGE_TENSORS_MAX) for row in rows)
    return comparison(first, second), placements_values(session, rows[1].id), changes(first, second)


def _form(names: list[str], problem: str | None = None) -> Values:
    return {"asked": names, "names": offered_names(), **({"problem": problem} if problem else {})}


def _links(values: Values, placements: list[Values], changed: list[Values]) -> Values:
    compared = not values["same_bytes"] and values["kinship"] != Kinship.INCOMPARABLE
    lists = ("only_first", "only_second", "shapes_differ")
    address = with_parameters(url_for("pages.compare"), {"first": values["second"], "second": values["first"]})
    return {
        "compared": compared,
        "swapped": address,
        "grid": anatomy(placements, "alike", _by_place(changed)) if compared and placements else None,
        "changed_shown": [one for one in values["changed"] if not one["identical"]][:CHANGED_SHOWN],
        "changed_count": sum(not one["identical"] for one in values["changed"]),
        "blocks_shown": values["blocks"][:BLOCKS_SHOWN],
        "cut": {name: values[name][:NAMES_SHOWN] for name in lists},
    }


def _by_place(changed: list[Values]) -> dict[tuple[str, int | None, str], Values]:
    return {(one["tower"], one["block"], one["slot"]): one for one in changed}
