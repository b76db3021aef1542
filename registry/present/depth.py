"""θ along the depth of a model as plain values: what the organs of each type read, block by block."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from organs.registry.entities.organ import PlacedOrgan
from organs.registry.present.values import Values

BLOCKS_MAX = 400
"""Blocks that are followed; the largest models of today have some hundreds, a hostile file any number."""


def depth_values(organs: Iterable[PlacedOrgan]) -> list[Values]:
    """A row a type and block, in the order of the types' names, then of the blocks: lowest, mean, highest θ in degrees.

    `position` counts the blocks of all towers, one tower behind the other, from
    0. Organs outside the blocks and those without a θ are left out, and blocks beyond the first 400.
    """
    found: dict[tuple[str, str, int], list[float]] = {}
    blocks = set()
    for one in organs:
        if one.block is not None:
            blocks.add((one.tower, one.block))
            if one.theta is not None:
                found.setdefault((one.type, one.tower, one.block), []).append(one.theta)
    positions = {place: position for position, place in enumerate(sorted(blocks)[:BLOCKS_MAX])}
    return [
        {
            "type": kind,
            "tower": tower,
            "block": block,
            "position": positions[tower, block],
            "tensors": len(thetas),
            "lowest_theta": min(thetas),
            "mean_theta": fmean(thetas),
            "highest_theta": max(thetas),
        }
        for (kind, tower, block), thetas in sorted(found.items())
        if (tower, block) in positions
    ]
