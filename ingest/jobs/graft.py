"""The kind `graft`: organs of one donor into a base; a recipe with one graft."""

from __future__ import annotations

import json

from organs.ingest.jobs.arguments import check_members
from organs.ingest.jobs.compose import make_kept, plan_kept, waiting
from organs.ingest.jobs.kind import WORK, JobKind, Values
from organs.registry.compose.reading import read_recipe

_OF_GRAFT = {"donor": "from", "type": "type", "slot": "slot", "blocks": "blocks"}
"""Arguments, and what they are called in a graft of a recipe."""
_OF_RECIPE = ("base", "name", "accept")


def _checked(arguments: Values) -> Values:
    check_members(arguments, (*_OF_RECIPE, *_OF_GRAFT))
    graft = {key: arguments[name] for name, key in _OF_GRAFT.items() if name in arguments}
    recipe = {name: arguments[name] for name in _OF_RECIPE if name in arguments}
    return waiting(read_recipe(json.dumps(recipe | {"grafts": [graft]})))


GRAFT = JobKind("graft", WORK, _checked, make_kept, plan_kept)
"""Takes `base` and `donor`, `type`, `slot` and `blocks` as a recipe does, `name` and `accept`; gives what `compose`
does."""
