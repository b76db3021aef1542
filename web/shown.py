"""How numbers become classes of the stylesheet: the policy forbids inline styles, so colours come in steps."""

from __future__ import annotations

THETA_STEPS = 18
THETA_MAX_DEGREES = 90


def theta_class(theta: float | None) -> str:
    """The class of the colour of θ: `t0` (noise) to `t17` (signal), `tn` where it was not measured."""
    if theta is None:
        return "tn"
    step = int(theta / THETA_MAX_DEGREES * THETA_STEPS)
    return f"t{max(0, min(step, THETA_STEPS - 1))}"
