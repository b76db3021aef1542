"""The anatomy grid: blocks as rows and slots or types as columns, coloured by a reading, donors as letters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

from organs.registry.amounts import share_text, size_text, theta_text
from organs.registry.anatomy import is_after_blocks, reading_order
from organs.registry.entities.comparison import OrganChange
from organs.registry.entities.organ import PlacedOrgan
from organs.registry.entities.plan import CellTotals, PlanChange, PlanPart
from organs.web.pages.routes import Context
from organs.web.render import (
    caution_of,
    change_class,
    kind_name,
    share_class,
    theta_class,
)

ACTS = {"grafted": "grafted", "adapter": "adapter added", "purified": "purified"}
"""What was done to an organ, in words."""

Place = tuple[str, int | None, str]
"""Tower, block and slot."""


def acts_text(acts: Sequence[str]) -> str:
    """Return what was done to an organ: `grafted, then purified`."""
    return ", then ".join(ACTS[act] for act in acts)


@dataclass(frozen=True, slots=True)
class LegendLine:
    """A line of the legend: a parent and what was done with its organs, with a letter."""

    mark: str
    model: str
    is_base: bool
    acts: tuple[str, ...]
    organs: int

    @property
    def words(self) -> str:
        """What was done to the organs."""
        return acts_text(self.acts)


def legend(parts: Iterable[PlanPart], base: str) -> list[LegendLine]:
    """Return a line for each parent and what was done with its organs, in the order of the parts."""
    counts: dict[tuple[str, ...], int] = {}
    for part in parts:
        key = (part.model, *part.acts)
        counts[key] = counts.get(key, 0) + 1
    return [
        LegendLine(letter(number), model, model == base, tuple(acts), count)
        for number, ((model, *acts), count) in enumerate(counts.items())
    ]


def marks(parts: Iterable[PlanPart], shown: Iterable[LegendLine]) -> dict[str, LegendLine]:
    """Return the line of the legend `shown` for each part, by the tensor's name."""
    lines = _by_key(shown)
    return {part.name: lines[part.model, *part.acts] for part in parts}


def with_marks(runs: Iterable[PlanChange], shown: Iterable[LegendLine]) -> list[tuple[str, PlanChange]]:
    """Return the changes of runs of blocks, each with the letter of its line in the legend `shown`."""
    lines = _by_key(shown)
    return [(lines[run.model, *run.acts].mark, run) for run in runs]


def marked(grid: Context, by_name: Mapping[str, LegendLine]) -> Context:
    """Return `grid` with the letter of each changed cell."""
    rows = [row | {"cells": [_cell(cell, by_name) for cell in row["cells"]]} for row in grid["rows"]]
    ends = {end: [_cell(cell, by_name) for cell in grid[end]] for end in ("head", "foot")}
    return grid | ends | {"rows": rows, "lettered": True}


def changes(organs: Iterable[PlacedOrgan], parts: Iterable[PlanPart]) -> dict[Place, OrganChange]:
    """Return the change of each organ of the base, for colouring a grid. Likeness is unknown here."""
    changed = {part.name: part for part in parts}
    return {(organ.tower, organ.block, organ.slot): _change(changed.get(organ.name)) for organ in organs}


def _by_key(shown: Iterable[LegendLine]) -> dict[tuple[str, ...], LegendLine]:
    return {(line.model, *line.acts): line for line in shown}


def _change(part: PlanPart | None) -> OrganChange:
    if part is None:
        return OrganChange(theta_change=0.0, likeness=None, identical=True)
    before, after = part.theta_before, part.theta
    shift = None if before is None or after is None else after - before
    return OrganChange(theta_change=shift, likeness=None, identical=False)


def _cell(cell: Context | None, by_name: Mapping[str, LegendLine]) -> Context | None:
    line = None if cell is None else by_name.get(cell["name"])
    if cell is None or line is None:
        return cell
    source = "from the base" if line.is_base else f"from {line.model}"
    return cell | {"mark": line.mark, "label": f"{line.mark}, {source}, {line.words}: {cell['label']}"}


def letter(number: int) -> str:
    """Return A to Z, then A2 to Z2 and so on."""
    times, place = divmod(number, len(ascii_uppercase))
    return f"{ascii_uppercase[place]}{times + 1 if times else ''}"


