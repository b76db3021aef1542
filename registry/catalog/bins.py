"""The bins in which θ is counted: 5 degrees each, named by their lower edge."""

from __future__ import annotations

BIN_DEGREES = 5
THETA_MAX_DEGREES = 90
UNMEASURED = -1
"""The bin of what has no θ."""


def theta_bin(theta: float | None) -> int:
    """The lower edge of the bin of `theta`, in degrees; 90 counts into the last bin."""
    if theta is None:
        return UNMEASURED
    lower = int(theta // BIN_DEGREES) * BIN_DEGREES
    return max(0, min(lower, THETA_MAX_DEGREES - BIN_DEGREES))
