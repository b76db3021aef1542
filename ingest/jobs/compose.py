"""The kinds `compose`, `graft` and `purify`: a recipe becomes a registered chimera."""

from __future__ import annotations

import json
from contextlib import suppress

from msgspec.structs import asdict, replace

from organs.ingest.jobs.kind import (
    WORK,
    Inputs,
    JobKind,
    ReportProgress,
    check_members,
    text_or_none,
)
from organs.ingest.jobs.validate import QUICK_LOOK
from organs.registry.catalog.queries.accounts import check_model_fits, contributor_by_name
from organs.registry.catalog.queries.chimeras import stored_quick_look
from organs.registry.catalog.queries.jobs import active_jobs
from organs.registry.catalog.queries.models import check_model_name, model_by_text
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.jobs import enqueue_job
from organs.registry.compose.build import check_own, make
from organs.registry.compose.cost import Budget, check_recipe
from organs.registry.compose.models import RegisteredLibrary
from organs.registry.compose.plan import Plan, chimera_name
from organs.registry.compose.planner import plan_recipe
from organs.registry.compose.recipe import Recipe
from organs.registry.compose.recipe_io import read_recipe, recipe_file
from organs.registry.entities.base import encode
from organs.registry.entities.job import ChimeraJobResult, RecipeArguments
from organs.registry.entities.quick_look import QuickLookRequest
from organs.registry.errors import BadInput, QueueFull, TooMany
from organs.registry.local import LocalRegistry
from organs.registry.validation.llama import LlamaCpp

RECIPE_TEXT_MAX_LENGTH = 256 * 1024
DIGEST_LENGTH = 64
PLAN_SECONDS = 10.0
"""The database time limit of a recipe's plan before its job is queued."""
PLAN_COST_MAX = 10_000_000
"""The cost limit of a plan before its job is queued, in microseconds: see `registry.compose.cost`."""
PREPARED = 0.02
"""The approximate share of a job's progress that its plan takes."""


def waiting(recipe: Recipe) -> RecipeArguments:
    """Return the arguments of a job that makes `recipe`."""
    return RecipeArguments(recipe=recipe_file(recipe))


def plan_first(registry: LocalRegistry, arguments: RecipeArguments, contributor: str) -> RecipeArguments:
    """Return the arguments with the digest of their recipe's plan.

    Raises NotAllowed for a name in another contributor's namespace, BadName, NotComposable, OverQuota, TooCostly, and
    the errors of the base.
    """
    recipe = _recipe(arguments)
    name = chimera_name(recipe, "chimera", contributor)
    check_own(name, contributor)
    with registry.catalog.reading() as session:
        check_model_name(session, name)
    plan = planned(registry, recipe, PLAN_SECONDS, Budget(PLAN_COST_MAX))
    plan.check()
    _check_quota(registry, plan, contributor)
    return replace(arguments, plan=plan.digest)


def planned(registry: LocalRegistry, recipe: Recipe, seconds: float, budget: Budget | None = None) -> Plan:
    """Return the plan of `recipe`, made within `seconds` and `budget`; a recipe beyond the budget is refused before
    its models are read.

    Raises NotFound, BadName for its base, TooSlow, TooCostly.
    """
    budget = budget or Budget()
    with registry.catalog.reading(seconds) as session:
        check_recipe(session, recipe, budget)
        return plan_recipe(recipe, RegisteredLibrary(session, registry.blobs, budget), budget)


def make_planned(
    registry: LocalRegistry, arguments: RecipeArguments, report_progress: ReportProgress, contributor: str
) -> ChimeraJobResult:
    """Make the recipe in `arguments`; return the chimera and the address of its page."""
    report_progress(0.0, "planning")
    plan = registry.compose(_recipe(arguments)).plan()
    if arguments.plan not in (None, plan.plan.digest):
        raise BadInput("the registry has changed, and the result would differ from the plan; plan the recipe again")
    _check_quota(registry, plan.plan, contributor)  # the contributor may have added other models since
    computed = sum(part.spec.size_bytes for part in plan.plan.parts if part.computation is not None)
    # Computing a byte takes about ten times as long as hashing one.
    total, done = plan.size_bytes + 10 * computed, 0

    def advance(step: str, size_bytes: int) -> None:
        nonlocal done
        done += 10 * size_bytes if step == "compute" else size_bytes
        report_progress(PREPARED + (1 - PREPARED) * done / max(total, 1), _NOTES[step])

    chimera = make(registry.catalog, registry.blobs, plan.plan, progress=advance, contributor=contributor)
    return ChimeraJobResult(
        **asdict(chimera),
        address=f"/chimeras/{chimera.lock_id}",
        quick_look=_queued_look(registry, chimera.model, contributor),
    )


