"""A page of placements: by which index a query is answered, and its rows.

Two ways. *In order*: each type's ranking index is walked from where the page begins, and what does not match is passed
over; quick when much matches. *Gathered*: what a narrow filter leaves is fetched by that filter's index and sorted;
quick when little is left. The counts of facets and models say which is cheaper, so nothing ever reads the whole table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, not_, or_, select, tuple_
from sqlalchemy.orm import Session, aliased

from registry.catalog.queries.bounds import (
    COLUMNS,
    RANKINGS,
    index_conditions,
    placement_condition,
    ranges,
    stretch,
    wants_missing_only,
)
from registry.catalog.queries.narrow import Narrowed
from registry.catalog.queries.tallies import count_by_type
from registry.catalog.search import Sort
from registry.catalog.search.cursor import Cursor
from registry.catalog.tables import RANKED_MEASURES, Facet, Model, Placement
from registry.catalog.vocabulary import ORGAN_TYPES

GATHER_MAX = 20_000
"""Placements that are fetched one by one to be sorted: some tens of milliseconds."""
PASSED_COST, FETCHED_COST = 0.25, 2.0
"""An index entry that is passed over, and a row that is fetched, against each other."""
CORRELATION = 8
"""How much rarer matches may be where the page lies than on the average."""

Ranked = tuple[float | None, int]
"""A placement's sort value and id."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """How a query will be answered. `driver` is None for the way in order."""

    types: tuple[str, ...]
    driver: str | None


def ranked_placements(
    session: Session, narrowed: Narrowed, sort: Sort, unique: bool, after: Cursor | None, limit: int
) -> list[Ranked]:
    """The next `limit` placements of a query behind `after`: sort value and id, those without a value last.

    Equal values stand in the order of their ids, newest first when the sort is falling: the order is total.
    """
    plan = _plan(session, narrowed, sort, limit)
    if plan.driver is not None:
        return _gathered(session, plan, narrowed, unique, sort, after, limit)
    return _in_order(session, plan, narrowed, _tests(narrowed, unique), sort, after, limit)


def spread_of_matching(session: Session, narrowed: Narrowed, limit: int) -> list[tuple[int, float | None]] | None:
    """Facet id and θ of every placement that matches; None when it would be a search through more than `limit`."""
    plan = _plan(session, narrowed, None, limit)
    if plan.driver is None:
        return [] if not plan.types else None
    rows = _driven(select(Placement.facet_id, Placement.theta), plan, narrowed).where(*matches(narrowed, Placement))
    found = [(facet_id, theta) for facet_id, theta in session.execute(rows.limit(limit + 1))]
    return found if len(found) <= limit else None


def _plan(session: Session, narrowed: Narrowed, sort: Sort | None, limit: int) -> _Plan:
    by_type = count_by_type(session, narrowed)
    everything = count_by_type(session, Narrowed())
    types = tuple(kind for kind in ORGAN_TYPES if by_type.get(kind))
    matching, walked = sum(by_type.values()), sum(everything[kind] for kind in types)
    drivers = {"facet_id": matching} if narrowed.facets or sort is None else {}
    if narrowed.models is not None:
        drivers["model"] = _placements_of(session, narrowed.models)
        matching = min(matching, drivers["model"])
    own = None if sort is None else RANKINGS[sort.field]
    for column in (*RANKED_MEASURES, "block"):
        if column != own and _narrowing(narrowed, column):
            drivers[column] = _count_range(session, narrowed, types, column)
    best = min(drivers, key=lambda name: drivers[name], default=None)
    if min([matching, *drivers.values()]) == 0:
        return _Plan((), None)
    if best is None:
        return _Plan(types, None)
    if sort is None:
        return _Plan(types, best if drivers[best] <= GATHER_MAX else None)
    share = min(matching, *drivers.values()) / max(walked, 1)
    in_order = PASSED_COST * CORRELATION * limit / max(share, 1 / max(walked, 1))
    cheaper = FETCHED_COST * drivers[best] < min(in_order, PASSED_COST * walked)
    return _Plan(types, best if drivers[best] <= GATHER_MAX and cheaper else None)


def _placements_of(session: Session, models: Select[int]) -> int:
    return int(session.scalar(select(func.coalesce(func.sum(Model.tensors), 0)).where(Model.id.in_(models))) or 0)


def _narrowing(narrowed: Narrowed, column: str) -> list[ColumnElement[bool]]:
    """What is asked of `column` that its index can answer."""
    if column == "theta" and (bounds := index_conditions(narrowed.numbers)):
        return bounds
    terms = [term for term in narrowed.numbers if not term.negated and term.field != "signal"]
    return [placement_condition(term) for term in terms if COLUMNS[term.field] == column]


def _count_range(session: Session, narrowed: Narrowed, types: Sequence[str], column: str) -> int:
    """How many placements have the number that is asked for, counted up to what is worth gathering."""
    rows = select(Placement.id).where(*_narrowing(narrowed, column))
    if column != "block":
        rows = rows.where(Placement.visible, Placement.type.in_(types))
    limited = _by_index(rows, column).limit(GATHER_MAX + 1).subquery()
    return session.scalar(select(func.count()).select_from(limited)) or 0


