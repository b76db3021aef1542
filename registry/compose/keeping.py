"""A recipe as the catalog keeps it: everything that it holds, read back without question.

What was read from a person is checked by then. Limits on texts from outside, and rules that change with time, must not
keep anybody from seeing what was made.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from organs.registry.compose.recipe import (
    AdapterMerge,
    Graft,
    MetadataChange,
    Purification,
    PurifyMethod,
    Recipe,
    Selection,
)


def kept_text(recipe: Recipe) -> str:
    """`recipe` as JSON."""
    return json.dumps(asdict(recipe), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def kept_recipe(text: str) -> Recipe:
    """The recipe that was kept as `text`."""
    values: dict[str, Any] = json.loads(text)
    return Recipe(
        base=values["base"],
        grafts=tuple(Graft(**one | {"selection": _selection(one)}) for one in values["grafts"]),
        adapters=tuple(AdapterMerge(**one) for one in values["adapters"]),
        purify=tuple(
            Purification(**one | {"selection": _selection(one), "method": PurifyMethod(one["method"])})
            for one in values["purify"]
        ),
        encode=values["encode"],
        accept=tuple(values["accept"]),
        metadata=tuple(MetadataChange(one["key"], _value(one["value"])) for one in values["metadata"]),
        name=values["name"],
    )


def _selection(step: dict[str, Any]) -> Selection:
    kept = step["selection"]
    blocks = tuple((first, last) for first, last in kept["blocks"])
    return Selection(tuple(kept["types"]), tuple(kept["slots"]), blocks)


def _value(kept: Any) -> Any:
    return tuple(kept) if isinstance(kept, list) else kept
