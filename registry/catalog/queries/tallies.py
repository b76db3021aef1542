"""How many visible placements there are, by the roll-up that registering keeps."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from registry.catalog.bins import theta_bin
from registry.catalog.queries.bounds import ranges, stretch
from registry.catalog.queries.narrow import Narrowed
from registry.catalog.tables import Facet, FacetCount


def count_by_type(session: Session, narrowed: Narrowed) -> dict[str, int]:
    """Visible placements of each type whose facet matches; every bin of θ that may match counts as a whole."""
    statement = select(Facet.type, func.sum(FacetCount.placements)).join(FacetCount, FacetCount.facet_id == Facet.id)
    statement = statement.where(*narrowed.facet_conditions)
    if ranges(narrowed.numbers, "theta"):
        low, high = stretch(narrowed.numbers, "theta")
        statement = statement.where(FacetCount.theta_bin >= theta_bin(low or 0.0))
        if high is not None:
            statement = statement.where(FacetCount.theta_bin <= high)
    counted = session.execute(statement.group_by(Facet.type).order_by(Facet.type))
    return {kind: int(number) for kind, number in counted if number}


def all_counts(session: Session) -> list[tuple[int, int, int]]:
    """Facet id, bin of θ, and how many visible placements it has."""
    statement = select(FacetCount.facet_id, FacetCount.theta_bin, FacetCount.placements)
    return [(facet_id, lower, count) for facet_id, lower, count in session.execute(statement) if count]
