"""The kinds `compose`, `graft` and `purify`: a recipe becomes a registered chimera."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

from msgspec import to_builtins
from msgspec.structs import asdict

from organs.ingest.jobs.kind import WORK, JobKind, ReportProgress
from organs.ingest.jobs.validate import QUICK_LOOK
from organs.registry.catalog.queries.accounts import check_model_fits, contributor_by_name
from organs.registry.catalog.queries.chimeras import stored_quick_look
from organs.registry.catalog.queries.jobs import active_jobs
from organs.registry.catalog.queries.model_names import check_model_name, model_by_text
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.catalog.register.jobs import enqueue_job
from organs.registry.compose.build import check_own, make
from organs.registry.compose.cost import Budget, check_recipe
from organs.registry.compose.parents import RegisteredLibrary
from organs.registry.compose.plan import Plan, chimera_name
from organs.registry.compose.planner import plan_recipe
from organs.registry.compose.recipe import read_recipe, recipe_file
from organs.registry.entities.base import encode
from organs.registry.entities.job import ChimeraJobResult, GraftRequest, PurificationRequest, RecipeArguments
from organs.registry.entities.validation import QuickLookRequest
from organs.registry.errors import BadInput, QueueFull, TooMany
from organs.registry.local import LocalRegistry
from organs.registry.validation.llama import LlamaCpp

PLAN_SECONDS = 10.0
"""The database time limit of a recipe's plan before its job is queued."""
PLAN_COST_MAX = 10_000_000
"""The cost limit of a plan before its job is queued, in microseconds: see `registry.compose.cost`."""
PREPARED = 0.02
"""The approximate share of a job's progress that its plan takes."""


def _settle(registry: LocalRegistry, inputs: Mapping[str, object], contributor: str) -> RecipeArguments:
    match dict(inputs):
        case {"recipe_text": str(text), **rest} if not rest:
            pass
        case {"recipe": dict(recipe), **rest} if not rest:
            text = json.dumps(recipe, ensure_ascii=False)
        case _:
            raise BadInput("give either recipe, an object, or recipe_text, YAML")
    return _planned_first(registry, text, contributor)


def _settle_graft(registry: LocalRegistry, request: GraftRequest, contributor: str) -> RecipeArguments:
    values = to_builtins(request)  # without those that were left out
    graft = {key: values.pop(key) for key in ("donor", "type", "slot", "blocks") if key in values}
    graft["from"] = graft.pop("donor")
    return _planned_first(registry, json.dumps(values | {"grafts": [graft]}), contributor)


def _settle_purification(registry: LocalRegistry, request: PurificationRequest, contributor: str) -> RecipeArguments:
    values = to_builtins(request)  # without those that were left out
    step = {key: values.pop(key) for key in ("method", "keep", "where", "type", "slot", "blocks") if key in values}
    values["base"] = values.pop("model")
    return _planned_first(registry, json.dumps(values | {"purify": step}), contributor)


def _planned_first(registry: LocalRegistry, text: str, contributor: str) -> RecipeArguments:
    """Return the recipe in `text` with the digest of its plan.

    Raises BadRecipe, NotAllowed for a name in another contributor's namespace, BadName, NotComposable, OverQuota,
    TooCostly, and the errors of the base.
    """
    recipe = read_recipe(text)
    name = chimera_name(recipe, "chimera", contributor)
    check_own(name, contributor)
    with registry.catalog.reading() as session:
        check_model_name(session, name)
    with registry.catalog.reading(PLAN_SECONDS) as session:
        budget = Budget(PLAN_COST_MAX)
        check_recipe(session, recipe, budget)  # before its models are read
        plan = plan_recipe(recipe, RegisteredLibrary(session, registry.blobs, budget), budget)
    plan.check()
    _check_quota(registry, plan, contributor)
    return RecipeArguments(recipe=recipe_file(recipe), plan=plan.digest)


def _run(
    registry: LocalRegistry, arguments: RecipeArguments, report_progress: ReportProgress, contributor: str
) -> ChimeraJobResult:
    """Make the recipe in `arguments`; return the chimera and the address of its page."""
    report_progress(0.0, "planning")
    plan = registry.compose(read_recipe(encode(arguments.recipe))).plan()
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


_NOTES = {"compute": "computing organs", "hash": "hashing the file", "write": "writing the file"}

COMPOSE = JobKind("compose", WORK, RecipeArguments, _run, _settle, dict)
"""Takes `recipe`, an object, or `recipe_text`, YAML; returns the members of a MadeChimera, and `address`."""

GRAFT = JobKind("graft", WORK, RecipeArguments, _run, _settle_graft, GraftRequest)
"""Takes `base` and `donor`, `type`, `slot` and `blocks` as a recipe does, `name` and `accept`; returns the
same as `compose`."""

PURIFY = JobKind("purify", WORK, RecipeArguments, _run, _settle_purification, PurificationRequest)
"""Takes `model`, `method`, `keep`, `where`, `type`, `slot` and `blocks` as a recipe does, `name`, `encode` and
`accept`; returns the same as `compose`."""
