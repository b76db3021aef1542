"""The recipe: what a person wants composed, in names and words.

The catalog keeps it as JSON (`kept_recipe`). What it resolves to is the lock (`registry.compose.lock`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from organs.registry.anatomy import Place
from organs.registry.transform import PurifyMethod as PurifyMethod

BlockRange = tuple[int, int]
"""First and last block, both included."""

ENCODINGS = ("Q8_0", "F16", "BF16", "F32")
"""What organs that were computed are written as where their own dtype cannot be written here."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Places in a model: of these types, slots and blocks. What is left empty does not narrow.

    A slot may hold `*`. Blocks are ranges; what stands outside the blocks is selected only where no block is given.
    """

    types: tuple[str, ...] = ()
    slots: tuple[str, ...] = ()
    blocks: tuple[BlockRange, ...] = ()

    def holds(self, place: Place) -> bool:
        """Whether `place` is selected."""
        if self.types and place.type.value not in self.types:
            return False
        if self.slots and not any(matches_slot(place.slot, slot) for slot in self.slots):
            return False
        return not self.blocks or (place.block is not None and _within(place.block, self.blocks))


@dataclass(frozen=True, slots=True)
class Graft:
    """Organs to be taken from `donor` (a model's name), or from whichever models `where` (a query) finds.

    Exactly one of the two is given. `sort` ranks what the query finds; empty is the query's own order.
    """

    selection: Selection
    donor: str | None = None
    where: str | None = None
    sort: str = ""


@dataclass(frozen=True, slots=True)
class AdapterMerge:
    """A low-rank adapter to be added to what it adapts, `scale` times."""

    adapter: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Purification:
    """Organs of the result to be purified. `keep` is the share of the energy that `spectral` keeps."""

    selection: Selection
    method: PurifyMethod
    where: str = ""
    """A query that narrows the selection further, by what the organs measure; empty for none."""
    keep: float | None = None


@dataclass(frozen=True, slots=True)
class MetadataChange:
    """A metadata key to be set. `value` is text, a whole number, a number, true or false, or a list of texts."""

    key: str
    value: str | int | float | bool | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is to be made, in the order in which it is done: grafts, then adapters, then purification."""

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
    """What the chimera will be registered as; None for a name by convention."""


def matches_slot(slot: str, pattern: str) -> bool:
    """Return whether `slot` is `pattern`, in which each `*` stands for any text.

    The pattern is not compiled: a recipe may have thousands of patterns, and each is held against few slots.
    """
    first, *rest = pattern.split("*")
    if not rest:
        return slot == pattern
    *middle, last = rest
    begin, end = len(first), len(slot) - len(last)
    if begin > end or not slot.startswith(first) or not slot.endswith(last):
        return False
    for piece in middle:
        found = slot.find(piece, begin, end)
        if found < 0:
            return False
        begin = found + len(piece)
    return True


def _within(block: int, ranges: Sequence[BlockRange]) -> bool:
    return any(first <= block <= last for first, last in ranges)


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
