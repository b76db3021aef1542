"""Planning for a client of the server: what one plan may cost, and how much planning a client may ask for in a minute.

Costs are estimates of processor time in microseconds: see `registry.compose.cost`. A recipe above the limit is refused
by 413 before anything is read. What a client asks for in a minute is counted by contributor, or without an account by
address; what exceeds it is refused by 429.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from flask import g
from limits import RateLimitItemPerMinute
from msgspec.structs import replace
from sqlalchemy.orm import Session

from organs.ingest.jobs.compose import PLAN_COST_MAX
from organs.registry.catalog.queries.fitting import fitting_models
from organs.registry.catalog.queries.models import model_by_text
from organs.registry.compose.compatibility import (
    ALIKE,
    Cell,
    adapters_for,
    candidates_for,
    cells_of,
    types_of,
)
from organs.registry.compose.cost import Budget, check_pair, check_recipe
from organs.registry.compose.models import Parent, RegisteredLibrary
from organs.registry.compose.plan import Plan, planned_recipe
from organs.registry.compose.planner import plan_recipe
from organs.registry.compose.recipe import Recipe
from organs.registry.compose.recipe_io import recipe_file, recipe_yaml
from organs.registry.entities.finding import Finding, Findings, in_order
from organs.registry.entities.plan import (
    Candidates,
    Compatibility,
    CompositionState,
    FittingModels,
    PlannedChimera,
    PlannedRecipe,
)
from organs.registry.errors import BadQuery, TooMany, TooSlow
from organs.web.auth import identity
from organs.web.client_address import client_address
from organs.web.permissions import planner
from organs.web.rate_limits import rates
from organs.web.responses import reading, registry, settings

ANONYMOUS_COST_MAX = 2_000_000
"""Of one plan, or of one comparison of two models, without an account. With one it is PLAN_COST_MAX."""
ANONYMOUS_PLANNING = RateLimitItemPerMinute(20_000, namespace="anonymous-planning")
"""By address: milliseconds of estimated processor time."""
PLANNING = RateLimitItemPerMinute(60_000, namespace="planning")
"""By contributor: the same."""
ROWS_MAX = 2_000
"""Of each list in the answer to a recipe. The largest models that are published have about 1,100 tensors."""
NAMES_MAX = 200
"""Names of tensors in one finding."""
FITTING_SHOWN = 12
"""Models that fit the base, beside a recipe under way."""
ORDERS = {ALIKE: "likeness", "-theta": "θ", "-spectral": "spectral signal", "-rank": "stable rank"}
"""Orders of candidates, the largest first. Only likeness is known to say whether a graft works."""
BLOCK_DIGITS = 9

P = TypeVar("P", bound=PlannedRecipe)
T = TypeVar("T")


def plan_for_client(session: Session, recipe: Recipe) -> tuple[Plan, RegisteredLibrary]:
    """Return what `recipe` comes to, and the library that it was planned with.

    Raises TooCostly, TooMany, and what `plan_recipe` raises.
    """
    budget = _budget()
    estimate = check_recipe(session, recipe, budget)
    _charge(estimate)
    library = RegisteredLibrary(session, registry().blobs, budget)
    try:
        return plan_recipe(recipe, library, budget), library
    finally:
        with suppress(TooMany):  # what queries found: it is done, and counts for the next request
            _charge(budget.spent - estimate)


def pair_for_client(session: Session, base: str, donor: str) -> tuple[Parent, Parent]:
    """Return two models that are to be compared by type. Raises TooCostly, TooMany, and what their names raise."""
    budget = _budget()
    _charge(check_pair(session, base, donor, budget))
    library = RegisteredLibrary(session, registry().blobs)
    return library.parent(base), library.parent(donor)


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A recipe under way: what its plan is made of, and what is shown of it."""

    recipe: Recipe
    plan: Plan
    state: CompositionState


def compose_for_client(recipe: Recipe, unread: Sequence[Finding], cell: str, order: str) -> UnderWay:
    """Return the plan of `recipe` and what can be chosen next, with the candidates of `cell` unless it is empty.

    `unread` says which steps could not be read; then there is no plan to show. Raises NotFound, BadName and the like
    for the base, BadQuery for a cell, TooCostly, TooMany, TooSlow, StoreError.
    """
    with reading(settings().search_seconds) as session:
        plan, library = plan_for_client(session, recipe)
        adapters = adapters_for(session, plan.base, library)
    planned = planned_recipe(plan, contributor=planner())
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
        fitting=_unless_too_slow(lambda session: _fitting(session, plan.base)),
        candidates=_candidates(plan.base, cell, order) if cell else None,
    )
    return UnderWay(recipe, plan, cut_plan(state))


