"""Run a search of organs or experts: from a query to a page, in the order of a measure, a gain or a likeness."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, func, null, or_, select, tuple_, union_all
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.cursor import PageEnd, Ranked, check_limit, next_cursor, parse_cursor
from organs.registry.catalog.queries.organs import shape_of
from organs.registry.catalog.rows import among, batches
from organs.registry.catalog.tables import Blob, Expert, ModelRow, OrganRow, Placement
from organs.registry.digest import Digest
from organs.registry.entities.organ import OrganPage, PlacedOrgan
from organs.registry.measures import MEASURE_NAMES, theta_caution
from organs.registry.search.filters import COLUMNS, RANKINGS, Filters, limiting, limits, resolve
from organs.registry.search.gains import gains_of_organs
from organs.registry.search.language import GAIN, LIKENESS, Query, Sort
from organs.registry.search.likeness import likeness_and_change, ranked_by_likeness
from organs.registry.search.plan import SearchPlan, by_index, driven, plan_of


def search_organs(session: Session, query: Query, limit: int, after: str | None = None) -> OrganPage:
    """Return the next `limit` organs of `query` after the cursor `after`, which is the `next` of the previous page.

    The order is total, so pages do not repeat or skip organs. Raises BadQuery for an invalid cursor; NotFound and
    Ambiguous if `like:` does not name exactly one organ.
    """
    cursor = parse_page(query, limit, after)
    return read_page(session, query, resolve(session, query), limit, cursor)


def parse_page(query: Query, limit: int, after: str | None) -> PageEnd | None:
    """Return the cursor in `after`. Raises BadQuery for an invalid cursor or limit."""
    check_limit(limit)
    return None if after is None else parse_cursor(str(query), after, missing=query.like is None)


def read_page(session: Session, query: Query, filters: Filters, limit: int, after: PageEnd | None) -> OrganPage:
    """Return the page of a resolved query."""
    if _is_compared(query, filters):
        compared, notes = ranked_by_likeness(session, query, filters)
        rows = _rows_after(compared, query.sort, after)[: limit + 1]
    else:
        rows, notes = ranked_rows(session, query, filters, after, limit + 1), []
    return OrganPage(
        items=_load(session, query, filters, rows[:limit]),
        next=next_cursor(str(query), rows, limit),
        notes=(*filters.notes, *notes),
    )


def _is_compared(query: Query, filters: Filters) -> bool:
    return query.like is not None or query.sort.field == LIKENESS or bool(filters.likeness)


def organs_in_order(
    session: Session, query: Query, size: int, on_compared: Callable[[int], None] | None = None
) -> Iterator[Sequence[PlacedOrgan]]:
    """Yield all organs of `query` in its order, `size` at a time. Raises the errors of `search_organs`.

    `on_compared` is called with the number of organs that are compared with the base before the first is yielded.
    """
    filters = resolve(session, query)
    if _is_compared(query, filters):  # once, not for each page
        rows, _ = ranked_by_likeness(session, query, filters, on_compared)
        for batch in batches(_rows_after(rows, query.sort, None), size):
            yield _load(session, query, filters, batch)
        return
    page = read_page(session, query, filters, size, None)
    yield page.items
    while page.next is not None:
        page = search_organs(session, query, size, page.next)
        yield page.items


UNIQUE_ROWS_MAX = 4000
"""The most placements that one statement reads to find organs that are not on the page yet. A query with `fits:` reads
as many as the bases have organs, because each statement first reads all organs of the bases."""
UNIQUE_ROWS_OF_BASES_MAX = 65_536
"""The most placements that one statement of a query with `fits:` reads."""


def ranked_rows(session: Session, query: Query, filters: Filters, after: PageEnd | None, limit: int) -> list[Ranked]:
    """Return the next `limit` matches of a query after `after`, in the order of a stored value.

    Matches without a value come last. Equal values are ordered by id, newest first if the sort is falling, so the order
    is total.
    """
    plan = plan_of(session, filters, query.sort, limit)
    if plan.driver is not None:
        return _all_sorted(session, plan, filters, query, after, limit)
    if not query.unique:
        return _in_order(session, plan, filters, query.sort, after, limit)
    # The first match of each organ represents it. It is searched once for each organ: a condition on each placement
    # would read all places of its organ, up to 50,000, each time.
    table, results = filters.table, list[Ranked]()
    firsts: dict[int, int] = {}
    base_tensors = sum(base.tensors for own in filters.fits for base in own.bases)
    largest = max(UNIQUE_ROWS_MAX, min(base_tensors, UNIQUE_ROWS_OF_BASES_MAX))
    size = max(2 * limit, min(base_tensors, largest) // 16)
    while len(results) < limit and (rows := _in_order(session, plan, filters, query.sort, after, size)):
        pairs = select(table.id, table.organ_id).where(among(table.id, [row_id for _, row_id in rows]))
        organs: dict[int, int] = dict(session.execute(pairs).all())
        if new := set(organs.values()) - firsts.keys():
            firsts |= _first_matches(session, filters, sorted(new))
        results += [(value, row_id) for value, row_id in rows if firsts[organs[row_id]] == row_id]
        if len(rows) < size:
            break
        after, size = PageEnd(*rows[-1]), min(8 * size, largest)
    return results[:limit]


def _first_matches(session: Session, filters: Filters, organ_ids: Sequence[int]) -> dict[int, int]:
    """Return the first match of each organ, in its oldest model."""
    place: Any = aliased(filters.table)
    first = by_index(select(place.id), place, "organ")
    first = first.where(place.organ_id == OrganRow.id, place.visible, *filters.conditions(place))
    first = first.order_by(place.model_id, place.id).limit(1)
    statement = select(OrganRow.id, first.correlate(OrganRow).scalar_subquery()).where(among(OrganRow.id, organ_ids))
    return dict(session.execute(statement).all())


def _in_order(
    session: Session, plan: SearchPlan, filters: Filters, sort: Sort, after: PageEnd | None, limit: int
) -> list[Ranked]:
    """Return the next matches by reading the index of the ranking in its order."""
    measure, table = RANKINGS[sort.field], filters.table
    column = getattr(table, measure)
    order = (column.desc(), table.id.desc()) if sort.descending else (column, table.id)
    matching = select(column, table.id).where(table.visible)
    ranges = [by_index(matching, table, measure)]
    if plan.types is not None:
        ranges = [
            by_index(matching.where(table.type == kind), table, "theta" if kind in plan.over else measure)
            for kind in plan.types
        ]
    is_postgresql = session.get_bind().dialect.name == "postgresql"
    results: list[Ranked] = []
    for conditions in _ranges_after(filters, sort, after) if ranges else ():
        missing = limit - len(results)
        rows = [own.where(*conditions) for own in ranges]
        if len(rows) > 1:
            # Only the first few rows of most types are read. PostgreSQL merges ranges that have an order and a limit
            # of their own. SQLite would sort each of those first, and merges ranges that have neither.
            rows = [union_all(*(own.order_by(*order).limit(missing) if is_postgresql else own for own in rows))]
        results += [tuple(row) for row in session.execute(rows[0].order_by(*order).limit(missing))]
        if len(results) == limit:
            break
    return results


def _ranges_after(filters: Filters, sort: Sort, after: PageEnd | None) -> Iterator[list[ColumnElement[bool]]]:
    """Yield the conditions of the matches after `after`, one list for each range of the index of `sort`, in its order.

    First the rows with the value of the cursor, then those beyond it, last those without a value. A comparison of
    (value, id) is equivalent to the first two, but SQLite would read all rows with the same value.
    """
    measure = RANKINGS[sort.field]
    table, column = filters.table, getattr(filters.table, measure)
    step = [] if after is None else [table.id < after.id if sort.descending else table.id > after.id]
    ranked = [term for term in filters.numbers if RANKINGS.get(term.field) == measure]
    wants_missing_only = any(term.absent and not term.ranges and not term.negated for term in ranked)
    if (after is None or after.value is not None) and not wants_missing_only:
        first = [column.is_not(None)]
        if after is not None and after.value is not None:
            # Beside bounds on the column, SQLite would not use the index for the equality.
            if all(term.holds(after.value) for term in filters.numbers if COLUMNS[term.field] == measure):
                yield [column == after.value, *step, *filters.conditions(without=measure)]
            first = [column < after.value if sort.descending else column > after.value]
        low, high = limits(filters.numbers, measure) if measure != "theta" else (None, None)
        bounds = [*([column >= low] if low is not None else []), *([column <= high] if high is not None else [])]
        yield [*first, *bounds, *filters.conditions()]
    if not limiting(filters.numbers, measure):
        yield [column.is_(None), *(step if after is not None and after.value is None else []), *filters.conditions()]


def _all_sorted(
    session: Session, plan: SearchPlan, filters: Filters, query: Query, after: PageEnd | None, limit: int
) -> list[Ranked]:
    """Return the next matches by reading all of them through the driver of the plan, and sorting them."""
    table = filters.table
    gained = filters.gains.organs() if query.sort.field == GAIN and filters.gains is not None else None
    measure = getattr(table, RANKINGS[query.sort.field]) if gained is None else gained.c.percent
    # An organ has the same measures at all places, so its first place represents it.
    first = func.min(table.id) if query.unique else table.id
    matching = select(measure.label("value"), first.label("id")).select_from(table)
    if gained is not None:
        matching = matching.join(gained, gained.c.id == table.organ_id)
    matching = driven(session, matching, plan, filters)
    rows = (matching.group_by(table.organ_id, measure) if query.unique else matching).subquery()
    statement = page_of(select(rows.c.value, rows.c.id), rows.c.value, rows.c.id, query.sort, after, limit)
    return [tuple(row) for row in session.execute(statement)]


def page_of(statement: Any, value: Any, row_id: Any, sort: Sort, after: PageEnd | None, limit: int) -> Any:
    """Return a SELECT of the next `limit` rows of `statement`, in the order `sort` of the column `value`.

    Rows without a value come last; equal values are ordered by `row_id`.
    """
    if after is not None:
        step = row_id < after.id if sort.descending else row_id > after.id
        position, last = tuple_(value, row_id), tuple_(after.value, after.id)
        is_after = position < last if sort.descending else position > last
        is_missing = value.is_(None)
        statement = statement.where(and_(is_missing, step) if after.value is None else or_(is_after, is_missing))
    order = (value.desc(), row_id.desc()) if sort.descending else (value, row_id)
    return statement.order_by(value.is_(None), *order).limit(limit)


def _rows_after(rows: Sequence[Ranked], sort: Sort, after: PageEnd | None) -> list[Ranked]:
    """Return `rows` in the order `sort`, as `page_of` sorts them; those after the cursor."""
    known = sorted([row for row in rows if row[0] is not None], reverse=sort.descending)
    missing = sorted([row for row in rows if row[0] is None], key=lambda row: row[1], reverse=sort.descending)
    if after is None:
        return known + missing
    if after.value is None:
        return [row for row in missing if (row[1] < after.id if sort.descending else row[1] > after.id)]
    last = (after.value, after.id)
    return [row for row in known if (row < last if sort.descending else row > last)] + missing


_PLACED = ("type", "tower", "block", "slot", "dtype", "size_bytes", *MEASURE_NAMES)
"""Members of PlacedOrgan that are columns of placements and experts."""
_MEMBERS = ("architecture", "license", "nonfinite", "name", "expert", *_PLACED)
"""Members of PlacedOrgan that are columns of `_select_placed`."""


def _select_placed(table: Any) -> Any:
    """Return a SELECT of the members of PlacedOrgan."""
    # Columns instead of objects, because the creation of objects took half of the time of a search.
    rows, stacks = table.__table__, Placement.__table__
    organs, blobs, models = OrganRow.__table__, Blob.__table__, ModelRow.__table__
    number = rows.c.expert if table is Expert else null().label("expert")
    statement = select(
        *(rows.c.id, rows.c.organ_id, blobs.c.digest, models.c.namespace, models.c.name, models.c.version),
        *(organs.c.shape, models.c.architecture, models.c.license, organs.c.nonfinite, stacks.c.name, number),
        *(rows.c[name] for name in _PLACED),
    ).select_from(rows)
    if table is Expert:
        statement = statement.join(stacks, stacks.c.id == rows.c.placement_id)
    statement = statement.join(organs, organs.c.id == rows.c.organ_id).join(blobs, blobs.c.id == organs.c.blob_id)
    return statement.join(models, models.c.id == rows.c.model_id)


_SELECT_PLACED = {table: _select_placed(table) for table in (Placement, Expert)}


def _load(session: Session, query: Query, filters: Filters, ranked: Sequence[Ranked]) -> tuple[PlacedOrgan, ...]:
    """Return the organs of `ranked` in that order, with their likeness to the organ of `like:` or to the base."""
    if not ranked:
        return ()
    ids = [row_id for _, row_id in ranked]
    table = filters.table
    rows = session.execute(_SELECT_PLACED[table].where(among(table.__table__.c.id, ids))).all()
    gained = {}
    if filters.gains is not None:
        gained = gains_of_organs(session, filters.gains, {row.organ_id for row in rows})
    likeness: dict[int, float | None] = {}
    change: dict[int, float | None] = {}
    if query.like is not None or query.sort.field == LIKENESS:
        likeness = {row_id: value for value, row_id in ranked}
    if query.like is None and filters.base_id is not None:
        alike, change = likeness_and_change(session, filters, filters.base_id, ids)
        likeness = likeness or alike
    organs = {}
    for row_id, organ_id, digest, namespace, model, version, shape, *members in rows:
        values = dict(zip(_MEMBERS, members, strict=True))
        sides = shape_of(shape)
        organs[row_id] = PlacedOrgan(
            digest=Digest(digest),
            model=f"{namespace}/{model}@{version}",
            shape=sides,
            theta_caution=theta_caution(values["theta"], values["dtype"], math.prod(sides)),
            likeness=likeness.get(row_id),
            change=change.get(row_id),
            gain=gained.get(organ_id),
            **values,
        )
    return tuple(organs[row_id] for row_id in ids)
