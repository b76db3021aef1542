"""Assignments of cells: which donor gives each cell of a base, as grafts and blends of a recipe.

A cell is all tensors of one type in one block, or of one type outside the blocks. A person assigns cells one by one, by
type, or by block; the recipe has few steps, because the cells of one donor are written together: `type: [skeleton,
organ], blocks: 3-8`. Steps that select otherwise (by a query, by slots inside the blocks, by experts, or blends of
other methods) stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from organs.registry.catalog.vocabulary import GRAFTED_TYPES
from organs.registry.compose.blend_steps import BLEND_DEFAULT, Blend
from organs.registry.compose.parents import Part
from organs.registry.compose.recipe import Graft, Recipe
from organs.registry.compose.selection import BlockRange, runs_of, within

WEIGHT = "weight"
TAKEN = 1.0
"""The weight of a donor whose tensors are taken as they are."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The organs of one type in one block of a tower; `block` is None outside the blocks."""

    type: str
    block: int | None
    tower: str = "text"

    @classmethod
    def of(cls, part: Part) -> Cell:
        """Return the cell of `part`."""
        return cls(part.place.type.value, part.place.block, part.place.tower.value)

    def __str__(self) -> str:
        block = "none" if self.block is None else str(self.block)
        return f"{self.type}:{block}" + (f":{self.tower}" if self.tower != "text" else "")


Layout = Mapping[Cell, Sequence[str]]
"""The cells of a base, each with the slots of its tensors."""


@dataclass(frozen=True, slots=True)
class Giver:
    """The donor of a cell, and the share of its difference from the base that the cell gets.

    With the weight 1 the tensors are the donor's (a graft); with any other weight w they are computed as
    base + w · (donor - base) (a blend).
    """

    donor: str
    weight: float = TAKEN

    def is_same(self, other: Giver) -> bool:
        """Return whether `other` is the same donor with the same weight; `acme/tiny` is also `acme/tiny@1`."""
        return self.weight == other.weight and is_same_name(self.donor, other.donor)


def is_same_name(first: str, second: str) -> bool:
    """Return whether two names of models are equal, or one is the other without its version."""
    short, long = sorted((first, second), key=len)
    return short == long or ("@" not in short and long.rpartition("@")[0] == short)


def givers(recipe: Recipe, layout: Layout) -> dict[Cell, Giver]:
    """Return the giver of each cell that a step assigns as a whole. A later step replaces an earlier one."""
    found: dict[Cell, Giver] = {}
    steps: list[Graft | Blend] = [*recipe.grafts, *recipe.blends]
    for step in steps:
        giver, cells = _read(step, layout)
        if giver is not None:
            found |= dict.fromkeys(cells, giver)
    return found


def assigned(recipe: Recipe, cells: Collection[Cell], giver: Giver | None, layout: Layout) -> Recipe:
    """Return `recipe` with `cells` from `giver`, or from the base if it is None.

    Steps of other givers lose these cells. Cells that the layout does not have, or whose type cannot be grafted, are
    ignored.
    """
    wanted = frozenset(cell for cell in cells if cell in layout and cell.type in GRAFTED_TYPES)
    is_graft = giver is not None and giver.weight == TAKEN
    grafts = _changed(recipe.grafts, wanted, giver if is_graft else None, layout)
    blends = _changed(recipe.blends, wanted, None if is_graft else giver, layout)
    return replace(recipe, grafts=grafts, blends=blends)


def _changed(
    steps: Sequence[Graft] | Sequence[Blend], cells: frozenset[Cell], giver: Giver | None, layout: Layout
) -> tuple[Graft | Blend, ...]:
    """Return `steps` without `cells`, and with a step by which `giver` gives them, at the place of an earlier one."""
    kept: list[Graft | Blend] = []
    own, place, is_last = set(cells), None, True
    for step in steps:
        other, others = _read(step, layout)
        if other is None:
            kept.append(step)
            is_last = place is None
        elif giver is not None and giver.is_same(other):
            own |= others
            place = len(kept) if place is None else place
        elif others & cells:
            kept += _written(other, others - cells, layout)
        else:
            kept.append(step)
    if giver is not None and own:
        at = place if place is not None and is_last else len(kept)
        kept[at:at] = _written(giver, own, layout)
    return tuple(kept)


def _read(step: Graft | Blend, layout: Layout) -> tuple[Giver | None, frozenset[Cell]]:
    """Return the giver and the cells of a step; None if the step selects otherwise than by cells."""
    nobody = None, frozenset[Cell]()
    tower = None
    if isinstance(step, Graft):
        donor, weight = step.donor, TAKEN
        if step.where is not None and (match := _OF_TOWER.fullmatch(step.where)) and not step.sort:
            donor, tower = match["donor"], match["tower"]
    else:
        donor, weight = step.donor, step.parameters.get(WEIGHT)  # type: ignore[assignment]
        is_plain = step.method == BLEND_DEFAULT and set(step.parameters) == {WEIGHT} and not step.where
        if not is_plain or not isinstance(weight, float | int) or isinstance(weight, bool):
            return nobody
    if donor is None or step.experts:
        return nobody
    if step.slots:
        if step.types or step.blocks:
            return nobody
        cells = frozenset(cell for cell, slots in layout.items() if cell.block is None and set(slots) <= {*step.slots})
        named = {slot for cell in cells for slot in layout[cell]}
        if named != set(step.slots):
            return nobody
    else:
        cells = frozenset(
            cell
            for cell in layout
            if cell.type in (step.types or GRAFTED_TYPES)
            and (not step.blocks or (cell.block is not None and within(cell.block, step.blocks)))
        )
    own = frozenset(cell for cell in cells if tower in (None, cell.tower))
    return (Giver(donor, float(weight)), own) if own else nobody


_OF_TOWER = re.compile(r"model:(?P<donor>\S+) tower:(?P<tower>\S+)")


def _written(giver: Giver, cells: Iterable[Cell], layout: Layout) -> Iterator[Graft | Blend]:
    """Yield the fewest steps that select `cells`: whole types, types with the same blocks, tensors outside blocks."""
    towers = sorted({cell.tower for cell in layout})
    own = set(cells)
    for tower in towers:
        patterns: dict[tuple[BlockRange, ...], list[str]] = {}
        slots: list[str] = []
        for name in GRAFTED_TYPES:
            all_cells = {cell for cell in layout if (cell.type, cell.tower) == (name, tower)}
            chosen = own & all_cells
            if chosen == all_cells:
                blocks: tuple[BlockRange, ...] = ()
            else:
                blocks = runs_of(sorted(cell.block for cell in chosen if cell.block is not None))
                slots += [slot for cell in chosen if cell.block is None for slot in layout[cell]]
            if chosen and (blocks or chosen == all_cells):
                patterns.setdefault(blocks, []).append(name)
        place = tower if len(towers) > 1 else None
        for blocks, types in patterns.items():
            yield replace(_step(giver, place), types=tuple(types), blocks=blocks)
        if slots:
            yield replace(_step(giver, place), slots=tuple(slots))


def _step(giver: Giver, tower: str | None) -> Graft | Blend:
    if giver.weight != TAKEN:
        return Blend(donor=giver.donor, parameters={WEIGHT: giver.weight})
    if tower is None:
        return Graft(donor=giver.donor)
    return Graft(where=f"model:{giver.donor} tower:{tower}")
