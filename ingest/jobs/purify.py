"""The kind `purify`: organs of a model, purified; a recipe with nothing else in it."""

from __future__ import annotations

import json

from organs.ingest.jobs.arguments import check_members
from organs.ingest.jobs.compose import make_kept, plan_kept, waiting
from organs.ingest.jobs.kind import WORK, JobKind, Values
from organs.registry.compose.reading import read_recipe

_OF_STEP = ("method", "keep", "where", "type", "slot", "blocks")
_OF_RECIPE = {"model": "base", "name": "name", "encode": "encode", "accept": "accept"}
"""Arguments, and what they are called in a recipe."""


def _checked(arguments: Values) -> Values:
    check_members(arguments, (*_OF_RECIPE, *_OF_STEP))
    step = {name: arguments[name] for name in _OF_STEP if name in arguments}
    recipe = {key: arguments[name] for name, key in _OF_RECIPE.items() if name in arguments}
    return waiting(read_recipe(json.dumps(recipe | {"purify": step})))


PURIFY = JobKind("purify", WORK, _checked, make_kept, plan_kept)
"""Takes `model`, `method`, `keep`, `where`, `type`, `slot` and `blocks` as a recipe does, `name`, `encode` and
`accept`; gives what `compose` does."""
