"""The scale of change: 1 - likeness, logarithmic, because most related models have a likeness of 0.99 and more."""

from __future__ import annotations

import math

from organs.registry.amounts import DIFFERENCE_MIN

STEPS = 9
"""Classes of the scale, `c0` (nearly the same) to `c8` (unrelated)."""
WIDEST = 1.0


def change_share(likeness: float) -> float:
    """Return the place of a likeness on the logarithmic scale, from 0 (0.0001 and less) to 1 (unrelated)."""
    change = min(max(1.0 - likeness, DIFFERENCE_MIN), WIDEST)
    return math.log(change / DIFFERENCE_MIN) / math.log(WIDEST / DIFFERENCE_MIN)


def change_tone(likeness: float | None) -> str:
    """Return the CSS class of the colour of a change, for the likeness of two organs or models; `tn` for None."""
    return "tn" if likeness is None else f"c{min(int(change_share(likeness) * STEPS), STEPS - 1)}"
