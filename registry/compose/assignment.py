"""Assignments of cells: which donor gives each cell of a base, as grafts and blends of a recipe.

A cell is all tensors of one type in one block, or of one type outside the blocks. A person assigns cells one by one, by
type, or by block; the recipe has few steps, because the cells of one donor are written together: `type: [skeleton,
organ], blocks: 3-8`. Steps that select otherwise (by a query, by slots inside the blocks, by experts, or blends of
other methods) stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
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


Read = tuple[Giver | None, frozenset[Cell]]
"""The giver and the cells of a step; None if the step selects otherwise than by cells."""


class Assignment:
    """The cells that the steps of a recipe assign, and recipes with other assignments. The steps are read once."""

    def __init__(self, recipe: Recipe, layout: Layout) -> None:
        self.recipe = recipe
        self._layout = layout
        self._towers = sorted({cell.tower for cell in layout})
        groups: dict[tuple[str, str], set[Cell]] = {}
        for cell in layout:
            groups.setdefault((cell.type, cell.tower), set()).add(cell)
        self._groups = groups
        self._grafts = [(step, self._read(step)) for step in recipe.grafts]
        self._blends = [(step, self._read(step)) for step in recipe.blends]
        self.givers: dict[Cell, Giver] = {}
        """The giver of each cell that a step assigns as a whole. A later step replaces an earlier one."""
        reads: list[Read] = [read for _, read in self._grafts] + [read for _, read in self._blends]
        for giver, cells in reads:
            if giver is not None:
                self.givers |= dict.fromkeys(cells, giver)

    def having(self, cells: Collection[Cell], giver: Giver | None) -> Recipe:
        """Return the recipe with `cells` from `giver`, or from the base if it is None.

        Steps of other givers lose these cells. Cells that the layout does not have, or whose type cannot be grafted,
        are ignored.
        """
        wanted = frozenset(cell for cell in cells if cell in self._layout and cell.type in GRAFTED_TYPES)
        is_graft = giver is not None and giver.weight == TAKEN
        grafts = self._changed(self._grafts, wanted, giver if is_graft else None)
        blends = self._changed(self._blends, wanted, None if is_graft else giver)
        return replace(self.recipe, grafts=grafts, blends=blends)

    def _changed(
        self, steps: Sequence[tuple[Graft | Blend, Read]], cells: frozenset[Cell], giver: Giver | None
    ) -> tuple[Graft | Blend, ...]:
        """Return `steps` without `cells`, and with a step by which `giver` gives them.

        It replaces the steps of the giver behind the last step that selects otherwise: those before it stay, because
        behind it they would replace what it selects.
        """
        kept: list[Graft | Blend] = []
        own, place = set(cells), None
        fixed = max((number for number, (_, (other, _)) in enumerate(steps) if other is None), default=-1)
        for number, (step, (other, others)) in enumerate(steps):
            is_same = giver is not None and other is not None and giver.is_same(other)
            if is_same and number > fixed:
                own |= others
                place = len(kept) if place is None else place
            elif other is None or is_same or not others & cells:
                kept.append(step)
            else:
                kept += self._written(other, others - cells)
        if giver is not None and own:
            at = len(kept) if place is None else place
            kept[at:at] = self._written(giver, own)
        return tuple(kept)

    def _read(self, step: Graft | Blend) -> Read:
        nobody = None, frozenset[Cell]()
        layout, tower = self._layout, None
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
            cells = frozenset(
                cell for cell, slots in layout.items() if cell.block is None and set(slots) <= {*step.slots}
            )
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

    def _written(self, giver: Giver, own: Collection[Cell]) -> Iterator[Graft | Blend]:
        """Yield the fewest steps that select `own`: whole types, types with the same blocks, tensors outside blocks."""
        for tower in self._towers:
            patterns: dict[tuple[BlockRange, ...], list[str]] = {}
            slots: list[str] = []
            for name in GRAFTED_TYPES:
                all_cells = self._groups.get((name, tower), set())
                chosen = all_cells.intersection(own)
                if chosen == all_cells:
                    blocks: tuple[BlockRange, ...] = ()
                else:
                    blocks = runs_of(sorted(cell.block for cell in chosen if cell.block is not None))
                    slots += [slot for cell in chosen if cell.block is None for slot in self._layout[cell]]
                if chosen and (blocks or chosen == all_cells):
                    patterns.setdefault(blocks, []).append(name)
            place = tower if len(self._towers) > 1 else None
            for blocks, types in patterns.items():
                yield replace(_step(giver, place), types=tuple(types), blocks=blocks)
            if slots:
                yield replace(_step(giver, place), slots=tuple(slots))


_OF_TOWER = re.compile(r"model:(?P<donor>\S+) tower:(?P<tower>\S+)")


def _step(giver: Giver, tower: str | None) -> Graft | Blend:
    if giver.weight != TAKEN:
        return Blend(donor=giver.donor, parameters={WEIGHT: giver.weight})
    if tower is None:
        return Graft(donor=giver.donor)
    return Graft(where=f"model:{giver.donor} tower:{tower}")