CELLS_MAX = 20_000
"""A hostile file could ask for a cell for each pair of its tensors."""
LISTED_MAX = 500
DENSE_SLOTS = 16
"""With more columns, cells are small and show their numbers when they are pointed at."""

READINGS = {
    "theta": "θ",
    "spectral": "spectral signal",
    "size": "size",
    "change": "change of θ",
    "alike": "likeness",
}
"""What cells can be coloured by. The last two need another model to compare with."""
COMPARED = ("change", "alike")

_SIDES = {"skeleton": 0, "norm": 1, "organ": 2}


def anatomy(organs: Sequence[PlacedOrgan], by: str, changes: Mapping[Place, OrganChange]) -> Context:
    """Return the grid of `organs` coloured by a key of READINGS.

    `changes` has what became of each organ, by its place, for the readings that compare two models.
    """
    inside = [organ for organ in organs if organ.block is not None]
    outside = [organ for organ in organs if organ.block is None]
    kinds = {organ.slot: organ.type for organ in inside}
    slots = sorted(kinds, key=lambda slot: (_SIDES.get(kinds[slot], 3), reading_order(slot), slot))
    rows = sorted({(organ.tower, organ.block) for organ in inside})
    if len(rows) * len(slots) > CELLS_MAX:
        return _listed(organs, by, changes)
    painter = _Painter(organs, by, changes)
    cells = {(organ.tower, organ.block, organ.slot): painter.cell(organ) for organ in inside}
    ends = [(is_after_blocks(organ.slot), painter.cell(organ)) for organ in outside]
    rough = any(cell["rough"] for cell in [*cells.values(), *(cell for _, cell in ends)])
    return {
        "slots": [{"name": slot, "type": kinds[slot]} for slot in slots],
        "rows": [
            {
                "label": str(block) if tower == "text" else f"{tower} {block}",
                "cells": [cells.get((tower, block, slot)) for slot in slots],
            }
            for tower, block in rows
        ],
        "head": [cell for behind, cell in ends if not behind][:LISTED_MAX],
        "foot": [cell for behind, cell in ends if behind][:LISTED_MAX],
        "left_out": max(0, len(outside) - LISTED_MAX),
        "dense": len(slots) > DENSE_SLOTS,
        "legend": painter.legend() | {"rough": rough},
    }


def _listed(organs: Sequence[PlacedOrgan], by: str, changes: Mapping[Place, OrganChange]) -> Context:
    """Return organs that are too many for a grid as a shortened list."""
    painter = _Painter(organs, by, changes)
    return {
        "slots": [],
        "rows": [],
        "head": [painter.cell(organ) for organ in organs[:LISTED_MAX]],
        "foot": [],
        "left_out": len(organs) - min(len(organs), LISTED_MAX),
        "dense": False,
        "legend": painter.legend(),
    }


def _short_size(size: float) -> str:
    """Return a size that fits into a cell: `197k`."""
    for unit in ("", "k", "M", "G"):
        if size < 999.5:
            return f"{size:.3g}{unit}"
        size /= 1000
    return f"{size:.3g}T"