def parsed_cell(text: str) -> Cell:
    """Return the cell that `text` names: `organ:2`, `embed:none`, `norm:3:vision`; raises BadQuery."""
    kind, _, rest = text.partition(":")
    block, _, tower = rest.partition(":")
    is_number = block.isascii() and block.isdigit() and len(block) <= BLOCK_DIGITS
    if not kind or not (is_number or block == "none"):
        raise BadQuery("cell", "a type and a block of the base, such as organ:2")
    return Cell(kind, int(block) if is_number else None, tower or "text")


def checked_order(text: str) -> str:
    """Return an order of candidates, likeness by default; raises BadQuery for one that is not known."""
    if text and text not in ORDERS:
        raise BadQuery("order", f"one of {', '.join(ORDERS)}")
    return text or ALIKE


def _candidates(base: Parent, cell: str, order: str) -> Candidates | None:
    place = parsed_cell(cell)
    return _unless_too_slow(lambda session: candidates_for(session, base, place, order))


def _fitting(session: Session, base: Parent) -> FittingModels:
    return fitting_models(session, model_by_text(session, base.label), FITTING_SHOWN)


def _unless_too_slow(query: Callable[[Session], T]) -> T | None:
    """Return the result of `query`, or None if it took too long; then the answer is not cached."""
    try:
        with reading(settings().search_seconds) as session:
            return query(session)
    except TooSlow:
        g.not_cached = True  # the next one who asks may have more luck
        return None


def cut_plan(planned: P) -> P:
    """Return `planned` with no list longer than ROWS_MAX; `left_out` has the number of rows that are missing."""
    findings, left_out = _cut_findings(planned.findings)
    plan, more = _cut_chimera(planned.plan)
    return replace(planned, findings=findings, plan=plan, left_out=left_out | more)


def cut_pair(pair: Compatibility) -> Compatibility:
    """Do the same for two models that were compared; `organs` counts names in findings."""
    findings, left_out = _cut_findings(pair.findings)
    types = []
    for fit in pair.types:
        of_type, names = _cut_names(fit.findings)
        types.append(replace(fit, findings=of_type))
        _add(left_out, names)
    return replace(pair, findings=findings, types=tuple(types), left_out=left_out)


def _cut_chimera(plan: PlannedChimera | None) -> tuple[PlannedChimera | None, dict[str, int]]:
    if plan is None:
        return None, {}
    lists = {"parts": plan.parts, "changes": plan.changes, "effects": plan.prediction.effects}
    left_out = {name: len(rows) - ROWS_MAX for name, rows in lists.items() if len(rows) > ROWS_MAX}
    if not left_out:
        return plan, {}
    prediction = replace(plan.prediction, effects=plan.prediction.effects[:ROWS_MAX])
    cut = replace(plan, parts=plan.parts[:ROWS_MAX], changes=plan.changes[:ROWS_MAX], prediction=prediction)
    return cut, left_out


def _cut_findings(findings: Findings) -> tuple[Findings, dict[str, int]]:
    left_out = {"findings": len(findings) - ROWS_MAX} if len(findings) > ROWS_MAX else {}
    cut, names = _cut_names(findings[:ROWS_MAX])
    _add(left_out, names)
    return cut, left_out


def _cut_names(findings: Findings) -> tuple[Findings, int]:
    """Return `findings` with at most NAMES_MAX names of tensors each, and how many names are missing."""
    missing = sum(max(0, len(finding.organs) - NAMES_MAX) for finding in findings)
    if not missing:
        return findings, 0
    return tuple(replace(finding, organs=finding.organs[:NAMES_MAX]) for finding in findings), missing


def _add(left_out: dict[str, int], names: int) -> None:
    if names:
        left_out["organs"] = left_out.get("organs", 0) + names


def _budget() -> Budget:
    return Budget(ANONYMOUS_COST_MAX if identity().name is None else PLAN_COST_MAX)


def _charge(cost: int) -> None:
    """Count `cost` microseconds for the client; one of this machine, on a personal server, is not counted."""
    client, milliseconds = identity(), cost // 1000
    if milliseconds <= 0 or client.is_local:
        return
    if client.account is not None:
        rates().hit(PLANNING, str(client.account.contributor_id), cost=milliseconds)
    else:
        rates().hit(ANONYMOUS_PLANNING, client_address(), cost=milliseconds)
