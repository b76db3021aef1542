"""The anatomy grid: blocks as rows, slots or types as columns, a reading as the colour, letters for donors."""

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
"""Words for what a recipe did to an organ."""

Place = tuple[str, int | None, str]
"""Tower, block and slot."""


def acts_text(acts: Sequence[str]) -> str:
    """Return the words for `acts`: `grafted, then purified`."""
    return ", then ".join(ACTS[act] for act in acts)


@dataclass(frozen=True, slots=True)
class LegendLine:
    """A line of the legend: a letter, a parent, what was done to its organs, and how many organs."""

    mark: str
    model: str
    is_base: bool
    acts: tuple[str, ...]
    organs: int

    @property
    def words(self) -> str:
        """Words for what was done to the organs."""
        return acts_text(self.acts)


def legend(parts: Iterable[PlanPart], base: str) -> list[LegendLine]:
    """Return a line for each pair of a parent and acts, in the order of the parts."""
    counts: dict[tuple[str, ...], int] = {}
    for part in parts:
        key = (part.model, *part.acts)
        counts[key] = counts.get(key, 0) + 1
    return [
        LegendLine(letter(number), model, model == base, tuple(acts), count)
        for number, ((model, *acts), count) in enumerate(counts.items())
    ]


def marks(parts: Iterable[PlanPart], shown: Iterable[LegendLine]) -> dict[str, LegendLine]:
    """Return the line of the legend `shown` for each part, by tensor name."""
    lines = _lines_by_key(shown)
    return {part.name: lines[part.model, *part.acts] for part in parts}


def with_marks(runs: Iterable[PlanChange], shown: Iterable[LegendLine]) -> list[tuple[str, PlanChange]]:
    """Return the changes of runs of blocks, each with its letter in the legend `shown`."""
    lines = _lines_by_key(shown)
    return [(lines[run.model, *run.acts].mark, run) for run in runs]


def marked(grid: Context, by_name: Mapping[str, LegendLine]) -> Context:
    """Return `grid` with the letter of each changed cell."""
    rows = [row | {"cells": [_with_mark(cell, by_name) for cell in row["cells"]]} for row in grid["rows"]]
    ends = {end: [_with_mark(cell, by_name) for cell in grid[end]] for end in ("head", "foot")}
    return grid | ends | {"rows": rows, "lettered": True}


def changes(organs: Iterable[PlacedOrgan], parts: Iterable[PlanPart]) -> dict[Place, OrganChange]:
    """Return the change of each organ of the base, to colour a grid. The likeness is always None."""
    parts_by_name = {part.name: part for part in parts}
    return {(organ.tower, organ.block, organ.slot): _change_of(parts_by_name.get(organ.name)) for organ in organs}


def _lines_by_key(shown: Iterable[LegendLine]) -> dict[tuple[str, ...], LegendLine]:
    return {(line.model, *line.acts): line for line in shown}


def _change_of(part: PlanPart | None) -> OrganChange:
    if part is None:
        return OrganChange(theta_change=0.0, likeness=None, identical=True)
    before, after = part.theta_before, part.theta
    shift = None if before is None or after is None else after - before
    return OrganChange(theta_change=shift, likeness=None, identical=False)


def _with_mark(cell: Context | None, by_name: Mapping[str, LegendLine]) -> Context | None:
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
"""The limit is for hostile files: their grid can have a cell for each pair of tensors."""
LISTED_MAX = 500
DENSE_SLOTS = 16
"""With more columns, cells are small and show their number only under the pointer."""

READINGS = {
    "theta": "θ",
    "spectral": "spectral signal",
    "size": "size",
    "change": "change of θ",
    "alike": "likeness",
}
"""Readings that can colour cells, with their names. The last two compare with another model."""
COMPARED = ("change", "alike")

_TYPE_ORDER = {"skeleton": 0, "norm": 1, "organ": 2}