class _Painter:
    """Cells in the colours of one reading, scaled over a whole model."""

    def __init__(self, organs: Iterable[PlacedOrgan], by: str, changes: Mapping[Place, OrganChange]) -> None:
        self.by = by
        self.changes = changes
        sizes = [organ.size_bytes for organ in organs]
        self.size_min, self.size_max = min(sizes, default=1), max(sizes, default=1)
        shifts = [abs(organ.theta_change) for organ in changes.values() if organ.theta_change is not None]
        self.shift_max = max([*shifts, 0.1])

    def cell(self, organ: PlacedOrgan) -> Context:
        """Return the cell of a placement: its colour, its number, and its label."""
        number, tone = self._reading(organ)
        label = f"{organ.name}: {READINGS[self.by]} {number}"
        label = label if self.by == "theta" else f"{label}, θ {theta_text(organ.theta)}"
        warning = caution_of(organ) if organ.theta is not None else ""
        return {
            "digest": organ.digest,
            "name": organ.name,
            "type": organ.type,
            "number": number,
            "tone": tone,
            "thin": organ.type == "norm",
            "rough": bool(warning) and self.by in ("theta", "change"),
            "label": f"{label}{warning and f' ({warning})'}",
        }

    def legend(self) -> Context:
        """Return the labels of the ends of the scale."""
        if self.by == "theta":
            return {"low": "θ 0° uniform", "middle": "", "high": "90° heavy tails; Gaussian: about 34°", "scale": "t"}
        if self.by == "spectral":
            return {"low": "0 random", "middle": "0.5", "high": "1 all structure", "scale": "s"}
        if self.by == "size":
            low, high = size_text(self.size_min), size_text(self.size_max)
            return {"low": low, "middle": "logarithmic", "high": high, "scale": "s"}
        if self.by == "alike":
            return {"low": "0 unrelated", "middle": "0.5", "high": "1 the same", "scale": "s"}
        most = theta_text(self.shift_max)
        return {"low": f"−{most}", "middle": "no change; = identical bytes", "high": f"+{most}", "scale": "d"}

    def _reading(self, organ: PlacedOrgan) -> tuple[str, str]:
        if self.by == "theta":
            return theta_text(organ.theta), theta_class(organ.theta)
        if self.by == "spectral":
            return share_text(organ.spectral_signal), share_class(organ.spectral_signal)
        if self.by == "size":
            return _short_size(organ.size_bytes), share_class(self._size_share(organ.size_bytes))
        change = self.changes.get((organ.tower, organ.block, organ.slot))
        if change is None:
            return "–", "tn"
        if self.by == "alike":
            return share_text(change.likeness), share_class(change.likeness)
        if change.identical:
            return "=", change_class(0.0, self.shift_max)
        shift = change.theta_change
        return ("–" if shift is None else f"{shift:+.1f}°"), change_class(shift, self.shift_max)

    def _size_share(self, size: int) -> float:
        low, high = math.log(max(self.size_min, 1)), math.log(max(self.size_max, 1))
        return 0.5 if high <= low else (math.log(max(size, 1)) - low) / (high - low)


ROWS_MAX = 600
"""A hostile file could have as many blocks as tensors."""
PURIFIED = "✱"

_COLUMNS = ("skeleton", "norm", "organ")


def letters(parents: Sequence[str]) -> dict[str, str]:
    """Return a letter for each parent but the base, which is the first."""
    return {name: letter(number) for number, name in enumerate(parents[1:])}


def cell_grid(
    cells: Sequence[CellTotals], marks: Mapping[str, str], chosen: str, address: Callable[[str], str]
) -> Context:
    """Return `cells` as rows; `marks` has the parents' letters, `address` gives the page of a cell."""
    painted = {cell.cell: _painted(cell, marks, chosen, address) for cell in cells}
    inside = [cell for cell in cells if cell.block is not None]
    types = {cell.type for cell in inside}
    kinds = [*(kind for kind in _COLUMNS if kind in types), *sorted(types.difference(_COLUMNS))]
    rows = sorted({(cell.tower, cell.block or 0) for cell in inside})
    places = {(cell.tower, cell.block, cell.type): painted[cell.cell] for cell in inside}
    return {
        "kinds": kinds,
        "rows": [
            {
                "label": str(block) if tower == "text" else f"{tower} {block}",
                "cells": [places.get((tower, block, kind)) for kind in kinds],
            }
            for tower, block in rows[:ROWS_MAX]
        ],
        "left_out": max(0, len(rows) - ROWS_MAX),
        "outside": [painted[cell.cell] for cell in cells if cell.block is None],
        "is_computed": any(cell.to_compute for cell in cells),
        "is_purified": any(cell.purified for cell in cells),
    }


def _painted(cell: CellTotals, marks: Mapping[str, str], chosen: str, address: Callable[[str], str]) -> Context:
    signs = [*(marks[name] for name in cell.models if name in marks), *([PURIFIED] if cell.purified else [])]
    where = "outside the blocks" if cell.block is None else f"block {cell.block}"
    tower = "" if cell.tower == "text" else f"{cell.tower} "
    number = theta_text(cell.theta_taken)
    theta = f"θ {number}{' before computing' if cell.to_compute else ''}"
    label = f"{tower}{where}, {kind_name(cell.type)}: {theta}, {cell.organs} organ{'s' if cell.organs != 1 else ''}"
    if cell.models:
        label += f", from {' and '.join(cell.models)}"
    return {
        "key": cell.cell,
        "type": cell.type,
        "tone": theta_class(cell.theta_taken),
        "number": f"({number})" if cell.to_compute else number,
        "sign": "".join(signs),
        "label": label + (", purified" if cell.purified else ""),
        "chosen": cell.cell == chosen,
        "address": address(cell.cell),
    }
