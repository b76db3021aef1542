"""The cells of a base that is composed with: blocks as rows, types as columns, each cell with whom it comes from. Pure.

Colour is θ. Where an organ comes from is told by letters, which the legend explains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from organs.registry.present.text import theta_text
from organs.registry.present.values import Values
from organs.web.pages.donors import letter
from organs.web.shown import theta_class

ROWS_MAX = 600
"""A hostile file could have as many blocks as tensors."""
PURIFIED = "✱"

_COLUMNS = ("skeleton", "norm", "organ")


def letters(parents: Sequence[str]) -> dict[str, str]:
    """A letter for each parent but the base, which is the first."""
    return {name: letter(number) for number, name in enumerate(parents[1:])}


def cell_grid(cells: Sequence[Values], marks: Mapping[str, str], chosen: str, address: Callable[[str], str]) -> Values:
    """`cells` as rows; `marks` has the parents' letters, `address` gives the page on which a cell is looked at."""
    painted = {one["cell"]: _painted(one, marks, chosen, address) for one in cells}
    inside = [one for one in cells if one["block"] is not None]
    found = {one["type"] for one in inside}
    kinds = [*(kind for kind in _COLUMNS if kind in found), *sorted(found.difference(_COLUMNS))]
    rows = sorted({(one["tower"], one["block"]) for one in inside})
    places = {(one["tower"], one["block"], one["type"]): painted[one["cell"]] for one in inside}
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
        "outside": [painted[one["cell"]] for one in cells if one["block"] is None],
        "is_computed": any(one["to_compute"] for one in cells),
        "is_purified": any(one["purified"] for one in cells),
    }


def _painted(one: Values, marks: Mapping[str, str], chosen: str, address: Callable[[str], str]) -> Values:
    signs = [*(marks[name] for name in one["from"] if name in marks), *([PURIFIED] if one["purified"] else [])]
    where = "outside the blocks" if one["block"] is None else f"block {one['block']}"
    tower = "" if one["tower"] == "text" else f"{one['tower']} "
    number = theta_text(one["theta_taken"])
    theta = f"θ {number}{' before it is computed' if one['to_compute'] else ''}"
    said = f"{tower}{where}, {one['type']}: {theta}, {one['organs']} organ{'s' if one['organs'] != 1 else ''}"
    if one["from"]:
        said += f", from {' and '.join(one['from'])}"
    return {
        "key": one["cell"],
        "type": one["type"],
        "tone": theta_class(one["theta_taken"]),
        "number": f"({number})" if one["to_compute"] else number,
        "sign": "".join(signs),
        "said": said + (", purified" if one["purified"] else ""),
        "chosen": one["cell"] == chosen,
        "address": address(one["cell"]),
    }