def anatomy(organs: Sequence[PlacedOrgan], by: str, changes: Mapping[Place, OrganChange]) -> Context:
    """Return the grid of `organs` coloured by a key of READINGS.

    `changes` has the change of each organ by its place. Only the readings in COMPARED use it.
    """
    inside = [organ for organ in organs if organ.block is not None]
    outside = [organ for organ in organs if organ.block is None]
    kinds = {organ.slot: organ.type for organ in inside}
    slots = sorted(kinds, key=lambda slot: (_TYPE_ORDER.get(kinds[slot], 3), reading_order(slot), slot))
    rows = sorted({(organ.tower, organ.block) for organ in inside})
    if len(rows) * len(slots) > CELLS_MAX:
        return _listed(organs, by, changes)
    painter = _Painter(organs, by, changes)
    cells = {(organ.tower, organ.block, organ.slot): painter.cell(organ) for organ in inside}
    end_cells = [(is_after_blocks(organ.slot), painter.cell(organ)) for organ in outside]
    rough = any(cell["rough"] for cell in [*cells.values(), *(cell for _, cell in end_cells)])
    return {
        "slots": [{"name": slot, "type": kinds[slot]} for slot in slots],
        "rows": [
            {
                "label": str(block) if tower == "text" else f"{tower} {block}",
                "cells": [cells.get((tower, block, slot)) for slot in slots],
            }
            for tower, block in rows
        ],
        "head": [cell for is_after, cell in end_cells if not is_after][:LISTED_MAX],
        "foot": [cell for is_after, cell in end_cells if is_after][:LISTED_MAX],
        "left_out": max(0, len(outside) - LISTED_MAX),
        "dense": len(slots) > DENSE_SLOTS,
        "legend": painter.legend() | {"rough": rough},
    }


def _listed(organs: Sequence[PlacedOrgan], by: str, changes: Mapping[Place, OrganChange]) -> Context:
    """Return the first LISTED_MAX organs as a list, for a model with too many cells for a grid."""
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
    """Return a size as a text that is short enough for a cell: `197k`."""
    for unit in ("", "k", "M", "G"):
        if size < 999.5:
            return f"{size:.3g}{unit}"
        size /= 1000
    return f"{size:.3g}T"


class _Painter:
    """Paints cells by one reading. The scale covers the whole model."""

    def __init__(self, organs: Iterable[PlacedOrgan], by: str, changes: Mapping[Place, OrganChange]) -> None:
        self.by = by
        self.changes = changes
        sizes = [organ.size_bytes for organ in organs]
        self.size_min, self.size_max = min(sizes, default=1), max(sizes, default=1)
        shifts = [abs(organ.theta_change) for organ in changes.values() if organ.theta_change is not None]
        self.shift_max = max([*shifts, 0.1])

    def cell(self, organ: PlacedOrgan) -> Context:
        """Return the cell of a placed organ: its colour, its number and its label."""
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
        limit = theta_text(self.shift_max)
        return {"low": f"−{limit}", "middle": "no change; = identical bytes", "high": f"+{limit}", "scale": "d"}

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
"""The limit is for hostile files: they can have as many blocks as tensors."""
PURIFIED = "✱"

_TYPE_COLUMNS = ("skeleton", "norm", "organ")


def letters(parents: Sequence[str]) -> dict[str, str]:
    """Return a letter for each parent except the first, which is the base."""
    return {name: letter(number) for number, name in enumerate(parents[1:])}


def cell_grid(
    cells: Sequence[CellTotals], marks: Mapping[str, str], chosen: str, address: Callable[[str], str]
) -> Context:
    """Return `cells` as rows. `marks` has the letters of the parents; `address` returns the address of a cell."""
    cell_contexts = {cell.cell: _cell_context(cell, marks, chosen, address) for cell in cells}
    inside = [cell for cell in cells if cell.block is not None]
    types = {cell.type for cell in inside}
    kinds = [*(kind for kind in _TYPE_COLUMNS if kind in types), *sorted(types.difference(_TYPE_COLUMNS))]
    rows = sorted({(cell.tower, cell.block or 0) for cell in inside})
    places = {(cell.tower, cell.block, cell.type): cell_contexts[cell.cell] for cell in inside}
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
        "outside": [cell_contexts[cell.cell] for cell in cells if cell.block is None],
        "is_computed": any(cell.to_compute for cell in cells),
        "is_purified": any(cell.purified for cell in cells),
    }


def _cell_context(cell: CellTotals, marks: Mapping[str, str], chosen: str, address: Callable[[str], str]) -> Context:
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
