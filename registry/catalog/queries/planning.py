"""By which index a query is answered, from counts and bounds of what it would read."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, not_, or_, select
from sqlalchemy.orm import Session

from organs.registry.catalog.memory import remembered
from organs.registry.catalog.queries.facets import (
    BINS,
    held_roll_up,
    sums,
)
from organs.registry.catalog.queries.narrow import Narrowed
from organs.registry.catalog.search import Interval, Numbers, Sort
from organs.registry.catalog.tables import RANKED_COLUMNS, Facet, FacetCount, Model, Placement
from organs.registry.catalog.vocabulary import ORGAN_TYPES, theta_bin
from organs.registry.measures import MEASURES

COLUMNS = {one.field: one.name for one in MEASURES.values()} | {"size": "size_bytes", "block": "block"}
"""Field to the placement's column."""
RANKINGS = {one.field: one.ranked_as or one.name for one in MEASURES.values()} | {"size": "size_bytes"}
"""Field to the column of the index that ranks by it: the signal is the sine of θ, and has the same order."""
SIGNAL_SLACK_DEGREES = 1e-6
"""A bound on the signal is tested on the signal; the bound on θ beside it is for the index and must not cut."""


def placement_condition(term: Numbers, entity: Any = Placement) -> ColumnElement[bool]:
    """`term` as a condition on the placements `entity`."""
    return number_condition(term, getattr(entity, COLUMNS[term.field]))


def number_condition(term: Numbers, column: Any) -> ColumnElement[bool]:
    """`term` as a condition on `column`. A minus means the exact opposite: what has no number is then in."""
    allowed = [_within(interval, column) for interval in term.intervals]
    allowed += [column.is_(None)] if term.absent else []
    condition = or_(*allowed)
    if not term.negated:
        return condition
    return not_(condition) if term.absent else or_(not_(condition), column.is_(None))


def index_conditions(numbers: Sequence[Numbers], entity: Any = Placement) -> list[ColumnElement[bool]]:
    """What bounds on θ and the signal say of θ, which every ranking's index holds: rows that fail are never fetched."""
    low, high = stretch(numbers, "theta")
    return [*([entity.theta >= low] if low is not None else []), *([entity.theta <= high] if high is not None else [])]


def ranges(numbers: Iterable[Numbers], column: str) -> list[Numbers]:
    """The terms that leave a stretch of the ranking by `column`, and nothing without a number."""
    found = [term for term in numbers if RANKINGS.get(term.field) == column]
    return [term for term in found if term.intervals and not term.negated and not term.absent]


def wants_missing_only(numbers: Iterable[Numbers], column: str) -> bool:
    """Whether a term asks for no number in `column`, and nothing else."""
    found = [term for term in numbers if RANKINGS.get(term.field) == column and not term.negated]
    return any(term.absent and not term.intervals for term in found)


def stretch(numbers: Iterable[Numbers], column: str) -> tuple[float | None, float | None]:
    """The least and the greatest value of `column` that `ranges` leave; None where there is no bound."""
    low: float | None = None
    high: float | None = None
    for term in ranges(numbers, column):
        lows = [one.low for one in term.intervals]
        highs = [one.high for one in term.intervals]
        least = None if None in lows else min(_ranked(term, one, -1) for one in lows if one is not None)
        most = None if None in highs else max(_ranked(term, one, 1) for one in highs if one is not None)
        low = least if low is None else low if least is None else max(low, least)
        high = most if high is None else high if most is None else min(high, most)
    return low, high


def degrees(field: str, value: float) -> float:
    """The θ that `value` of the field `theta` or `signal` means."""
    return value if field == "theta" else math.degrees(math.asin(min(max(value, 0.0), 1.0)))


def _ranked(term: Numbers, value: float, direction: int) -> float:
    """`value` in the unit of the ranking's column."""
    return degrees("signal", value) + direction * SIGNAL_SLACK_DEGREES if term.field == "signal" else value


def _within(interval: Interval, column: Any) -> ColumnElement[bool]:
    conditions = []
    if interval.low is not None:
        conditions.append(column > interval.low if interval.low_open else column >= interval.low)
    if interval.high is not None:
        conditions.append(column < interval.high if interval.high_open else column <= interval.high)
    return and_(*conditions)


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


GATHER_MAX = 20_000
"""Placements that are fetched one by one to be sorted: some tens of milliseconds."""
PASSED_COST, FETCHED_COST = 0.25, 2.0
"""An index entry that is passed over, and a row that is fetched, against each other."""
CORRELATION = 8
"""How much rarer matches may be where the page lies than on the average."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a query will be answered. `driver` is None for the way in order."""

    types: tuple[str, ...]
    driver: str | None
    over: frozenset[str] = frozenset()
    """Types of which hardly anything lies within the bounds on θ: in order, theirs is come by through those."""


