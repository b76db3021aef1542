"""Facets: the combinations of type, tower, slot, dtype, architecture and license that organs have, with their counts.

A roll-up of all facets is kept in memory. It tells what a filter leaves without reading the organs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress, pairwise
from operator import and_ as bitwise_and
from operator import sub
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from organs.registry.catalog.cache import cached
from organs.registry.catalog.tables import Facet, FacetCount
from organs.registry.catalog.vocabulary import BIN_DEGREES, THETA_MAX_DEGREES, UNMEASURED

FACETS_MAX = 20_000
"""The most facets that are kept in memory, about a kilobyte each. If there are more, each search reads the database."""

FACET_COLUMNS = {
    "type": Facet.type,
    "tower": Facet.tower,
    "slot": Facet.slot,
    "dtype": Facet.dtype,
    "arch": Facet.architecture,
    "license": Facet.license,
}
BINS = (UNMEASURED, *range(0, THETA_MAX_DEGREES, BIN_DEGREES))
"""The lower edges of the bins, in the order of a roll-up."""

Mask = Sequence[bool]
"""Whether each facet is selected, by its position."""


@dataclass(frozen=True, slots=True)
class FacetFilter:
    """A filter on a column of facets: the values that match, or with `negated` those that do not."""

    field: str
    values: frozenset[str]
    negated: bool = False

    @property
    def condition(self) -> ColumnElement[bool]:
        """The filter in SQL."""
        column = FACET_COLUMNS[self.field]
        return column.not_in(sorted(self.values)) if self.negated else column.in_(sorted(self.values))


@dataclass(frozen=True, slots=True)
class RollUp:
    """The facets of visible placements, by position, with their counts."""

    positions: Mapping[int, int]
    """Position by facet id."""
    columns: Mapping[str, Sequence[str]]
    """The value of each facet, by field."""
    different: Mapping[str, Sequence[str]]
    """The different values, sorted, by field."""
    before: Sequence[Sequence[int]]
    """For each of `BINS`, and for the end, the number of placements in all bins before it, by facet."""

    def mask(self, filters: Iterable[FacetFilter]) -> Mask:
        """Return a mask of the facets that match all `filters`."""
        mask: Mask = [True] * len(self.positions)
        for own in filters:
            values = {value for value in self.different[own.field] if (value in own.values) is not own.negated}
            mask = list(map(bitwise_and, mask, map(values.__contains__, self.columns[own.field])))
        return mask

    def counts(self, first: int = 0, last: int = len(BINS)) -> Sequence[int]:
        """Return the number of placements in `BINS[first:last]`, by facet."""
        return list(map(sub, self.before[last], self.before[first]))

    def shared(self, shares: Sequence[float]) -> Sequence[float]:
        """Return the weighted number of placements, by facet; `shares` has one weight for each of `BINS`."""
        total = [0.0] * len(self.positions)
        for column, (share, next_share) in zip(self.before, pairwise([0.0, *shares, 0.0]), strict=True):
            if share != next_share:  # most shares are 0 or 1, so there are few steps
                total = [count + (share - next_share) * number for count, number in zip(total, column, strict=True)]
        return total

    def histogram(self, mask: Mask) -> dict[int, int]:
        """Return the number of placements of the facets in `mask`, by the lower edge of each bin that is not empty."""
        before = [sum(compress(column, mask)) for column in self.before]
        return {lower: end - begin for lower, (begin, end) in zip(BINS, pairwise(before), strict=True) if end > begin}


def sums(values: Sequence[str], counts: Sequence[float], mask: Mask) -> dict[str, float]:
    """Return the sum of the counts where `mask` is true, by value."""
    totals: dict[str, float] = {}
    for value, count in zip(compress(values, mask), compress(counts, mask), strict=True):
        totals[value] = totals.get(value, 0) + count
    return totals


def held_roll_up(session: Session) -> RollUp | None:
    """Return the cached roll-up, as `session` sees it; None if there are more than `FACETS_MAX` facets."""

    def read() -> RollUp | None:
        number = session.scalar(select(func.count()).select_from(select(Facet.id).limit(FACETS_MAX + 1).subquery()))
        return read_roll_up(session) if (number or 0) <= FACETS_MAX else None

    return cached(session, "facets", read)


def read_roll_up(session: Session) -> RollUp:
    """Read the roll-up, for any number of facets."""
    indexes = {lower: index for index, lower in enumerate(BINS)}
    counts: dict[int, list[int]] = {}
    for facet_id, lower, count in session.execute(
        select(FacetCount.facet_id, FacetCount.theta_bin, FacetCount.placements).where(FacetCount.placements > 0)
    ):
        counts.setdefault(facet_id, [0] * len(BINS))[indexes[lower]] += count
    statement = select(Facet.id, *FACET_COLUMNS.values()).order_by(Facet.id)
    facets: list[Any] = [row for row in session.execute(statement) if row[0] in counts]
    sums_before = [list(accumulate(counts[row[0]], initial=0)) for row in facets]
    columns = {name: [row[index] for row in facets] for index, name in enumerate(FACET_COLUMNS, 1)}
    return RollUp(
        positions={row[0]: position for position, row in enumerate(facets)},
        columns=columns,
        different={name: sorted(set(column)) for name, column in columns.items()},
        before=[list(column) for column in zip(*sums_before, strict=True)] or [[]] * (len(BINS) + 1),
    )
