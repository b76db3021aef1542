"""Which models fit a base, by type, and the findings about one donor."""

from __future__ import annotations

from flask import request
from sqlalchemy.orm import Session

from organs.registry.catalog.queries.composing import model_by_text
from organs.registry.catalog.queries.fitting import fitting_models
from organs.registry.catalog.queries.model_search import search_models
from organs.registry.catalog.search import MODELS, parse_query
from organs.registry.catalog.tables import Model
from organs.registry.compose.selecting import TYPES
from organs.registry.errors import Ambiguous, BadDigest, BadName, NotFound
from organs.registry.present.compatibility import compatibility_values
from organs.registry.present.composing import fitting_values
from organs.registry.present.values import Values
from organs.web.answers import Page, paged, plain_page, reading, settings
from organs.web.errors import status_of
from organs.web.pages.blueprint import pages
from organs.web.pages.composing import compose_address, twin
from organs.web.pages.lineage import offered_names
from organs.web.planning import cut_lists, pair_for_client

FITTING_MAX, OTHERS_MAX = 50, 20
ENDPOINT = "pages.compose_fits"


@paged(pages, "/compose/fits")
def compose_fits() -> Page:
    """The models that fit the model `base`, wholly or in part; with `donor` the findings for and against that one."""
    base, donor = (request.args.get(name, "").strip() for name in ("base", "donor"))
    values: Values = {"base": None, "models": None, "others": [], "donor": None}
    problem, status = None, 200
    if base:
        try:
            with reading(settings().search_seconds) as session:
                values = _found(session, base, donor)
        except (NotFound, BadName, BadDigest, Ambiguous) as error:
            if not plain_page():
                raise
            problem, status = str(error).rstrip("?.") + ".", status_of(error)
    return Page("compose_fits.html", values, extra=lambda: _links(values, base, donor, problem), status=status)


def _found(session: Session, base: str, donor: str) -> Values:
    row = model_by_text(session, base)
    found = fitting_models(session, row.id, FITTING_MAX)
    compatibility = None
    if donor:
        compatibility = cut_lists(compatibility_values(*pair_for_client(session, base, donor)))
    fitting = {one.name for one in found.items}
    newest = search_models(session, parse_query("kind:model", MODELS), FITTING_MAX).items
    others = [one for one in newest if one.id != row.id and one.full_name not in fitting]
    return {
        "base": row.full_name,
        "architecture": row.architecture,
        "models": fitting_values(found),
        "others": [{"model": one.full_name, "why": _reason(row, one)} for one in others[:OTHERS_MAX]],
        "donor": compatibility
        and {"model": compatibility["donor"], "types": compatibility["types"], "findings": compatibility["findings"]},
    }


def _reason(base: Model, other: Model) -> str:
    """Why nothing of `other` fits, as far as the catalog tells without their headers."""
    if base.architecture is None or base.architecture != other.architecture:
        return f"another architecture: {other.architecture or 'none is stated'}"
    return "no organ of its shape has a place there"


def _links(values: Values, base: str, donor: str, problem: str | None) -> Values:
    models = values["models"]["items"] if values["models"] else []
    told = values["donor"] or {"findings": [], "types": []}
    by_type = [finding for one in told["types"] for finding in one["findings"]]
    return {
        "as_wholes": [one for one in told["findings"] if one not in by_type],
        "asked": [base, donor],
        "problem": problem,
        "names": offered_names(),
        "types_shown": [kind for kind in TYPES if any(kind in one["types"] for one in models)],
        "why": {
            name: compose_address([("base", base), ("donor", name)], ENDPOINT)
            for name in [one["model"] for one in [*models, *values["others"]]]
        },
        "compose": compose_address([("base", base)]) if values["base"] else None,
        "twin": twin("pages.compose_fits_json"),
    }
