"""The roll-up of counts over visible placements, kept by whoever registers, so that no page ever counts the catalog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sqlalchemy.orm import Session

from registry.catalog.tables import Facet, Model, Placement
from registry.catalog.upsert import insert_or_add

THETA_BIN_DEGREES = 5
THETA_MAX_DEGREES = 90


def theta_bin(theta: float | None) -> str:
    """The lower edge of the bin of `theta` in degrees, two digits; 90 counts into the last bin."""
    if theta is None:
        return "none"
    lower = int(theta // THETA_BIN_DEGREES) * THETA_BIN_DEGREES
    return f"{max(0, min(lower, THETA_MAX_DEGREES - THETA_BIN_DEGREES)):02d}"


def count_placements(session: Session, model: Model, placements: Iterable[Placement], sign: int = 1) -> None:
    """Add (or, with `sign` -1, take away) a model's placements from the counts."""
    counts: Counter[tuple[str, str]] = Counter()
    for placement in placements:
        counts["type", placement.type] += sign
        counts["slot", placement.slot] += sign
        counts["dtype", placement.dtype] += sign
        counts["architecture", model.architecture or "none"] += sign
        counts["license", model.license or "none"] += sign
        counts["theta", theta_bin(placement.theta)] += sign
    rows = [{"field": field, "value": value, "placements": number} for (field, value), number in sorted(counts.items())]
    insert_or_add(session, Facet, ["field", "value"], "placements", rows)
