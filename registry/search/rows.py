"""Run a search of organs or experts: from a query to a page, in the order of a measure or by likeness.

Two kinds of likeness rank results: `like:` compares them with one organ, `likeness` with the organs of a base at the
same places. Both are computed from fingerprints for at most `COMPARED_MAX` matches; there is no index of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Integer, and_, cast, func, null, or_, select, true, tuple_, union_all
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.cursor import PageEnd, check_limit, next_cursor, parse_cursor
from organs.registry.catalog.engine import among, batches
from organs.registry.catalog.queries.organs import organs_by_prefix, places_of_organ, shape_of
from organs.registry.catalog.queries.relatives import changes_from, kin_of, likenesses
from organs.registry.catalog.tables import Blob, Expert, Fingerprint, ModelRow, OrganRow, Placement
from organs.registry.digest import Digest
from organs.registry.entities.organ import OrganPage, PlacedOrgan
from organs.registry.errors import BadQuery
from organs.registry.measures import MEASURE_NAMES, theta_caution
from organs.registry.search.fitting import batches_of_models
from organs.registry.search.gains import gains_of_organs
from organs.registry.search.language import GAIN, LIKENESS, Query, Sort
from organs.registry.search.plan import (
    RANKINGS,
    Filters,
    SearchPlan,
    by_index,
    driven,
    plan_of,
    ranges_after,
    resolve,
)

Ranked = tuple[float | None, int]
"""The sort value and the id of a placement or an expert."""


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
        compared, notes = _compare(session, query, filters)
        rows = rows_after(compared, query.sort, after)[: limit + 1]
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
        rows, _ = _compare(session, query, filters, on_compared)
        for batch in batches(rows_after(rows, query.sort, None), size):
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
    for conditions in ranges_after(filters, sort, after) if ranges else ():
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


def rows_after(rows: Sequence[Ranked], sort: Sort, after: PageEnd | None) -> list[Ranked]:
    """Return `rows` in the order `sort`, as `page_of` sorts them; those after the cursor."""
    known = sorted([row for row in rows if row[0] is not None], reverse=sort.descending)
    missing = sorted([row for row in rows if row[0] is None], key=lambda row: row[1], reverse=sort.descending)
    if after is None:
        return known + missing
    if after.value is None:
        return [row for row in missing if (row[1] < after.id if sort.descending else row[1] > after.id)]
    last = (after.value, after.id)
    return [row for row in known if (row < last if sort.descending else row > last)] + missing


COMPARED_MAX = 20_000
"""The most placements that are compared. With `like:`, those of the same block come first; with a base, its kin."""
COMPARED_MODELS_TENSORS_MAX = 200_000
"""The most tensors of all models among which a search with a base looks for placements to compare. It takes about a
second."""
COMPARED_BATCH_TENSORS = 5000
"""The tensors of the models that one statement reads."""


Place = tuple[str, int | None, str, int | None]
"""Tower, block, slot, and the number of an expert."""


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """A placement or an expert that is compared with the base."""

    id: int
    organ_id: int
    model_id: int
    place: Place
    shape: str
    fingerprint: bytes | None
    values: tuple[Any, ...]
    """The values of more columns."""


def _compare(
    session: Session, query: Query, filters: Filters, on_compared: Callable[[int], None] | None = None
) -> tuple[list[Ranked], list[str]]:
    """Return all matches of a query with `like:`, or with a filter or a sort by likeness, and notes for people.

    `on_compared` is called with the number of organs that are compared with the base. Raises NotFound; Ambiguous;
    BadQuery for an organ without a fingerprint.
    """
    noun = "experts" if filters.table is Expert else "organs"
    rows: list[tuple[float | None, int, int]]
    if query.like is not None:
        rows, is_complete = _alike(session, filters, query.like)
        of_its_kind = noun if filters.table is Expert else f"{noun} of its slot and shape"
        note = f"only the first {COMPARED_MAX} {of_its_kind} were compared: narrow the query"
    else:
        columns: tuple[Any, ...] = ()
        if query.sort.field == GAIN and filters.gains is not None:
            gained = filters.gains.organs()
            columns = (select(gained.c.percent).where(gained.c.id == Placement.organ_id).scalar_subquery(),)
        elif query.sort.field != LIKENESS:
            columns = (getattr(filters.table, RANKINGS[query.sort.field]),)
        compared, is_complete = compare_with_base(session, filters, columns, on_compared)
        rows = [(row.values[0] if columns else likeness, row.id, row.organ_id) for row, likeness in compared]
        note = f"only {COMPARED_MAX} {noun} were compared with the base, those of its kin first: narrow the query"
    if query.unique:
        firsts: dict[int, int] = {}
        for _, row_id, organ_id in rows:
            firsts[organ_id] = min(row_id, firsts.get(organ_id, row_id))
        rows = [row for row in rows if firsts[row[2]] == row[1]]
    return [(value, row_id) for value, row_id, _ in rows], [] if is_complete else [note]


def _alike(session: Session, filters: Filters, prefix: str) -> tuple[list[tuple[float | None, int, int]], bool]:
    """Return likeness, id and organ id of the matches that can be compared with the organ `prefix`, and whether all.

    Organs of the same slot and shape can be compared, and all experts of the shape. Constant organs have no likeness.
    """
    from organs.registry.similarity import correlations  # imports numpy, which most searches do not need

    organ, _ = organs_by_prefix(session, prefix, visible=True)[0]
    own = session.get(Fingerprint, organ.id)
    if own is None:
        reason = "this organ has no fingerprint: it has fewer than 256 values, or a dtype that cannot be read"
        raise BadQuery(f"like:{prefix}", reason)
    table = filters.table
    statement: Any = select(table.id, table.organ_id, Fingerprint.values).join(OrganRow, OrganRow.id == table.organ_id)
    statement = statement.join(Fingerprint, Fingerprint.organ_id == table.organ_id)
    statement = statement.where(OrganRow.shape == organ.shape)
    plan = plan_of(session, filters, None, COMPARED_MAX) if table is Expert else SearchPlan(None, None)
    parts: list[Any] = [true()]
    if table is Placement:
        places = [placement for placement, _ in places_of_organ(session, organ.id)]
        slots = sorted({place.slot for place in places})
        statement = by_index(statement, table, "place").where(table.slot.in_(slots))
        same_block = table.block.in_({place.block for place in places if place.block is not None})
        parts = [same_block, table.block.is_(None) | ~same_block]
    if plan.driver is None:
        statement = statement.where(table.visible, *filters.conditions())
    else:
        statement = driven(session, statement, plan, filters)
    rows: list[Any] = []
    for part in parts:
        if len(rows) <= COMPARED_MAX:
            rows += session.execute(statement.where(part).limit(COMPARED_MAX + 1 - len(rows)))
    compared = rows[:COMPARED_MAX]
    organs = {organ_id: values for _, organ_id, values in compared}
    alike = dict(zip(organs, correlations(own.values, list(organs.values())), strict=True))
    found = [(value, row_id, organ_id) for row_id, organ_id, _ in compared if (value := alike[organ_id]) is not None]
    return found, len(rows) <= COMPARED_MAX


def compare_with_base(
    session: Session, filters: Filters, columns: Sequence[Any], on_compared: Callable[[int], None] | None = None
) -> tuple[list[tuple[ComparedRow, float | None]], bool]:
    """Return the matches with the values of `columns` and their likeness, and whether all matches were compared."""
    if filters.base_id is None:
        return [], True
    rows, is_complete = _rows_to_compare(session, filters, columns)
    if on_compared is not None:
        on_compared(len(rows))
    alike = _likenesses_to_base(session, filters.base_id, _organs_of_base(session, filters, rows), rows)
    compared = list(zip(rows, alike, strict=True))
    return [own for own in compared if all(term.holds(own[1]) for term in filters.likeness)], is_complete


def _rows_to_compare(session: Session, filters: Filters, columns: Sequence[Any]) -> tuple[list[ComparedRow], bool]:
    """Return the matches without the filters by likeness, with the values of `columns`, and whether these are all.

    If no index leaves few matches, the models that may have some are read: kin of the base first, by their likeness,
    then the newest.
    """
    assert filters.base_id is not None
    plan = plan_of(session, filters, None, COMPARED_MAX)
    statement = _select_compared(filters.table, columns)
    if plan.driver is not None:
        found = _read_compared(session, driven(session, statement, plan, filters).limit(COMPARED_MAX + 1))
        return found[:COMPARED_MAX], len(found) <= COMPARED_MAX
    if plan.types == ():
        return [], True
    statement = statement.where(filters.table.visible, *filters.conditions())
    models = select(ModelRow.id, ModelRow.tensors).where(ModelRow.state == "visible")
    if filters.models is not None:
        models = models.where(filters.models.condition(ModelRow.id))
    if plan.types is not None:
        statement = statement.where(filters.table.type.in_(plan.types))
        for term in filters.fits:
            if (architectures := term.values("arch")) is not None:
                models = models.where(ModelRow.architecture.in_(sorted(architectures)))
            if (few := term.models(plan.types)) is not None:
                models = models.where(among(ModelRow.id, few))
    alike = likenesses(session, filters.base_id)
    kin = kin_of(session, filters.base_id)
    tensors = dict(session.execute(models).all())
    order = sorted(tensors, key=lambda model_id: (model_id not in kin, -alike.get(model_id, -1.0), -model_id))
    rows: list[ComparedRow] = []
    examined = 0
    for batch in batches_of_models(order, tensors, COMPARED_BATCH_TENSORS):
        if len(rows) > COMPARED_MAX or examined >= COMPARED_MODELS_TENSORS_MAX:
            return rows[:COMPARED_MAX], False
        examined += sum(tensors[model_id] for model_id in batch)
        of_models = by_index(statement.where(among(filters.table.model_id, batch)), filters.table, "model")
        rows += _read_compared(session, of_models.limit(COMPARED_MAX + 1 - len(rows)))
    return rows[:COMPARED_MAX], len(rows) <= COMPARED_MAX


def _select_compared(table: Any, columns: Sequence[Any] = ()) -> Any:
    """Return a SELECT of the members of ComparedRow."""
    number = Expert.expert if table is Expert else cast(null(), Integer)
    place = (table.tower, table.block, table.slot, number)
    statement = select(table.id, table.organ_id, table.model_id, *place, OrganRow.shape, Fingerprint.values, *columns)
    statement = statement.join(OrganRow, OrganRow.id == table.organ_id)
    return statement.outerjoin(Fingerprint, Fingerprint.organ_id == table.organ_id)


def _read_compared(session: Session, statement: Any) -> list[ComparedRow]:
    return [
        ComparedRow(row_id, organ_id, model_id, (tower, block, slot, number), shape, fingerprint, tuple(values))
        for row_id, organ_id, model_id, tower, block, slot, number, shape, fingerprint, *values in session.execute(
            statement
        )
    ]


def _organs_of_base(session: Session, filters: Filters, rows: Sequence[ComparedRow]) -> dict[Place, ComparedRow]:
    """Return the organs of the base by their places, at least those at the places of `rows`."""
    table, base_id = filters.table, filters.base_id
    statement = _select_compared(table).where(table.model_id == base_id).order_by(table.id)
    if table is Expert:  # a model has up to 70,000 experts
        blocks = sorted({block for _, block, _, _ in (row.place for row in rows) if block is not None})
        stacks = select(Placement.id).where(Placement.model_id == base_id)
        stacks = stacks.where(Placement.slot.in_(sorted({row.place[2] for row in rows})))
        stacks = stacks.where(or_(Placement.block.in_(blocks), Placement.block.is_(None)))
        stacks = by_index(stacks, Placement, "model")
        statement = statement.where(Expert.placement_id.in_(stacks))
        statement = statement.where(among(Expert.expert, sorted({row.place[3] or 0 for row in rows})))
    return {row.place: row for row in _read_compared(session, by_index(statement, table, "model"))}


def _likenesses_to_base(
    session: Session, base_id: int, own: Mapping[Place, ComparedRow], rows: Sequence[ComparedRow]
) -> list[float | None]:
    """Return the likeness of each row to the organ of the base at the same place.

    It is the correlation of two matrices of one shape, 1 for equal ones. An organ that cannot be compared (a vector, a
    constant, an organ without a fingerprint) has the measured likeness of the two models. The result is None if that
    was not measured, and if the base has no organ of the same shape at the place.
    """
    from organs.registry.similarity import paired_correlations  # imports numpy, which most searches do not need

    return _values_to_base(own, rows, likenesses(session, base_id) | {base_id: 1.0}, 1.0, paired_correlations)


def _values_to_base(
    own: Mapping[Place, ComparedRow],
    rows: Sequence[ComparedRow],
    models: Mapping[int, float],
    equal: float,
    values_of: Callable[[Sequence[tuple[bytes, bytes]]], Sequence[float | None]],
) -> list[float | None]:
    """Return a value of each row and the organ of `own` at the same place: `equal` if their bytes are the same.

    `values_of` computes it from pairs of fingerprints; organs that cannot be compared have the value of their model.
    """
    from organs.registry.similarity import is_constant

    varied = {
        place
        for place, organ in own.items()
        if sum(length > 1 for length in shape_of(organ.shape)) > 1
        and not (organ.fingerprint is not None and is_constant(organ.fingerprint))
    }
    values: list[float | None] = []
    pairs: dict[tuple[int, int], tuple[bytes, bytes]] = {}
    keys: list[tuple[int, int] | None] = []
    for row in rows:
        organ, key, value = own.get(row.place), None, None
        if organ is not None and organ.shape == row.shape:
            value = models.get(row.model_id)
            if row.place in varied:
                if organ.organ_id == row.organ_id:
                    value = equal
                elif organ.fingerprint is not None and row.fingerprint is not None:
                    key = (organ.organ_id, row.organ_id)
                    pairs[key] = (organ.fingerprint, row.fingerprint)
        values.append(value)
        keys.append(key)
    computed = dict(zip(pairs, values_of(list(pairs.values())), strict=True))
    return [
        value if key is None or (found := computed[key]) is None else found
        for value, key in zip(values, keys, strict=True)
    ]


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
        from organs.registry.similarity import changes  # imports numpy, which most searches do not need

        base_id = filters.base_id
        compared = _read_compared(session, _select_compared(table).where(among(table.id, ids)))
        compared_ids = [row.id for row in compared]
        own = _organs_of_base(session, filters, compared)
        models = changes_from(session, base_id) | {base_id: 0.0}
        change = dict(zip(compared_ids, _values_to_base(own, compared, models, 0.0, changes), strict=True))
        if not likeness:
            alike = _likenesses_to_base(session, base_id, own, compared)
            likeness = dict(zip(compared_ids, alike, strict=True))
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
