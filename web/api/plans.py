"""Plans: what a recipe comes to, and whether two models fit, before anything is made."""

from __future__ import annotations

import json

from flask import request

from organs.registry.catalog.queries.composing import model_by_text
from organs.registry.catalog.queries.fitting import fitting_models
from organs.registry.compose.findings import (
    Finding,
    Severity,
)
from organs.registry.compose.recipe_io import (
    read_recipe,
    recipe_findings,
)
from organs.registry.errors import Ambiguous, BadDigest, BadName, BadRecipe, BadRequest, NotFound
from organs.registry.present.compatibility import compatibility_values
from organs.registry.present.composing import fitting_values
from organs.registry.present.plan import findings_values, plan_values
from organs.registry.present.values import Values
from organs.web.api.blueprint import ROOT
from organs.web.api.operation import operation
from organs.web.api.params import (
    BASE,
    DONOR,
    EVERY_PART,
    LIMIT,
    LOCK_TOO,
    asked_recipe,
)
from organs.web.params import (
    asked_limit,
    asked_switch,
)
from organs.web.permissions import planner
from organs.web.planning import cut_lists, pair_for_client, plan_for_client
from organs.web.responses import reading

GROUP = "Chimeras"
PLAN_SECONDS = 5.0
"""What a plan may take the database."""
RECIPE_EXAMPLE = json.dumps(
    {
        "base": "local/Zoo-A-2M-v1.0-F16",
        "grafts": [{"from": "local/Zoo-A-2M-Code-v1.0-F16", "type": "organ", "blocks": "1-3"}],
    }
)


@operation(
    "/plans",
    group=GROUP,
    summary="Plan a recipe",
    parameters=(EVERY_PART, LOCK_TOO),
    body="RecipeGiven",
    answer="PlannedRecipe",
    refusals=(429,),
    example=RECIPE_EXAMPLE,
)
def plan() -> Values:
    """What it comes to: findings, sizes, a prediction, and what becomes of every organ that changes. Nothing is made or
    written. A recipe that is refused is told so by its findings, with 200; without a base there is no plan. Its cost is
    estimated first: 413 for more than 2 s of processor time, or 10 s with an account. Lists have at most 2,000 rows.
    """
    every_part, with_lock = asked_switch("every_part"), asked_switch("lock")
    return planned_values(asked_recipe(), every_part=every_part, with_lock=with_lock)


def planned_values(inputs: Values, *, every_part: bool = False, with_lock: bool = False) -> Values:
    """Return the plan of the recipe in `recipe` or `recipe_text`, or None and the findings that keep it from one.

    Raises TooCostly, TooMany, TooSlow.
    """
    text = inputs["recipe_text"] if "recipe_text" in inputs else json.dumps(inputs["recipe"])
    try:
        recipe = read_recipe(text)
        with reading(PLAN_SECONDS) as session:
            found, _ = plan_for_client(session, recipe)
    except BadRecipe as error:
        return _without_plan(recipe_findings(error))
    except (NotFound, Ambiguous, BadName, BadDigest) as error:
        return _without_plan([Finding(Severity.REFUSE, "unknown-base", str(error), "base")])
    values = plan_values(found, every_part=every_part, contributor=planner())
    if with_lock:
        values["lock"] = found.lock().canonical() if found.can_be_made and not found.computations else None
    return cut_lists({"can_be_made": found.can_be_made, "findings": values.pop("findings"), "plan": values})


@operation(
    "/compatibility",
    group=GROUP,
    summary="Whether organs of one model fit into another",
    parameters=(BASE, DONOR),
    answer="Compatibility",
    refusals=(404, 409, 410, 429),
    example=f"{ROOT}/compatibility?base=local/Zoo-A-2M-v1.0-F16&donor=local/Zoo-B-2M-v1.0-Q8_0",
)
def compatibility() -> Values:
    """How much of each type fits, and all that speaks for and against it. What refuses one type says nothing against
    the others.
    """
    names = [_asked_name("base"), _asked_name("donor")]
    with reading(PLAN_SECONDS) as session:
        base, donor = pair_for_client(session, *names)
        return cut_lists(compatibility_values(base, donor))


@operation(
    "/fitting",
    group=GROUP,
    summary="Models that have organs which fit into one",
    parameters=(BASE, LIMIT),
    answer="Fitting",
    refusals=(404, 409, 410),
    example=f"{ROOT}/fitting?base=local/Zoo-A-2M-v1.0-F16&limit=2",
)
def fitting() -> Values:
    """Relatives first, the most alike before the others; then strangers, newest first, whose organs fit by shape
    alone. No more than 1,000 models are looked through, so that one page can hold all that is found.
    """
    name, limit = _asked_name("base"), asked_limit()
    with reading(PLAN_SECONDS) as session:
        base = model_by_text(session, name)
        return {"base": base.full_name, "next": None} | fitting_values(fitting_models(session, base.id, limit))


def _without_plan(findings: list[Finding]) -> Values:
    return cut_lists({"can_be_made": False, "findings": findings_values(findings, ()), "plan": None})


def _asked_name(parameter: str) -> str:
    name = request.args.get(parameter)
    if not name:
        raise BadRequest(parameter, f"{parameter} is missing: the name of a model, namespace/name.")
    return name
