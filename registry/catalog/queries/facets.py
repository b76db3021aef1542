"""The counts of facets by bins of θ, held in memory: what a search's plan and the counts beside it are made of.

There are some thousands of facets. They are read once a version of the catalog; after that, a query by facets and θ is
counted without a word to the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress, groupby
from operator import add, and_, sub
from typing import Any, Protocol

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from organs.registry.catalog.memory import remembered
from organs.registry.catalog.tables import Facet, FacetCount
from organs.registry.catalog.vocabulary import (
    BIN_DEGREES,
    THETA_MAX_DEGREES,
    UNMEASURED,
)

FACETS_MAX = 20_000
"""That are held, at about a kilobyte each. Where there are more, the database is asked every time."""

FACET_COLUMNS = {
    "type": Facet.type,
    "tower": Facet.tower,
    "slot": Facet.slot,
    "dtype": Facet.dtype,
    "arch": Facet.architecture,
    "license": Facet.license,
}
BINS = (UNMEASURED, *range(0, THETA_MAX_DEGREES, BIN_DEGREES))
"""The lower edges of the bins, in the order in which they are held."""

Mask = Sequence[bool]
"""By the position of a facet, whether it is meant."""


class Filter(Protocol):
    """Which values of a field are wanted."""

    @property
    def field(self) -> str:
        """Its name."""

    def takes(self, value: str) -> bool:
        """Whether a facet with `value` matches."""


@dataclass(frozen=True, slots=True)
class RollUp:
    """The facets that visible placements have, by position, with their counts."""

    positions: Mapping[int, int]
    """By facet id."""
    columns: Mapping[str, Sequence[str]]
    """By field, each facet's value."""
    different: Mapping[str, Sequence[str]]
    """By field, the different values, sorted."""
    bins: Sequence[Sequence[int]]
    """For each of `BINS`: by facet, how many placements lie in it."""
    before: Sequence[Sequence[int]]
    """For each of `BINS`, and the end: by facet, how many placements lie in the bins before it."""

    @property
    def everything(self) -> Mask:
        """All facets."""
        return [True] * len(self.positions)

    def mask(self, filters: Iterable[Filter]) -> Mask:
        """The facets that all `filters` take."""
        mask = self.everything
        for one in filters:
            taken = {value for value in self.different[one.field] if one.takes(value)}
            mask = list(map(and_, mask, map(taken.__contains__, self.columns[one.field])))
        return mask

    def counts(self, first: int = 0, last: int = len(BINS)) -> Sequence[int]:
        """By facet, the placements in the bins from the `first` up to but without the `last` of `BINS`."""
        return list(map(sub, self.before[last], self.before[first]))

    def shared(self, shares: Sequence[float]) -> Sequence[float]:
        """By facet, the placements of all bins, each taken by its share: `shares` has one for each of `BINS`."""
        total: Sequence[float] = [0] * len(self.positions)
        first = 0
        for share, places in groupby(shares):  # neighbours of one share, most of which are 0 and 1, are one step
            last = first + len(list(places))
            if share:
                part = map(share.__mul__, map(float, self.counts(first, last)))
                total = list(map(add, total, part))
            first = last
        return total

    def histogram(self, mask: Mask) -> dict[int, int]:
        """By the lower edge of each bin that is not empty, the placements of the facets in `mask`."""
        found = {lower: sum(compress(counts, mask)) for lower, counts in zip(BINS, self.bins, strict=True)}
        return {lower: count for lower, count in found.items() if count}


def sums(values: Sequence[str], counts: Sequence[float], mask: Mask) -> dict[str, float]:
    """By value, the sum of its counts where `mask` is true."""
    found: dict[str, float] = {}
    for value, count in zip(compress(values, mask), compress(counts, mask), strict=True):
        found[value] = found.get(value, 0) + count
    return found


def held_roll_up(session: Session) -> RollUp | None:
    """The roll-up as `session` sees it; None where there are too many facets to hold."""
    return remembered(session, "facets", lambda: _small_enough(session))


def roll_up(session: Session) -> RollUp:
    """The same, however many facets there are."""
    return held_roll_up(session) or _read(session)


def _small_enough(session: Session) -> RollUp | None:
    number = session.scalar(select(func.count()).select_from(select(Facet.id).limit(FACETS_MAX + 1).subquery()))
    return _read(session) if (number or 0) <= FACETS_MAX else None


def _read(session: Session) -> RollUp:
    places = {lower: place for place, lower in enumerate(BINS)}
    counts: dict[int, list[int]] = {}
    for facet_id, lower, count in session.execute(
        select(FacetCount.facet_id, FacetCount.theta_bin, FacetCount.placements).where(FacetCount.placements > 0)
    ):
        counts.setdefault(facet_id, [0] * len(BINS))[places[lower]] += count
    kept = select(Facet.id, *FACET_COLUMNS.values()).order_by(Facet.id)
    facets: list[Any] = [row for row in session.execute(kept) if row[0] in counts]
    sums_before = [list(accumulate(counts[row[0]], initial=0)) for row in facets]
    columns = {name: [row[place] for row in facets] for place, name in enumerate(FACET_COLUMNS, 1)}
    return RollUp(
        positions={row[0]: position for position, row in enumerate(facets)},
        columns=columns,
        different={name: sorted(set(column)) for name, column in columns.items()},
        bins=[[counts[row[0]][place] for row in facets] for place in range(len(BINS))],
        before=[list(column) for column in zip(*sums_before, strict=True)] or [[]] * (len(BINS) + 1),
    )
