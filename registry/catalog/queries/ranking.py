"""A page of placements, and how all that match are spread: the rows, come by as planned."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, literal, or_, select, tuple_
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.queries.fitting import among
from organs.registry.catalog.queries.narrow import Narrowed, nonfinite_condition
from organs.registry.catalog.queries.planning import (
    RANKINGS,
    Plan,
    by_index,
    index_conditions,
    placement_condition,
    plan_of,
    ranges,
    stretch,
    wants_missing_only,
)
from organs.registry.catalog.search import Numbers, Sort
from organs.registry.catalog.search.cursor import Cursor
from organs.registry.catalog.tables import Facet, Organ, Placement
from organs.registry.catalog.vocabulary import (
    BIN_DEGREES,
    THETA_MAX_DEGREES,
    UNMEASURED,
)

UNIQUE_ROWS_MAX = 4000
"""Placements that are read at once to find organs that are not on the page yet; more where the query has `fits:` and
the base has more organs, because each statement first reads all organs of the base."""
UNIQUE_ROWS_OF_BASES_MAX = 65_536
"""The same where the bases are very large."""

Ranked = tuple[float | None, int]
"""A placement's sort value and id."""


def ranked_placements(
    session: Session, narrowed: Narrowed, sort: Sort, unique: bool, after: Cursor | None, limit: int
) -> list[Ranked]:
    """The next `limit` placements of a query behind `after`: sort value and id, those without a value last.

    Equal values stand in the order of their ids, newest first when the sort is falling: the order is total.
    """
    plan = plan_of(session, narrowed, sort, limit)
    if plan.driver is not None:
        return _gathered(session, plan, narrowed, unique, sort, after, limit)
    if unique:
        return _unique_in_order(session, plan, narrowed, sort, after, limit)
    return _in_order(session, plan, narrowed, sort, after, limit)


def spread_of_matching(
    session: Session, narrowed: Narrowed, bounds: Sequence[Numbers], limit: int
) -> list[tuple[int, int, int, int]] | None:
    """Facet id, bin of θ, how many placements match, and how many of them are within `bounds` too.

    None when it would be a search through more than `limit`.
    """
    plan = plan_of(session, narrowed, None, limit)
    if plan.driver is None:
        return None if plan.types else []
    columns = (Placement.facet_id.label("facet"), _bin_of(Placement.theta).label("bin"))
    inside = case((and_(*map(placement_condition, bounds)), 1), else_=0) if bounds else literal(1)
    rows = _driven(select(*columns, inside.label("inside")), plan, narrowed).where(*matches(narrowed, Placement))
    rows = rows.limit(limit + 1).subquery()
    grouped = select(rows.c.facet, rows.c.bin, func.count(), func.sum(rows.c.inside)).group_by(rows.c.facet, rows.c.bin)
    found = [(facet, lower, count, int(within)) for facet, lower, count, within in session.execute(grouped)]
    return found if sum(count for _, _, count, _ in found) <= limit else None


def _bin_of(theta: Any) -> Any:
    """`theta_bin` in SQL, without a division that might round."""
    uppers = {lower + BIN_DEGREES: lower for lower in range(0, THETA_MAX_DEGREES - BIN_DEGREES, BIN_DEGREES)}
    whens = [(theta < upper, lower) for upper, lower in uppers.items()]
    return case((theta.is_(None), UNMEASURED), *whens, else_=THETA_MAX_DEGREES - BIN_DEGREES)


def matches(narrowed: Narrowed, entity: Any) -> list[ColumnElement[bool]]:
    """What the placements `entity` must be to match."""
    conditions = index_conditions(narrowed.numbers, entity)
    conditions += [placement_condition(term, entity) for term in narrowed.numbers]
    types = [one for one in narrowed.facet_filters if one.field == "type"]
    conditions += [entity.type.not_in(one.values) if one.negated else entity.type.in_(one.values) for one in types]
    if len(types) < len(narrowed.facet_filters):
        conditions.append(entity.facet_id.in_(select(Facet.id).where(*narrowed.facet_conditions)))
    if narrowed.models is not None:
        conditions.append(entity.model_id.in_(narrowed.models))
    for choice in narrowed.nonfinite:
        organ = aliased(Organ)
        found = select(organ.id).where(organ.id == entity.organ_id, nonfinite_condition(choice, organ.nonfinite))
        conditions.append(found.exists())
    return conditions + [one.condition(entity) for one in narrowed.fitting]


