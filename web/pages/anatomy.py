"""The anatomy grid: a model's blocks as rows and its slots as columns, each cell coloured by a reading. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from organs.registry.anatomy import is_behind_blocks, reading_order
from organs.registry.present.text import share_text, size_text, theta_text
from organs.registry.present.values import Values
from organs.web.shown import caution_of, change_class, share_class, theta_class

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


def anatomy(placements: Sequence[Values], by: str, changes: Mapping[tuple[str, int | None, str], Values]) -> Values:
    """The grid of `placements` (as on a model's page) coloured by a key of READINGS.

    `changes` has `theta_change` in degrees, `likeness` and `identical` by tower, block and slot.
    """
    inside = [one for one in placements if one["block"] is not None]
    outside = [one for one in placements if one["block"] is None]
    kinds = {one["slot"]: one["type"] for one in inside}
    slots = sorted(kinds, key=lambda slot: (_SIDES.get(kinds[slot], 3), reading_order(slot), slot))
    rows = sorted({(one["tower"], one["block"]) for one in inside})
    if len(rows) * len(slots) > CELLS_MAX:
        return _listed(placements, by, changes)
    painter = _Painter(placements, by, changes)
    cells = {(one["tower"], one["block"], one["slot"]): painter.cell(one) for one in inside}
    ends = [(is_behind_blocks(one["slot"]), painter.cell(one)) for one in outside]
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


def _listed(placements: Sequence[Values], by: str, changes: Mapping[tuple[str, int | None, str], Values]) -> Values:
    """What is too wide and too long for a grid, as a list that is cut."""
    painter = _Painter(placements, by, changes)
    return {
        "slots": [],
        "rows": [],
        "head": [painter.cell(one) for one in placements[:LISTED_MAX]],
        "foot": [],
        "left_out": len(placements) - min(len(placements), LISTED_MAX),
        "dense": False,
        "legend": painter.legend(),
    }


def _short_size(size: float) -> str:
    """A size that fits into a cell: `197k`."""
    for unit in ("", "k", "M", "G"):
        if size < 999.5:
            return f"{size:.3g}{unit}"
        size /= 1000
    return f"{size:.3g}T"


class _Painter:
    """Cells in the colours of one reading, scaled over a whole model."""

    def __init__(
        self, placements: Iterable[Values], by: str, changes: Mapping[tuple[str, int | None, str], Values]
    ) -> None:
        self.by = by
        self.changes = changes
        sizes = [one["size_bytes"] for one in placements]
        self.size_min, self.size_max = min(sizes, default=1), max(sizes, default=1)
        shifts = [abs(one["theta_change"]) for one in changes.values() if one["theta_change"] is not None]
        self.shift_max = max([*shifts, 0.1])

    def cell(self, one: Values) -> Values:
        """A placement with its colour, its number, and what is said when it is pointed at."""
        number, tone = self._reading(one)
        said = f"{one['name']}: {READINGS[self.by]} {number}"
        said = said if self.by == "theta" else f"{said}, θ {theta_text(one['theta'])}"
        warning = caution_of(one) if one["theta"] is not None else ""
        return {
            "digest": one["digest"],
            "name": one["name"],
            "type": one["type"],
            "number": number,
            "tone": tone,
            "thin": one["type"] == "norm",
            "rough": bool(warning) and self.by in ("theta", "change"),
            "said": f"{said}{warning and f' ({warning})'}",
        }

    def legend(self) -> Values:
        """The ends of the scale in words."""
        if self.by == "theta":
            return {"low": "0° even noise", "middle": "45°", "high": "90° few strong weights", "scale": "t"}
        if self.by == "spectral":
            return {"low": "0 chance", "middle": "0.5", "high": "1 all pattern", "scale": "s"}
        if self.by == "size":
            low, high = size_text(self.size_min), size_text(self.size_max)
            return {"low": low, "middle": "by its logarithm", "high": high, "scale": "s"}
        if self.by == "alike":
            return {"low": "0 strangers", "middle": "0.5", "high": "1 the same", "scale": "s"}
        most = theta_text(self.shift_max)
        return {"low": f"−{most}", "middle": "no change; = the same bytes", "high": f"+{most}", "scale": "d"}

    def _reading(self, one: Values) -> tuple[str, str]:
        if self.by == "theta":
            return theta_text(one["theta"]), theta_class(one["theta"])
        if self.by == "spectral":
            return share_text(one["spectral_signal"]), share_class(one["spectral_signal"])
        if self.by == "size":
            return _short_size(one["size_bytes"]), share_class(self._size_share(one["size_bytes"]))
        change = self.changes.get((one["tower"], one["block"], one["slot"]))
        if change is None:
            return "–", "tn"
        if self.by == "alike":
            return share_text(change["likeness"]), share_class(change["likeness"])
        if change["identical"]:
            return "=", change_class(0.0, self.shift_max)
        shift = change["theta_change"]
        return ("–" if shift is None else f"{shift:+.1f}°"), change_class(shift, self.shift_max)

    def _size_share(self, size: int) -> float:
        low, high = math.log(max(self.size_min, 1)), math.log(max(self.size_max, 1))
        return 0.5 if high <= low else (math.log(max(size, 1)) - low) / (high - low)
