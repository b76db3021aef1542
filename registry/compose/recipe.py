"""The recipe: the composition that a person wants, by names.

The catalog stores it as JSON (`recipe_to_json`). It resolves to a lock (`registry.compose.lock`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from organs.registry.anatomy import Place, is_expert_stack
from organs.registry.errors import BadName
from organs.registry.names import parse_model_name
from organs.registry.transform import PurifyMethod as PurifyMethod

BlockRange = tuple[int, int]
"""First and last block, both included."""

ENCODINGS = ("Q8_0", "F16", "BF16", "F32")
"""The dtypes for computed organs whose own dtype cannot be written here."""

WARNINGS = {
    "unrelated-lineage": "the organs are no more alike than those of unrelated models",
    "lineage-unknown": "there is no fingerprint to compare the two models by",
    "adapter-base-differs": "the adapter names another model as its base",
    "other-scale": "a model of the same family and of another size",
    "rope-base-differs": "the donor was trained with another base frequency of its positions (RoPE)",
    "rope-scaling-differs": "the donor was trained with another scaling of its positions (RoPE)",
    "epsilon-differs": "the donor was trained with another epsilon of its norms",
    "context-differs": "the donor was trained for another context length",
    "activation-differs": "the feed-forward of the donor was trained with another activation",
    "tokenizer-differs": "the two models number tokens differently",
    "parent-yanked": "a parent, or a model that it was made from, was yanked by its publisher or an administrator",
    "parent-removed": "a model that a parent was made from was removed by an administrator",
    "non-finite-weights": "some weights are NaN or infinite; they spread to everything that the model computes",
    "licenses-conflict": "the licenses conflict, or one allows no derivatives",
}
"""The codes of warnings, which a recipe can accept, with their meaning."""
RETIRED_WARNINGS = frozenset({"likely-degraded"})
"""Codes of warnings that are no longer given. Recipes that accept them stay valid."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of places in a model by types, slots and blocks. An empty member selects all.

    A slot may contain `*`. Blocks are ranges. Places outside of blocks are selected only if `blocks` is empty. With
    `experts` (ranges), only these experts of the selected stacks are meant, and no other tensors.
    """

    types: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()
    blocks: tuple[BlockRange, ...] = ()
    experts: tuple[BlockRange, ...] = ()

    def holds(self, place: Place) -> bool:
        """Return whether `place` is selected, or some experts of it."""
        if self.experts and not is_expert_stack(place):
            return False
        if self.types and place.type.value not in self.types:
            return False
        if self.slots and not any(matches_slot(place.slot, slot) for slot in self.slots):
            return False
        return not self.blocks or (place.block is not None and _within(place.block, self.blocks))

    def expert_numbers(self, count: int) -> tuple[int, ...]:
        """Return the selected experts of a stack with `count` experts."""
        return tuple(number for number in range(count) if _within(number, self.experts))


@dataclass(frozen=True, slots=True)
class Graft:
    """Organs to take from `donor` (a model's name), or from the models that `where` (a query) finds.

    Exactly one of the two is set. `sort` ranks the results of the query; if it is empty, the query's own order is used,
    which is `-likeness` by default. A query finds only kin of the base, unless `strangers` is set or it names models.
    """

    selection: Selection
    donor: str | None = None
    where: str | None = None
    sort: str = ""
    strangers: bool = False
    """Whether the query may also find organs of models that are not kin of the base."""


@dataclass(frozen=True, slots=True)
class AdapterMerge:
    """A low-rank adapter to add to the tensors that it adapts, `scale` times."""

    adapter: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Purification:
    """Organs of the result to purify. `keep` is the share of the energy that `spectral` keeps."""

    selection: Selection
    method: PurifyMethod
    where: str = ""
    """A query on measures that narrows the selection further; empty for none."""
    keep: float | None = None


@dataclass(frozen=True, slots=True)
class MetadataChange:
    """A metadata key to set. `value` is text, an integer, a float, a boolean, or a list of texts."""

    key: str
    value: str | int | float | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The steps of a composition, in the order in which they are done: grafts, then adapters, then purification."""

    base: str
    grafts: tuple[Graft, ...] = ()
    adapters: tuple[AdapterMerge, ...] = ()
    purify: tuple[Purification, ...] = ()
    encode: str = "Q8_0"
    """One of `ENCODINGS`."""
    accept: tuple[str, ...] = ()
    """Codes of warnings that are accepted."""
    metadata: tuple[MetadataChange, ...] = ()
    name: str | None = None
    """The name of the chimera in the registry; None for a name by convention."""


def renamed(recipe: Recipe, name_of: Callable[[str], str]) -> Recipe:
    """Return `recipe` with `name_of` each name of a base, a donor and an adapter."""
    return replace(
        recipe,
        base=name_of(recipe.base),
        grafts=tuple(
            graft if graft.donor is None else replace(graft, donor=name_of(graft.donor)) for graft in recipe.grafts
        ),
        adapters=tuple(replace(merge, adapter=name_of(merge.adapter)) for merge in recipe.adapters),
    )


def with_versions(recipe: Recipe, models: Sequence[str]) -> Recipe:
    """Return `recipe` with the versions of `models`, the full names of the models that its names once meant.

    The first of `models` is the base. Names with a version, digests, queries and other names of donors stay as they
    are.
    """
    by_name: dict[str, set[str]] = {}
    for model in models:
        by_name.setdefault(model.partition("@")[0].casefold(), set()).add(model)

    def full_name(name: str) -> str:
        try:
            parsed = parse_model_name(name)
        except BadName:
            return name
        known = by_name.get(str(parsed).casefold(), set())
        return next(iter(known)) if len(known) == 1 else name

    named = renamed(recipe, full_name)
    return replace(named, base=models[0]) if _has_no_version(recipe.base) else named


def _has_no_version(name: str) -> bool:
    try:
        return parse_model_name(name).version is None
    except BadName:  # a digest
        return False


def matches_slot(slot: str, pattern: str) -> bool:
    """Return whether `slot` matches `pattern`, in which each `*` matches any text.

    The pattern is not compiled, because a recipe may have thousands of patterns, each compared with few slots.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return slot == pattern
    *middle, last = rest
    begin, end = len(first), len(slot) - len(last)
    if begin > end or not slot.startswith(first) or not slot.endswith(last):
        return False
    for piece in middle:
        position = slot.find(piece, begin, end)
        if position < 0:
            return False
        begin = position + len(piece)
    return True


def _within(block: int, ranges: Sequence[BlockRange]) -> bool:
    return any(first <= block <= last for first, last in ranges)


def recipe_to_json(recipe: Recipe) -> str:
    """Return `recipe` as JSON for the catalog."""
    return json.dumps(asdict(recipe), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def recipe_from_json(text: str) -> Recipe:
    """Return the recipe that was stored as `text`."""
    values: dict[str, Any] = json.loads(text)
    return Recipe(
        base=values["base"],
        grafts=tuple(Graft(**value | {"selection": _selection(value)}) for value in values["grafts"]),
        adapters=tuple(AdapterMerge(**value) for value in values["adapters"]),
        purify=tuple(
            Purification(**value | {"selection": _selection(value), "method": PurifyMethod(value["method"])})
            for value in values["purify"]
        ),
        encode=values["encode"],
        accept=tuple(values["accept"]),
        metadata=tuple(MetadataChange(value["key"], _value(value["value"])) for value in values["metadata"]),
        name=values["name"],
    )


def _selection(step: dict[str, Any]) -> Selection:
    stored = step["selection"]
    blocks = tuple((first, last) for first, last in stored["blocks"])
    experts = tuple((first, last) for first, last in stored.get("experts", ()))
    return Selection(tuple(stored["types"]), tuple(stored["slots"]), blocks, experts)


def _value(stored: Any) -> Any:
    return tuple(stored) if isinstance(stored, list) else stored