def _unique_in_order(
    session: Session, plan: Plan, narrowed: Narrowed, sort: Sort, after: Cursor | None, limit: int
) -> list[Ranked]:
    """The same as `_in_order`, with the first match of each organ only.

    The first match is looked up once for each organ. A condition on each placement would walk over all places of its
    organ, and an organ may have 50,000 of them.
    """
    found: list[Ranked] = []
    firsts: dict[int, int] = {}
    of_bases = sum(base.tensors for one in narrowed.fitting for base in one.bases)
    most = max(UNIQUE_ROWS_MAX, min(of_bases, UNIQUE_ROWS_OF_BASES_MAX))
    size = max(2 * limit, min(of_bases, most) // 16)
    while len(found) < limit and (rows := _in_order(session, plan, narrowed, sort, after, size)):
        pairs = select(Placement.id, Placement.organ_id).where(among(Placement.id, [row_id for _, row_id in rows]))
        organs = dict(session.execute(pairs).all())
        if unknown := set(organs.values()) - firsts.keys():
            firsts |= _first_matches(session, narrowed, sorted(unknown))
        found += [(value, row_id) for value, row_id in rows if firsts[organs[row_id]] == row_id]
        if len(rows) < size:
            break
        after, size = Cursor(*rows[-1]), min(8 * size, most)
    return found[:limit]


def _first_matches(session: Session, narrowed: Narrowed, organ_ids: Sequence[int]) -> dict[int, int]:
    """Each organ with the placement that matches first, in the oldest model that has one."""
    place = aliased(Placement)
    first = select(place.id).with_hint(place, "INDEXED BY ix_placements_organ", "sqlite")
    first = first.where(place.organ_id == Organ.id, place.visible, *matches(narrowed, place))
    first = first.order_by(place.model_id, place.id).limit(1)
    statement = select(Organ.id, first.correlate(Organ).scalar_subquery()).where(among(Organ.id, organ_ids))
    return dict(session.execute(statement).all())


def _in_order(
    session: Session, plan: Plan, narrowed: Narrowed, sort: Sort, after: Cursor | None, limit: int
) -> list[Ranked]:
    conditions = matches(narrowed, Placement)
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
    session: Session, plan: Plan, conditions: Sequence[ColumnElement[bool]], sort: Sort, limit: int
) -> list[Ranked]:
    """The first rows of all types, each type's from its own stretch of the index."""
    measure = RANKINGS[sort.field]
    column = getattr(Placement, measure)
    order = (column.desc(), Placement.id.desc()) if sort.descending else (column, Placement.id)
    connection, arms = session.connection(), []
    for kind in plan.types:
        rows = select(column, Placement.id).where(Placement.visible, Placement.type == kind, *conditions)
        # Not all at once: of most types only the first few are on the page.
        rows = by_index(rows, "theta" if kind in plan.over else measure)
        arms.append(connection.execute(rows.order_by(*order).limit(limit)))
    both = merge(*arms, key=lambda row: (row[0] or 0, row[1]), reverse=sort.descending)
    found = [(value, row_id) for value, row_id in islice(both, limit)]
    for arm in arms:
        arm.close()
    return found


def _gathered(
    session: Session,
    plan: Plan,
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


def _driven(rows: Any, plan: Plan, narrowed: Narrowed) -> Any:
    """`rows`, come by through the plan's driver."""
    assert plan.driver is not None
    rows = rows.where(Placement.visible)
    if plan.driver == "facet_id":
        ids = select(Facet.id).where(*narrowed.facet_conditions)
        return by_index(rows.where(Placement.facet_id.in_(ids)), "facet_id")
    rows = rows.where(Placement.type.in_(plan.types))
    if plan.driver == "model":
        known = [models for one in narrowed.fitting if (models := one.models(plan.types)) is not None]
        rows = rows.where(*(among(Placement.model_id, list(models)) for models in known))
    return by_index(rows, plan.driver)
