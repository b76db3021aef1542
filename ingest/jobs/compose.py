"""The kind `compose`: a recipe to a registered chimera. What grafts and purifies alone are faces of it."""

from __future__ import annotations

import json

from ingest.jobs.arguments import check_members, text_or_none
from ingest.jobs.kind import WORK, JobKind, Tell, Values
from registry.compose.library import RegisteredLibrary
from registry.compose.plan import Plan
from registry.compose.planning import plan_recipe
from registry.compose.reading import read_recipe
from registry.compose.recipe import Recipe
from registry.compose.writing import recipe_values
from registry.errors import BadInput
from registry.registry import Registry

RECIPE_TEXT_MAX_LENGTH = 256 * 1024
PLAN_SECONDS = 10.0
"""What the plan of a recipe may take the database before its job is queued."""
PREPARED = 0.02
"""The share of a job that its plan takes, about."""


def kept_recipe(recipe: Recipe) -> Values:
    """The arguments under which `recipe` waits."""
    return {"recipe": recipe_values(recipe)}


def plan_kept(registry: Registry, arguments: Values) -> Values:
    """The arguments, after their recipe was planned: raises NotComposable, and what is wrong with the base."""
    planned(registry, _recipe(arguments), PLAN_SECONDS).check()
    return arguments


def planned(registry: Registry, recipe: Recipe, seconds: float) -> Plan:
    """What `recipe` comes to; raises NotFound, BadName for its base, TooSlow."""
    with registry.catalog.reading(seconds) as session:
        return plan_recipe(recipe, RegisteredLibrary(session, registry.blobs))


def make_kept(registry: Registry, arguments: Values, tell: Tell) -> Values:
    """Make what `arguments` keep: `model`, `lock`, `sha256`, `size_bytes`, `created`, and the page's `address`."""
    tell(0.0, "planning")
    plan = registry.compose(_recipe(arguments)).plan()
    computed = sum(part.spec.size_bytes for part in plan.parts if part.computation is not None)
    # Computing a byte takes about ten times as long as hashing one.
    total, done = plan.size_bytes + 10 * computed, 0

    def advance(what: str, size_bytes: int) -> None:
        nonlocal done
        done += 10 * size_bytes if what == "compute" else size_bytes
        tell(PREPARED + (1 - PREPARED) * done / max(total, 1), _NOTES[what])

    made = plan.register(advance)
    return {
        "model": made.model,
        "lock": made.lock_id,
        "sha256": made.sha256,
        "size_bytes": made.size_bytes,
        "created": made.created,
        "address": f"/chimeras/{made.lock_id}",
    }


def _checked(arguments: Values) -> Values:
    check_members(arguments, ("recipe", "recipe_text"))
    text = text_or_none(arguments, "recipe_text", RECIPE_TEXT_MAX_LENGTH)
    recipe = arguments.get("recipe")
    if (text is None) == (recipe is None):
        raise BadInput("one of recipe and recipe_text is wanted: a recipe as an object, or as YAML")
    if text is None:
        if not isinstance(recipe, dict):
            raise BadInput("recipe is to be an object, as recipes are written in JSON")
        text = json.dumps(recipe)
    return kept_recipe(read_recipe(text))


def _recipe(arguments: Values) -> Recipe:
    return read_recipe(json.dumps(arguments["recipe"]))


_NOTES = {"compute": "computing organs", "hash": "hashing the file", "write": "writing the file"}

COMPOSE = JobKind("compose", WORK, _checked, make_kept, plan_kept)
"""Takes `recipe`, an object, or `recipe_text`, YAML; gives `model`, `lock`, `address` and more."""
