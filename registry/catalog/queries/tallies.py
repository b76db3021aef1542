"""How many visible placements there are, by the roll-up that registering keeps."""

from __future__ import annotations

from bisect import bisect_right

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from organs.registry.catalog.bins import theta_bin
from organs.registry.catalog.memory import remembered
from organs.registry.catalog.queries.bounds import ranges, stretch
from organs.registry.catalog.queries.narrow import Narrowed
from organs.registry.catalog.queries.rollup import BINS, held_roll_up, sums
from organs.registry.catalog.tables import Facet, FacetCount


def count_by_type(session: Session, narrowed: Narrowed) -> dict[str, int]:
    """Visible placements of each type whose facet matches; every bin of θ that may match counts as a whole."""
    held = held_roll_up(session)
    if held is None:
        return _counted_by_the_database(session, narrowed)
    filters = narrowed.facet_filters
    first, last = 0, len(BINS)
    if ranges(narrowed.numbers, "theta"):
        low, high = stretch(narrowed.numbers, "theta")
        first = BINS.index(theta_bin(low or 0.0))
        last = last if high is None else max(first, bisect_right(BINS, high))

    def count() -> dict[str, int]:
        counted = sums(held.columns["type"], held.counts(first, last), held.mask(filters))
        return {kind: int(number) for kind, number in sorted(counted.items()) if number}

    return remembered(session, ("by type", frozenset(filters), first, last), count)


def _counted_by_the_database(session: Session, narrowed: Narrowed) -> dict[str, int]:
    statement = select(Facet.type, func.sum(FacetCount.placements)).join(FacetCount, FacetCount.facet_id == Facet.id)
    statement = statement.where(*narrowed.facet_conditions)
    if ranges(narrowed.numbers, "theta"):
        low, high = stretch(narrowed.numbers, "theta")
        statement = statement.where(FacetCount.theta_bin >= theta_bin(low or 0.0))
        if high is not None:
            statement = statement.where(FacetCount.theta_bin <= high)
    counted = session.execute(statement.group_by(Facet.type).order_by(Facet.type))
    return {kind: int(number) for kind, number in counted if number}