def _tests(narrowed: Narrowed, unique: bool) -> list[ColumnElement[bool]]:
    """What every placement is tested for, whichever way it was come by; with `unique` it is its organ's first match."""
    if not unique:
        return matches(narrowed, Placement)
    earlier = aliased(Placement)
    same = [earlier.organ_id == Placement.organ_id, earlier.id < Placement.id, earlier.visible]
    before = select(earlier.id).where(*same, *matches(narrowed, earlier))
    before = before.with_hint(earlier, "INDEXED BY ix_placements_organ_id", "sqlite")
    return [*matches(narrowed, Placement), not_(before.exists())]


def matches(narrowed: Narrowed, entity: Any) -> list[ColumnElement[bool]]:
    """What the placements `entity` must be to match."""
    conditions = index_conditions(narrowed.numbers, entity)
    conditions += [placement_condition(term, entity) for term in narrowed.numbers]
    types = [one for one in narrowed.facets if one.field == "type"]
    conditions += [entity.type.not_in(one.values) if one.negated else entity.type.in_(one.values) for one in types]
    if len(types) < len(narrowed.facets):
        conditions.append(entity.facet_id.in_(select(Facet.id).where(*narrowed.facet_conditions)))
    if narrowed.models is not None:
        conditions.append(entity.model_id.in_(narrowed.models))
    return conditions


def _in_order(
    session: Session,
    plan: _Plan,
    narrowed: Narrowed,
    conditions: Sequence[ColumnElement[bool]],
    sort: Sort,
    after: Cursor | None,
    limit: int,
) -> list[Ranked]:
    measure = RANKINGS[sort.field]
    column = getattr(Placement, measure)
    found: list[Ranked] = []
    if (after is None or after.value is not None) and not wants_missing_only(narrowed.numbers, measure):
        low, high = stretch(narrowed.numbers, measure)
        bounds = [*([column >= low] if low is not None else []), *([column <= high] if high is not None else [])]
        for part in _parts_behind(column, sort, after):
            if len(found) < limit:
                found += _merged(session, plan, [*part, *bounds, *conditions], sort, limit - len(found))
    if len(found) < limit and not ranges(narrowed.numbers, measure):
        missing = [column.is_(None)]
        if after is not None and after.value is None:
            missing.append(Placement.id < after.id if sort.descending else Placement.id > after.id)
        found += _merged(session, plan, [*missing, *conditions], sort, limit - len(found))
    return found


def _parts_behind(column: Any, sort: Sort, after: Cursor | None) -> list[list[ColumnElement[bool]]]:
    """The ranking behind `after`, in parts that follow each other: the rest of the same value, then what is beyond.

    One comparison of (value, id) says the same, but SQLite begins it at the value and walks through all that share it.
    """
    if after is None:
        return [[column.is_not(None)]]
    step = Placement.id < after.id if sort.descending else Placement.id > after.id
    return [[column == after.value, step], [column < after.value if sort.descending else column > after.value]]


def _merged(
    session: Session, plan: _Plan, conditions: Sequence[ColumnElement[bool]], sort: Sort, limit: int
) -> list[Ranked]:
    """The first rows of all types, each type's from its own stretch of the index."""
    measure = RANKINGS[sort.field]
    column = getattr(Placement, measure)
    order = (column.desc(), Placement.id.desc()) if sort.descending else (column, Placement.id)
    arms = []
    for kind in plan.types:
        rows = select(column, Placement.id).where(Placement.visible, Placement.type == kind, *conditions)
        arms.append(session.execute(_by_index(rows, measure).order_by(*order).limit(limit)).all())
    both = merge(*arms, key=lambda row: (row[0] or 0, row[1]), reverse=sort.descending)
    return [(value, row_id) for value, row_id in islice(both, limit)]


def _gathered(
    session: Session,
    plan: _Plan,
    narrowed: Narrowed,
    unique: bool,
    sort: Sort,
    after: Cursor | None,
    limit: int,
) -> list[Ranked]:
    measure = getattr(Placement, RANKINGS[sort.field])
    # An organ has its measures wherever it is, so its first place stands for all of them.
    first = func.min(Placement.id) if unique else Placement.id
    matching = _driven(select(measure.label("value"), first.label("id")), plan, narrowed)
    matching = matching.where(*matches(narrowed, Placement))
    found = (matching.group_by(Placement.organ_id, measure) if unique else matching).subquery()
    rows, value, row_id = select(found.c.value, found.c.id), found.c.value, found.c.id
    if after is not None:
        step = row_id < after.id if sort.descending else row_id > after.id
        here, there = tuple_(value, row_id), tuple_(after.value, after.id)
        behind = here < there if sort.descending else here > there
        nothing = value.is_(None)
        rows = rows.where(and_(nothing, step) if after.value is None else or_(behind, nothing))
    order = (value.desc(), row_id.desc()) if sort.descending else (value, row_id)
    statement = rows.order_by(value.is_(None), *order).limit(limit)
    return [(number, place) for number, place in session.execute(statement)]


def _driven(rows: Any, plan: _Plan, narrowed: Narrowed) -> Any:
    """`rows`, come by through the plan's driver."""
    assert plan.driver is not None
    rows = rows.where(Placement.visible)
    if plan.driver == "facet_id":
        ids = select(Facet.id).where(*narrowed.facet_conditions)
        return _by_index(rows.where(Placement.facet_id.in_(ids)), "facet_id")
    rows = rows.where(Placement.type.in_(plan.types))
    return _by_index(rows, plan.driver)


def _by_index(rows: Any, name: str) -> Any:
    # Its planner has no statistics of a new catalog and would guess; ours has counts.
    return rows.with_hint(Placement, f"INDEXED BY ix_placements_{name}", "sqlite")
