"""Where the organs of a chimera come from, as letters in its anatomy grid. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from string import ascii_uppercase

from organs.registry.present.values import Values

ACTS = {"grafted": "grafted", "adapter": "an adapter added", "purified": "purified"}
"""What was done to an organ, in words."""

Place = tuple[str, int | None, str]
"""Tower, block and slot."""


def acts_text(acts: Sequence[str]) -> str:
    """What was done, in words: `grafted, then purified`."""
    return ", then ".join(ACTS[act] for act in acts)


def legend(parts: Iterable[Values], base: str) -> list[Values]:
    """A letter for each parent and what was done with its organs, in the order of the parts; with how many these are.

    `mark` is the letter, `model` the parent, `words` what was done.
    """
    counts: dict[tuple[str, ...], int] = {}
    for part in parts:
        key = (part["from"], *part["acts"])
        counts[key] = counts.get(key, 0) + 1
    return [
        {
            "mark": letter(number),
            "model": model,
            "is_base": model == base,
            "acts": list(acts),
            "words": acts_text(acts),
            "organs": count,
        }
        for number, ((model, *acts), count) in enumerate(counts.items())
    ]


def marks(parts: Iterable[Values], shown: Iterable[Values]) -> dict[str, Values]:
    """The line of the legend `shown` that each part belongs to, by the tensor's name."""
    lines = _by_key(shown)
    return {part["name"]: lines[part["from"], *part["acts"]] for part in parts}


def with_marks(runs: Iterable[Values], shown: Iterable[Values]) -> list[Values]:
    """The changes of runs of blocks, each with the letter of its line in the legend `shown`."""
    lines = _by_key(shown)
    return [run | {"mark": lines[run["from"], *run["acts"]]["mark"]} for run in runs]


def marked(grid: Values, by_name: Mapping[str, Values]) -> Values:
    """`grid`, as `web.pages.anatomy` gives it, with the letter of each cell that is not the base's own."""
    rows = [row | {"cells": [_cell(one, by_name) for one in row["cells"]]} for row in grid["rows"]]
    ends = {end: [_cell(one, by_name) for one in grid[end]] for end in ("head", "foot")}
    return grid | ends | {"rows": rows, "lettered": True}


def changes(placements: Iterable[Values], parts: Iterable[Values]) -> dict[Place, Values]:
    """What became of each organ of the base, for a grid that is coloured by it. Likeness is not known here."""
    changed = {part["name"]: part for part in parts}
    return {(one["tower"], one["block"], one["slot"]): _change(changed.get(one["name"])) for one in placements}


def _by_key(shown: Iterable[Values]) -> dict[tuple[str, ...], Values]:
    return {(line["model"], *line["acts"]): line for line in shown}


def _change(part: Values | None) -> Values:
    if part is None:
        return {"theta_change": 0.0, "likeness": None, "identical": True}
    before, after = part["theta_before"], part["theta"]
    shift = None if before is None or after is None else after - before
    return {"theta_change": shift, "likeness": None, "identical": False}


def _cell(cell: Values | None, by_name: Mapping[str, Values]) -> Values | None:
    line = None if cell is None else by_name.get(cell["name"])
    if cell is None or line is None:
        return cell
    source = "the base's own" if line["is_base"] else f"of {line['model']}"
    return cell | {"mark": line["mark"], "said": f"{line['mark']}, {source}, {line['words']}: {cell['said']}"}


def letter(number: int) -> str:
    """A to Z, then A2 to Z2 and so on."""
    times, place = divmod(number, len(ascii_uppercase))
    return f"{ascii_uppercase[place]}{times + 1 if times else ''}"
