"""By which index a query is answered.

Two ways. *In order*: each type's ranking index is walked from where the page begins, and what does not match is passed
over; quick when much matches. *Gathered*: what a narrow filter leaves is fetched by that filter's index and sorted;
quick when little is left. The counts of facets and models say which is cheaper, so nothing ever reads the whole table.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session

from organs.registry.catalog.memory import remembered
from organs.registry.catalog.queries.bounds import (
    COLUMNS,
    RANKINGS,
    index_conditions,
    placement_condition,
    ranges,
    stretch,
)
from organs.registry.catalog.queries.narrow import Narrowed
from organs.registry.catalog.queries.tallies import count_by_type
from organs.registry.catalog.search import Sort
from organs.registry.catalog.tables import RANKED_MEASURES, Model, Placement
from organs.registry.catalog.vocabulary import ORGAN_TYPES

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
    for column in (*RANKED_MEASURES, "block"):
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
    for column in RANKED_MEASURES:
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
