"""Plan a search: choose the index that answers it, by the counts of facets and of what each filter leaves."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import compress
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.cache import cached
from organs.registry.catalog.rows import among
from organs.registry.catalog.tables import RANKED_COLUMNS, Expert, Facet, FacetCount, Placement
from organs.registry.catalog.vocabulary import ORGAN_TYPES
from organs.registry.search.facets import BINS, FacetFilter, held_roll_up, sums
from organs.registry.search.filters import (
    COLUMNS,
    RANKINGS,
    Filters,
    limiting,
    limits,
    placement_condition,
    theta_conditions,
)
from organs.registry.search.language import EXPERT, GAIN, Bounds, Sort

GATHER_MAX = 20_000
"""The most placements that are fetched to count or to compare them. This takes some tens of milliseconds."""
SORTED_MAX_FACTOR = 5
"""A page may fetch this many times GATHER_MAX and sort them, if to read the index in its order would take longer."""
PASSED_COST, FETCHED_COST = 0.25, 2.0
"""Relative costs of an index entry that is skipped and of a row that is fetched."""
CORRELATION = 8
"""The factor by which matches may be rarer near the page than on average."""
GAINED = "organ"
"""The driver, an index of placements, that reads the organs with a gain."""


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """How to answer a query: read the index `driver`, then sort. Without a driver, read the index of the ranking."""

    types: tuple[str, ...] | None
    """The types that may have matches. Indexes of placements are divided by type; None for experts."""
    driver: str | None
    over: frozenset[str] = frozenset()
    """Without a driver: types that are read through the index of θ, because few placements are within its bounds."""
    rows: int | None = None
    """About how many rows the driver reads; None if it is not known."""


def plan_of(session: Session, filters: Filters, sort: Sort | None, limit: int) -> SearchPlan:
    """Return the cheapest plan for a page of `limit` results; without `sort`, for all matches."""
    if filters.table is Expert:
        return _plan_of_experts(session, filters)
    if sort is not None and sort.field == GAIN:
        return SearchPlan(plan_of(session, filters, None, limit).types, GAINED)
    ranking = None if sort is None else RANKINGS[sort.field]
    all_by_type = count_by_type(session)
    by_type = count_by_type(session, filters.all_facets, filters.numbers)
    types = tuple(kind for kind in ORGAN_TYPES if by_type.get(kind) and _may_match(session, filters, kind))
    matching = sum(by_type[kind] for kind in types)
    drivers = _drivers(session, filters, types, ranking)
    if min([matching, *drivers.values()]) == 0:
        return SearchPlan((), None)
    if sort is None:
        drivers.setdefault("facet_id", sum(all_by_type[kind] for kind in types))
    best = min(drivers, key=lambda name: drivers[name], default=None)
    if best is not None and drivers[best] <= GATHER_MAX * (1 if sort is None else SORTED_MAX_FACTOR):
        if sort is None:
            return SearchPlan(types, best, rows=drivers[best])
        within = count_by_type(session, (), filters.numbers) if ranking == "theta" else all_by_type
        entries = sum(within[kind] for kind in types)
        # Filters are assumed to be independent, except facets and θ, which are counted together.
        share = matching / max(entries, 1)
        for name, count in drivers.items():
            if name not in ("facet_id", "theta"):
                share *= count / max(sum(all_by_type.values()), 1)
        for term in filters.fits:
            share *= term.share(types) if term.models(types) is None else 1.0
        in_order = PASSED_COST * min(CORRELATION * limit / max(share, 1 / max(entries, 1)), entries)
        if FETCHED_COST * drivers[best] < in_order:
            return SearchPlan(types, best, rows=drivers[best])
    over: list[str] = []
    if ranking not in (None, "theta") and limits(filters.numbers, "theta") != (None, None):
        within = count_by_type(session, (), filters.numbers)
        for kind in types:
            passed = min(CORRELATION * limit * all_by_type[kind] / by_type[kind], all_by_type[kind])
            over += [kind] if FETCHED_COST * within[kind] < PASSED_COST * passed else []
    return SearchPlan(types, None, frozenset(over))


def _plan_of_experts(session: Session, filters: Filters) -> SearchPlan:
    """Return the plan for experts. They are not in the roll-up, so the rows of each index are counted."""
    counts = {}
    if filters.models is not None:
        counts["model"] = _count(session, Expert, "model", Expert.visible, filters.models.condition(Expert.model_id))
    if numbers := _index_conditions(filters, EXPERT):
        counts[EXPERT] = _count(session, Expert, EXPERT, Expert.visible, *numbers)
    best = min(counts, key=lambda name: counts[name], default=None)
    return SearchPlan(None, best if best is not None and counts[best] <= GATHER_MAX else None)


def _drivers(session: Session, filters: Filters, types: tuple[str, ...], ranking: str | None) -> dict[str, int]:
    """Return the number of placements to fetch through each index that a filter narrows.

    Numbers that are not stored are counted up to `GATHER_MAX`; indexes with more are left out.
    """
    drivers = {}
    if facets := filters.all_facets:
        drivers["facet_id"] = sum(count_by_type(session, facets).values())
    model_counts = [sum(models.values()) for term in filters.fits if (models := term.models(types)) is not None]
    if filters.models is not None:
        model_counts.append(filters.models.tensors)
    if model_counts:
        drivers["model"] = min(model_counts)
    counted = {}
    if filters.gains is not None and filters.gains.needs_gain:
        gained = Placement.organ_id.in_(select(filters.gains.organs().c.id))
        counted[GAINED] = _count(session, Placement, GAINED, gained, Placement.visible)
    for column in (*RANKED_COLUMNS, "block"):
        conditions = [] if column == ranking else _index_conditions(filters, column)
        if conditions and column == "theta" and limits(filters.numbers, "theta") != (None, None):
            within = count_by_type(session, (), filters.numbers)
            drivers[column] = sum(within.get(kind, 0) for kind in types)
        elif conditions:
            of_types = [] if column == "block" else [Placement.visible, Placement.type.in_(types)]
            terms = frozenset(term for term in filters.numbers if RANKINGS.get(term.field, term.field) == column)
            key = ("range", column, terms, types if of_types else None)
            counted[column] = cached(session, key, partial(_count, session, Placement, column, *conditions, *of_types))
    return drivers | {name: count for name, count in counted.items() if count <= GATHER_MAX}


def _index_conditions(filters: Filters, column: str) -> list[ColumnElement[bool]]:
    """Return the conditions on `column` that its index can test."""
    if column == "theta" and (bounds := theta_conditions(filters.numbers, filters.table)):
        return bounds
    terms = [term for term in filters.numbers if not term.negated and term.field != "signal"]
    return [placement_condition(term, filters.table) for term in terms if COLUMNS[term.field] == column]


def _count(session: Session, table: Any, index: str, *conditions: Any) -> int:
    """Return how many rows of `table` meet `conditions`, read through an index, at most `GATHER_MAX + 1`."""
    rows = by_index(select(table.id).where(*conditions), table, index).limit(GATHER_MAX + 1).subquery()
    return session.scalar(select(func.count()).select_from(rows)) or 0


def count_by_type(
    session: Session, facets: Iterable[FacetFilter] = (), numbers: Sequence[Bounds] = ()
) -> dict[str, int]:
    """Return the number of visible placements with matching facets, by type. A bin of θ that may match counts fully."""
    first, last = 0, len(BINS)
    if limiting(numbers, "theta"):
        low, high = limits(numbers, "theta")
        first = max(1, min(bisect_right(BINS, low or 0.0) - 1, len(BINS) - 1))
        last = last if high is None else max(first, bisect_right(BINS, high))
    facets = list(facets)

    def count() -> dict[str, int]:
        held = held_roll_up(session)
        if held is not None:
            counted = sums(held.columns["type"], held.counts(first, last), held.mask(facets))
            return {kind: int(number) for kind, number in sorted(counted.items()) if number}
        statement = select(Facet.type, func.sum(FacetCount.placements)).where(*(own.condition for own in facets))
        statement = statement.join(FacetCount, FacetCount.facet_id == Facet.id)
        statement = statement.where(FacetCount.theta_bin.in_(BINS[first:last])).group_by(Facet.type)
        return {kind: int(number) for kind, number in session.execute(statement.order_by(Facet.type)) if number}

    return cached(session, ("by type", frozenset(facets), first, last), count)


def _may_match(session: Session, filters: Filters, kind: str) -> bool:
    """Return whether the limits overlap the numbers of the type `kind`. For example, norms have no spectral signal."""
    for column in RANKED_COLUMNS:
        if column == "theta" or not limiting(filters.numbers, column):
            continue
        least, most = cached(session, ("extremes", kind, column), partial(_extremes, session, kind, column))
        low, high = limits(filters.numbers, column)
        if least is None or most is None or (low is not None and low > most) or (high is not None and high < least):
            return False
    return True


def _extremes(session: Session, kind: str, column: str) -> tuple[float | None, float | None]:
    """Return the least and the greatest number of the type `kind` in `column`, which are the ends of its index."""
    measure = getattr(Placement, column)
    rows = select(measure).where(Placement.visible, Placement.type == kind, measure.is_not(None)).limit(1)
    least, most = (
        session.scalar(by_index(rows, Placement, column).order_by(order)) for order in (measure, measure.desc())
    )
    return least, most


def by_index(rows: Any, table: Any, name: str) -> Any:
    """Return `rows` of `table`, read through its index `name`."""
    # SQLite has no statistics on a new catalog and would guess. The counts of facets are exact.
    return rows.with_hint(table, f"INDEXED BY ix_{table.__tablename__}_{name}", "sqlite")


def driven(session: Session, rows: Any, plan: SearchPlan, filters: Filters) -> Any:
    """Return the matches among `rows`, a SELECT of the table, read through the driver of the plan."""
    assert plan.driver is not None
    tested = {"model": {"model_id"}, GAINED: set[str]()}.get(plan.driver, {plan.driver})
    if plan.driver in RANKED_COLUMNS:
        tested = {plan.driver, "facet_id", "block", "model_id", "theta"}
    facets = held_roll_up(session)
    facet_ids = None if facets is None else list(compress(facets.positions, facets.mask(filters.all_facets)))

    def tested_by_index(entity: Any) -> list[ColumnElement[bool]]:
        conditions = [entity.visible]
        if plan.driver == "facet_id":
            return [*conditions, filters.facet_condition(entity, facet_ids)]
        if plan.types is not None:
            conditions.append(entity.type.in_(plan.types))
        if plan.driver == "model" and plan.types is not None:
            few = [models for term in filters.fits if (models := term.models(plan.types)) is not None]
            conditions += [among(entity.model_id, list(models)) for models in few]
        return conditions + [own for column, own in filters.tests(entity, facet_ids) if column in tested]

    others = [own for column, own in filters.tests(filters.table) if column not in tested]
    if plan.driver not in RANKED_COLUMNS or session.get_bind().dialect.name != "postgresql":
        return by_index(rows.where(*tested_by_index(filters.table), *others), filters.table, plan.driver)
    # PostgreSQL has no hints, and its estimates take filters to be independent. Here it reads the ids through the
    # index that suits the driver, and estimates their number by the limit, which is never reached.
    place = aliased(filters.table)
    ids = select(place.id).where(*tested_by_index(place)).cte().prefix_with("MATERIALIZED")
    limited = select(ids.c.id).limit(None if plan.rows is None else 2 * plan.rows + 1000).subquery()
    return rows.join(limited, limited.c.id == filters.table.id).where(*others)
