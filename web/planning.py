"""Planning for a client of the server: what one plan may cost, and how much planning a client may ask for in a minute.

Costs are estimates of processor time in microseconds: see `registry.compose.cost`. A recipe above the limit is refused
by 413 before anything is read. What a client asks for in a minute is counted by contributor, or without an account by
address; what exceeds it is refused by 429.
"""

from __future__ import annotations

from contextlib import suppress

from limits import RateLimitItemPerMinute
from sqlalchemy.orm import Session

from organs.ingest.jobs.compose import PLAN_COST_MAX
from organs.registry.compose.cost import Budget, check_pair, check_recipe
from organs.registry.compose.models import Parent, RegisteredLibrary
from organs.registry.compose.plan import Plan
from organs.registry.compose.planner import plan_recipe
from organs.registry.compose.recipe import Recipe
from organs.registry.errors import TooMany
from organs.registry.present.values import Values
from organs.web.auth import identity
from organs.web.rates import client_address, rates
from organs.web.responses import registry

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


def cut_lists(values: Values) -> Values:
    """Return `values`, an answer with `findings` and perhaps a `plan` or `types`, with no list longer than ROWS_MAX.

    `left_out` has the number of rows that are missing, by the name of the list; of `organs`, names in findings.
    """
    left_out: dict[str, int] = {}
    plan = values.get("plan") or {}
    lists = [(values, "findings"), (plan, "parts"), (plan, "changes"), (plan.get("prediction", {}), "effects")]
    for holder, name in lists:
        if len(holder.get(name, ())) > ROWS_MAX:
            left_out[name] = len(holder[name]) - ROWS_MAX
            holder[name] = holder[name][:ROWS_MAX]
    of_types = [finding for one in values.get("types", ()) if "findings" in one for finding in one["findings"]]
    for finding in [*values["findings"], *of_types]:
        if len(finding["organs"]) > NAMES_MAX:
            left_out["organs"] = left_out.get("organs", 0) + len(finding["organs"]) - NAMES_MAX
            finding["organs"] = finding["organs"][:NAMES_MAX]
    return values | {"left_out": left_out}


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
