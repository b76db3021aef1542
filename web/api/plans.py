"""Plans of recipes, and compatibility of models. Nothing is made or written."""

from __future__ import annotations

import json
from collections.abc import Mapping

from flask import request
from msgspec.structs import replace

from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.compose.compatibility import check_compatibility
from organs.registry.compose.plan import planned_recipe
from organs.registry.compose.recipe import read_recipe, recipe_findings
from organs.registry.compose.steps import PARAMETERS, TEXT_MAX_LENGTH, read_steps
from organs.registry.entities.base import Schema
from organs.registry.entities.finding import Finding, Severity, in_order
from organs.registry.entities.plan import Compatibility, CompositionState, FittingModels, PlannedRecipe, RecipeRequest
from organs.registry.errors import Ambiguous, BadDigest, BadName, BadRecipe, BadRequest, NotFound
from organs.registry.search.fitting import fitting_models
from organs.web.api.operation import (
    BASE,
    DONOR,
    EVERY_PART,
    LIMIT,
    LOCK_TOO,
    ROOT,
    Parameter,
    operation,
    requested_recipe,
)
from organs.web.params import requested_limit, requested_switch
from organs.web.permissions import planner
from organs.web.planning import (
    ORDERS,
    checked_order,
    compose_for_client,
    cut_pair,
    cut_plan,
    pair_for_client,
    plan_for_client,
)
from organs.web.responses import reading

GROUP = "Chimeras"
PLAN_SECONDS = 5.0
"""Time limit of the queries of one plan."""
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
    body=RecipeRequest,
    refusals=(429,),
    example=RECIPE_EXAMPLE,
)
def plan() -> PlannedRecipe:
    """Return findings, sizes, a screen, and every organ that a recipe changes. Nothing is made or written. The
    answer is 200 also for a refused recipe; its findings give the reasons. Without a known base there is no plan. The
    cost is estimated first: 413 for more than 2 s of processor time, or 10 s with an account. Lists have at most 2,000
    rows.
    """
    return planned_for_client(
        requested_recipe(), every_part=requested_switch("every_part"), with_lock=requested_switch("lock")
    )


def planned_for_client(
    inputs: Mapping[str, object], *, every_part: bool = False, with_lock: bool = False
) -> PlannedRecipe:
    """Return the plan of the recipe in `recipe` or `recipe_text`, or the findings that prevent one.

    Raises TooCostly, TooMany, TooSlow.
    """
    text = str(inputs["recipe_text"]) if "recipe_text" in inputs else json.dumps(inputs["recipe"])
    try:
        recipe = read_recipe(text)
        with reading(PLAN_SECONDS) as session:
            plan, _ = plan_for_client(session, recipe)
    except BadRecipe as error:
        return _without_plan(recipe_findings(error))
    except (NotFound, Ambiguous, BadName, BadDigest) as error:
        return _without_plan([Finding(Severity.REFUSE, "unknown-base", str(error), "base")])
    planned = planned_recipe(plan, every_part=every_part, contributor=planner())
    if with_lock and plan.can_be_made and not plan.computations:
        planned = replace(planned, lock=plan.lock().canonical())
    return cut_plan(planned)


def _steps(name: str, description: str, example: str) -> Parameter:
    schema: Schema = {"type": "array", "items": {"type": "string", "maxLength": TEXT_MAX_LENGTH}}
    return Parameter(name, f"{description} May be repeated.", schema, example, is_repeatable=True)


def _step(name: str, description: str, example: str) -> Parameter:
    return Parameter(name, description, {"type": "string", "maxLength": TEXT_MAX_LENGTH}, example)


STEPS = (
    BASE,
    _steps(
        "graft", "A graft: `from:acme/coder type:organ blocks:2-5`.", "from:local/Zoo-A-2M-Code-v1.0-F16 type:organ"
    ),
    _steps("adapter", "An adapter: `from:acme/lora scale:0.5`.", ""),
    _steps("purify", "A purification: `method:fractal type:organ`.", ""),
    _steps("accept", "The code of a warning to accept.", ""),
    _steps("meta", "Metadata: `general.name=Tiny`.", ""),
    _step("encode", "The dtype of computed organs whose own dtype cannot be written.", ""),
    _step("name", "The name under which the chimera would be registered.", ""),
    _step("cell", "A cell of the base whose candidates are returned: `organ:2`, `embed:none`.", "organ:2"),
    Parameter("order", "The order of the candidates.", {"type": "string", "enum": list(ORDERS)}, "-theta"),
)


@operation(
    "/composition",
    group=GROUP,
    summary="Plan steps, and list what can be chosen next",
    parameters=STEPS,
    refusals=(404, 409, 410, 413, 429),
    example=f"{ROOT}/composition?base=local/Zoo-A-2M-v1.0-F16&cell=organ:2",
)
def composition() -> CompositionState:
    """Return the plan of the steps in the address, and the choices for the next step: the cells of the base with θ, the
    models and adapters that fit, and the candidates for one cell.
    """
    _requested_name("base")
    steps = [(name, text) for name in PARAMETERS for text in request.args.getlist(name)]
    order = checked_order(request.args.get("order", ""))
    return compose_for_client(read_steps(steps), (), request.args.get("cell", ""), order).state


@operation(
    "/compatibility",
    group=GROUP,
    summary="Check whether two models fit",
    parameters=(BASE, DONOR),
    refusals=(404, 409, 410, 429),
    example=f"{ROOT}/compatibility?base=local/Zoo-A-2M-v1.0-F16&donor=local/Zoo-B-2M-v1.0-Q8_0",
)
def compatibility() -> Compatibility:
    """Return how many organs of each type of a donor fit into a base, with all findings. A type can be refused while
    the others fit.
    """
    names = [_requested_name("base"), _requested_name("donor")]
    with reading(PLAN_SECONDS) as session:
        base, donor = pair_for_client(session, *names)
        return cut_pair(check_compatibility(base, donor))


@operation(
    "/fitting",
    group=GROUP,
    summary="List models that fit a base",
    parameters=(BASE, LIMIT),
    refusals=(404, 409, 410),
    example=f"{ROOT}/fitting?base=local/Zoo-A-2M-v1.0-F16&limit=2",
)
def fitting() -> FittingModels:
    """Return related models first, the most similar first; then unrelated models, newest first, whose organs only have
    the right shapes. At most 1,000 models are checked, so that one page can hold all results.
    """
    name, limit = _requested_name("base"), requested_limit()
    with reading(PLAN_SECONDS) as session:
        return fitting_models(session, model_by_text(session, name), limit)


def _without_plan(findings: list[Finding]) -> PlannedRecipe:
    return cut_plan(PlannedRecipe(can_be_made=False, findings=in_order(findings), plan=None))


def _requested_name(parameter: str) -> str:
    name = request.args.get(parameter)
    if not name:
        raise BadRequest(parameter, f"{parameter} is missing: give the name of a model, namespace/name.")
    return name