def _queued_look(registry: LocalRegistry, model: str | None, contributor: str) -> int | None:
    """Queue a quick look at a chimera that has none, and return its job, which may be one that waits already.

    Return None without llama.cpp, and if too many jobs wait.
    """
    if model is None or not LlamaCpp.is_installed():
        return None
    with suppress(QueueFull, TooMany), registry.catalog.writing() as session:
        if stored_quick_look(session, model_by_text(session, model).id) is not None:
            return None
        for job in active_jobs(session, QUICK_LOOK.name, contributor):
            if job.arguments.get("chimera") == model:
                return job.id
        return enqueue_job(session, QUICK_LOOK.name, QuickLookRequest(chimera=model), contributor)
    return None


def _check_quota(registry: LocalRegistry, plan: Plan, contributor: str) -> None:
    """Raise OverQuota if the file exceeds the quota; `local` has no quota."""
    if contributor == LOCAL:
        return
    with registry.catalog.reading() as session:
        owner = contributor_by_name(session, contributor)
        check_model_fits(session, owner, registry.settings.quota_bytes, plan.size_bytes)


def _check_compose(arguments: Inputs) -> RecipeArguments:
    check_members(arguments, ("recipe", "recipe_text", "plan"))
    digest = text_or_none(arguments, "plan", DIGEST_LENGTH)
    text = text_or_none(arguments, "recipe_text", RECIPE_TEXT_MAX_LENGTH)
    recipe = arguments.get("recipe")
    if (text is None) == (recipe is None):
        raise BadInput("give either recipe, an object, or recipe_text, YAML")
    if text is None:
        if not isinstance(recipe, dict):
            raise BadInput("recipe must be an object: a recipe in JSON")
        text = json.dumps(recipe, ensure_ascii=False)
    return replace(waiting(read_recipe(text)), plan=digest)


def _recipe(arguments: RecipeArguments) -> Recipe:
    return read_recipe(encode(arguments.recipe))


_NOTES = {"compute": "computing organs", "hash": "hashing the file", "write": "writing the file"}

COMPOSE = JobKind("compose", WORK, RecipeArguments, _check_compose, make_planned, plan_first)
"""Takes `recipe`, an object, or `recipe_text`, YAML; returns the members of a MadeChimera, and `address`."""


_GRAFT_KEYS = {"donor": "from", "type": "type", "slot": "slot", "blocks": "blocks"}
"""Names of arguments, and their keys in a graft of a recipe."""
_RECIPE_MEMBERS = ("base", "name", "accept")


def _check_graft(arguments: Inputs) -> RecipeArguments:
    check_members(arguments, (*_RECIPE_MEMBERS, *_GRAFT_KEYS))
    graft = {key: arguments[name] for name, key in _GRAFT_KEYS.items() if name in arguments}
    recipe = {name: arguments[name] for name in _RECIPE_MEMBERS if name in arguments}
    return waiting(read_recipe(json.dumps(recipe | {"grafts": [graft]})))


GRAFT = JobKind("graft", WORK, RecipeArguments, _check_graft, make_planned, plan_first)
"""Takes `base` and `donor`, `type`, `slot` and `blocks` as a recipe does, `name` and `accept`; returns the
same as `compose`."""


_STEP_NAMES = ("method", "keep", "where", "type", "slot", "blocks")
_RECIPE_NAMES = {"model": "base", "name": "name", "encode": "encode", "accept": "accept"}
"""Names of arguments, and their keys in a recipe."""


def _check_purify(arguments: Inputs) -> RecipeArguments:
    check_members(arguments, (*_RECIPE_NAMES, *_STEP_NAMES))
    step = {name: arguments[name] for name in _STEP_NAMES if name in arguments}
    recipe = {key: arguments[name] for name, key in _RECIPE_NAMES.items() if name in arguments}
    return waiting(read_recipe(json.dumps(recipe | {"purify": step})))


PURIFY = JobKind("purify", WORK, RecipeArguments, _check_purify, make_planned, plan_first)
"""Takes `model`, `method`, `keep`, `where`, `type`, `slot` and `blocks` as a recipe does, `name`, `encode` and
`accept`; returns the same as `compose`."""