def plan_of(session: Session, narrowed: Narrowed, sort: Sort | None, limit: int) -> Plan:
    """The cheaper way to a page of `limit` placements; without a `sort`, to all that match."""
    own = None if sort is None else RANKINGS[sort.field]
    everything = count_by_type(session, Narrowed())
    by_type = count_by_type(session, narrowed)
    types = tuple(kind for kind in ORGAN_TYPES if by_type.get(kind) and _may_match(session, narrowed, kind))
    matching = sum(by_type[kind] for kind in types)
    drivers = _drivers(session, narrowed, types, own)
    if min([matching, *drivers.values()]) == 0:
        return Plan((), None)
    if sort is None:
        drivers.setdefault("facet_id", sum(everything[kind] for kind in types))
    best = min(drivers, key=lambda name: drivers[name], default=None)
    if best is None or drivers[best] > GATHER_MAX:
        return Plan(types, None, _over(session, narrowed, own, types, limit))
    if sort is None:
        return Plan(types, best)
    within = count_by_type(session, Narrowed(numbers=narrowed.numbers)) if own == "theta" else everything
    walked = sum(within[kind] for kind in types)
    # As if one filter had nothing to do with another; facets and θ are counted together.
    share = matching / max(walked, 1)
    for name, count in drivers.items():
        if count <= GATHER_MAX and name not in ("facet_id", "theta"):
            share *= count / max(sum(everything.values()), 1)
    for one in narrowed.fitting:
        share *= one.share(types) if one.models(types) is None else 1.0
    in_order = PASSED_COST * min(CORRELATION * limit / max(share, 1 / max(walked, 1)), walked)
    if FETCHED_COST * drivers[best] < in_order:
        return Plan(types, best)
    return Plan(types, None, _over(session, narrowed, own, types, limit))


def by_index(rows: Any, name: str) -> Any:
    """`rows` of placements, come by through their index `name`."""
    # Its planner has no statistics of a new catalog and would guess; ours has counts.
    return rows.with_hint(Placement, f"INDEXED BY ix_placements_{name}", "sqlite")


def _drivers(session: Session, narrowed: Narrowed, types: tuple[str, ...], own: str | None) -> dict[str, int]:
    """The indexes that a filter narrows, and how many placements would be fetched by each: more than are worth it is
    as good as all."""
    drivers = {}
    if filters := narrowed.facet_filters:
        drivers["facet_id"] = sum(count_by_type(session, Narrowed(facets=filters)).values())
    of_models = [sum(models.values()) for one in narrowed.fitting if (models := one.models(types)) is not None]
    if narrowed.models is not None:
        of_models.append(_count_of_models(session, narrowed.models, narrowed.models_asked))
    if of_models:
        drivers["model"] = min(of_models)
    for column in (*RANKED_COLUMNS, "block"):
        if column == own or not _narrowing(narrowed, column):
            continue
        if column == "theta" and index_conditions(narrowed.numbers):
            within = count_by_type(session, Narrowed(numbers=narrowed.numbers))
            drivers[column] = sum(within.get(kind, 0) for kind in types)
        else:
            drivers[column] = _count_range(session, narrowed, types, column)
    return drivers


def _over(session: Session, narrowed: Narrowed, own: str | None, types: tuple[str, ...], limit: int) -> frozenset[str]:
    if own in (None, "theta") or not index_conditions(narrowed.numbers):
        return frozenset()
    everything = count_by_type(session, Narrowed())
    within = count_by_type(session, Narrowed(numbers=narrowed.numbers))
    by_type = count_by_type(session, narrowed)

    def is_over(kind: str) -> bool:
        walked = min(CORRELATION * limit * everything[kind] / by_type[kind], everything[kind])
        return FETCHED_COST * within[kind] < PASSED_COST * walked

    return frozenset(filter(is_over, types))


def _may_match(session: Session, narrowed: Narrowed, kind: str) -> bool:
    """Whether placements of the type `kind` have numbers such as are asked for: norms have no spectral signal."""
    for column in RANKED_COLUMNS:
        if column == "theta" or not ranges(narrowed.numbers, column):
            continue
        least, most = _extremes(session, kind, column)
        low, high = stretch(narrowed.numbers, column)
        if least is None or most is None or (low is not None and low > most) or (high is not None and high < least):
            return False
    return True


def _extremes(session: Session, kind: str, column: str) -> tuple[float | None, float | None]:
    """The least and the greatest number in `column` that the type `kind` has: the two ends of its ranking."""

    def find() -> tuple[float | None, float | None]:
        measure = getattr(Placement, column)
        rows = select(measure).where(Placement.visible, Placement.type == kind, measure.is_not(None)).limit(1)
        ends = [by_index(rows, column).order_by(order) for order in (measure, measure.desc())]
        least, most = (session.scalar(end) for end in ends)
        return least, most

    return remembered(session, ("extremes", kind, column), find)


def _count_of_models(session: Session, models: Select[int], asked: Hashable) -> int:
    """How many placements the models have that are asked for."""
    tensors = select(func.coalesce(func.sum(Model.tensors), 0)).where(Model.id.in_(models))
    return remembered(session, ("models", asked), lambda: int(session.scalar(tensors) or 0))


def _narrowing(narrowed: Narrowed, column: str) -> list[ColumnElement[bool]]:
    """What is asked of `column` that its index can answer."""
    if column == "theta" and (bounds := index_conditions(narrowed.numbers)):
        return bounds
    terms = [term for term in narrowed.numbers if not term.negated and term.field != "signal"]
    return [placement_condition(term) for term in terms if COLUMNS[term.field] == column]


def _count_range(session: Session, narrowed: Narrowed, types: tuple[str, ...], column: str) -> int:
    """How many placements have the number that is asked for, counted up to what is worth gathering."""

    def count() -> int:
        rows = select(Placement.id).where(*_narrowing(narrowed, column))
        if column != "block":
            rows = rows.where(Placement.visible, Placement.type.in_(types))
        limited = by_index(rows, column).limit(GATHER_MAX + 1).subquery()
        return session.scalar(select(func.count()).select_from(limited)) or 0

    terms = frozenset(term for term in narrowed.numbers if RANKINGS.get(term.field, term.field) == column)
    return remembered(session, ("range", column, terms, types if column != "block" else None), count)
