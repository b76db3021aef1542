"""Plans of recipes, and compatibility of models, with limits on their cost. Nothing is made or written.

Costs are estimates of processor time in microseconds: see `registry.compose.cost`. A recipe above the limit of one plan
is refused with 413 before anything is read. The cost of all requests in a minute is counted by contributor, or by
address for a client without an account. Requests above that limit are refused with 429.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from flask import g
from msgspec.structs import replace
from sqlalchemy.orm import Session

from organs.ingest.jobs.kinds import PLAN_COST_MAX
from organs.registry.catalog.queries.model_names import model_by_text
from organs.registry.compose.assignment import Cell
from organs.registry.compose.candidates import adapters_for, candidates_for, cells_of, types_of
from organs.registry.compose.compatibility import check_compatibility
from organs.registry.compose.cost import Budget, check_pair, check_recipe
from organs.registry.compose.parents import Parent, RegisteredLibrary
from organs.registry.compose.plan import Plan, planned_recipe
from organs.registry.compose.planner import plan_recipe
from organs.registry.compose.recipe import Recipe, read_recipe, recipe_file, recipe_findings, recipe_yaml
from organs.registry.compose.steps import PARAMETERS, read_steps
from organs.registry.endpoints import chimeras as endpoints
from organs.registry.endpoints.declaration import Values
from organs.registry.entities.finding import Finding, Findings, Severity, in_order
from organs.registry.entities.plan import Compatibility, CompositionState, FittingModels, PlannedRecipe
from organs.registry.errors import (
    Ambiguous,
    BadDigest,
    BadName,
    BadQuery,
    BadRecipe,
    BadRequest,
    NotFound,
    TooMany,
    TooSlow,
)
from organs.registry.search.fitting import fitting_models
from organs.web.api.operation import serves
from organs.web.auth import identity
from organs.web.client_address import client_address
from organs.web.permissions import planner
from organs.web.rate_limits import Rate, rates
from organs.web.responses import reading, registry, searching

ANONYMOUS_COST_MAX = 2_000_000
"""Maximum cost of one plan, or of one comparison of two models, without an account. With an account it is
PLAN_COST_MAX."""
ANONYMOUS_PLANNING = Rate("anonymous-planning", 20_000)
"""Milliseconds of estimated processor time in a minute, by address."""
PLANNING = Rate("planning", 60_000)
"""Milliseconds of estimated processor time in a minute, by contributor."""
ROWS_MAX = 2_000
"""Maximum length of each list in the answer to a recipe. The largest published models have about 1,100 tensors."""
NAMES_MAX = 200
"""Maximum number of tensor names in one finding."""
FITTING_SHOWN = 12
"""Maximum number of models that are shown as fitting the base of an unfinished recipe."""
BLOCK_DIGITS = 9
YAML = "yaml"
"""The member of a body that holds the whole recipe as text."""

P = TypeVar("P", bound=PlannedRecipe)
T = TypeVar("T")


def plan_for_client(session: Session, recipe: Recipe) -> tuple[Plan, RegisteredLibrary]:
    """Return the plan of `recipe`, and the library that the plan was made with.

    Raises TooCostly, TooMany, and what `plan_recipe` raises.
    """
    budget = _budget()
    estimate = check_recipe(session, recipe, budget)
    _charge(estimate)
    library = RegisteredLibrary(session, registry().blobs, budget)
    try:
        return plan_recipe(recipe, library, budget), library
    finally:
        with suppress(TooMany):  # the plan is made already; its further cost counts for the next request
            _charge(budget.spent - estimate)


def pair_for_client(session: Session, base: str, donor: str) -> tuple[Parent, Parent]:
    """Return two models for a comparison by type.

    Raises TooCostly, TooMany, and the errors of `RegisteredLibrary.parent` for their names.
    """
    budget = _budget()
    _charge(check_pair(session, base, donor, budget))
    library = RegisteredLibrary(session, registry().blobs)
    return library.parent(base), library.parent(donor)


@dataclass(frozen=True, slots=True)
class UnderWay:
    """An unfinished recipe, its plan, and the state that is shown to the user."""

    recipe: Recipe
    plan: Plan
    state: CompositionState


def compose_for_client(recipe: Recipe, unread: Sequence[Finding], cell: str, order: str) -> UnderWay:
    """Return the plan of `recipe` and the possible next choices, with the candidates of `cell` unless it is empty.

    `unread` has a finding for each step that could not be read. If there are any, no plan is shown. Raises NotFound,
    BadName and the other errors of a name for the base, BadQuery for a cell, TooCostly, TooMany, TooSlow, StoreError.
    """
    with searching() as session:
        plan, library = plan_for_client(session, recipe)
        adapters = adapters_for(session, plan.base, library)
    planned, chosen = planned_recipe(plan, contributor=planner()), parsed_cell(cell) if cell else None
    state = CompositionState(
        can_be_made=planned.can_be_made and not unread,
        findings=in_order(unread) if unread else planned.findings,
        unaccepted=planned.unaccepted,
        plan=None if unread else planned.plan,
        base=plan.base.label,
        recipe=None if unread else recipe_file(recipe),
        yaml=None if unread else recipe_yaml(recipe),
        cells=cells_of(plan.parts),
        types=types_of(plan.parts),
        adapters=adapters,
        fitting=_unless_too_slow(
            lambda session: fitting_models(session, model_by_text(session, plan.base.label), FITTING_SHOWN)
        ),
        candidates=None
        if chosen is None
        else _unless_too_slow(lambda session: candidates_for(session, plan, chosen, order)),
    )
    return UnderWay(recipe, plan, cut_plan(state))


def parsed_cell(text: str) -> Cell:
    """Return the cell that `text` names, such as `organ:2`, `embed:none` or `norm:3:vision`. Raises BadQuery."""
    kind, _, rest = text.partition(":")
    block, _, tower = rest.partition(":")
    is_number = block.isascii() and block.isdigit() and len(block) <= BLOCK_DIGITS
    if not kind or not (is_number or block == "none"):
        raise BadQuery("cell", "a type and a block of the base, such as organ:2")
    return Cell(kind, int(block) if is_number else None, tower or "text")


def _unless_too_slow(query: Callable[[Session], T]) -> T | None:
    """Return the result of `query`, or None if it took too long. In that case the answer is not cached."""
    try:
        with searching() as session:
            return query(session)
    except TooSlow:
        g.not_cached = True  # the query may be fast enough for the next request
        return None


def cut_plan(planned: P) -> P:
    """Return `planned` with lists of at most ROWS_MAX rows; `left_out` has the numbers of rows that were cut off."""
    findings, left_out = _cut_findings(planned.findings)
    plan = planned.plan
    if plan is not None:
        lists = {"parts": plan.parts, "changes": plan.changes, "groups": plan.screen.groups}
        left_out |= {name: len(rows) - ROWS_MAX for name, rows in lists.items() if len(rows) > ROWS_MAX}
        screen = replace(plan.screen, groups=plan.screen.groups[:ROWS_MAX])
        plan = replace(plan, parts=plan.parts[:ROWS_MAX], changes=plan.changes[:ROWS_MAX], screen=screen)
    return replace(planned, findings=findings, plan=plan, left_out=left_out)


def cut_pair(pair: Compatibility) -> Compatibility:
    """Return `pair` with findings cut as in `cut_plan`; `organs` in `left_out` counts names of tensors in findings."""
    findings, left_out = _cut_findings(pair.findings)
    types = tuple(replace(fit, findings=_cut_findings(fit.findings, left_out)[0]) for fit in pair.types)
    return replace(pair, findings=findings, types=types, left_out=left_out)


def _cut_findings(findings: Findings, left_out: dict[str, int] | None = None) -> tuple[Findings, dict[str, int]]:
    """Return at most ROWS_MAX findings with at most NAMES_MAX names of tensors each.

    The numbers of findings and names that were cut off are added to `left_out`, which is also returned.
    """
    left_out = {} if left_out is None else left_out
    cut = findings[:ROWS_MAX]
    names = sum(max(0, len(finding.organs) - NAMES_MAX) for finding in cut)
    for what, number in (("findings", len(findings) - len(cut)), ("organs", names)):
        if number:
            left_out[what] = left_out.get(what, 0) + number
    return tuple(replace(finding, organs=finding.organs[:NAMES_MAX]) for finding in cut), left_out


def _budget() -> Budget:
    return Budget(ANONYMOUS_COST_MAX if identity().name is None else PLAN_COST_MAX)


def _charge(cost: int) -> None:
    """Count `cost` microseconds for the client. The local user of a personal server is not counted."""
    client, milliseconds = identity(), cost // 1000
    if milliseconds <= 0 or client.is_local:
        return
    if client.account is not None:
        rates().hit(PLANNING, str(client.account.contributor_id), cost=milliseconds)
    else:
        rates().hit(ANONYMOUS_PLANNING, client_address(), cost=milliseconds)


PLAN_SECONDS = 5.0
"""Time limit of the queries of one plan."""


@serves(endpoints.plan)
def plan(body: Values, every_part: bool, lock: bool) -> PlannedRecipe:
    return planned_for_client(recipe_arguments(body), every_part=every_part, with_lock=lock)


def recipe_arguments(body: Values) -> dict[str, object]:
    """Return a body as arguments of the job `compose`: `recipe`, or `recipe_text` if the body is `{"yaml": TEXT}`."""
    values = dict(body)
    if YAML not in values:
        return {"recipe": values}
    if len(values) > 1:
        raise BadRequest(YAML, f"{YAML} holds the whole recipe; other members are not allowed beside it.")
    if not isinstance(values[YAML], str) or not values[YAML]:
        raise BadRequest(YAML, f"{YAML} must be a text: the recipe.")
    return {"recipe_text": values[YAML]}


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


@serves(endpoints.composition)
def composition(
    base: str,
    layer: list[str],
    graft: list[str],
    blend: list[str],
    adapter: list[str],
    purify: list[str],
    expert: list[str],
    quantize: list[str],
    accept: list[str],
    meta: list[str],
    imatrix: str | None,
    encode: str | None,
    source: str | None,
    name: str | None,
    cell: str | None,
    order: str,
) -> CompositionState:
    lists = {
        "layer": layer,
        "graft": graft,
        "blend": blend,
        "adapter": adapter,
        "purify": purify,
        "expert": expert,
        "quantize": quantize,
        "accept": accept,
        "meta": meta,
    }
    singles = {"base": base, "imatrix": imatrix, "encode": encode, "source": source, "name": name}
    texts = lists | {parameter: [text] if text else [] for parameter, text in singles.items()}
    recipe = read_steps((parameter, text) for parameter in PARAMETERS for text in texts[parameter])
    return compose_for_client(recipe, (), cell or "", order).state


@serves(endpoints.compatibility)
def compatibility(base: str, donor: str) -> Compatibility:
    with reading(PLAN_SECONDS) as session:
        return cut_pair(check_compatibility(*pair_for_client(session, base, donor)))


@serves(endpoints.fitting)
def fitting(base: str, limit: int) -> FittingModels:
    with reading(PLAN_SECONDS) as session:
        return fitting_models(session, model_by_text(session, base), limit)


def _without_plan(findings: list[Finding]) -> PlannedRecipe:
    return cut_plan(PlannedRecipe(can_be_made=False, findings=in_order(findings), plan=None))
