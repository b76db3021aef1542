"""Search: from a query to a page of organs or models, also ranked by likeness, and the counts of facets.

Two kinds of likeness rank organs: `like:` compares them with one organ, `likeness` with the organs of a base at the
same places. Both are computed from fingerprints for at most `COMPARED_MAX` matches; there is no index of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

from msgspec import structs
from sqlalchemy import (
    ColumnElement,
    Select,
    and_,
    case,
    false,
    func,
    literal,
    or_,
    select,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.cache import cached
from organs.registry.catalog.cursor import (
    Cursor,
    check_limit,
    cursor_text,
    parse_cursor,
)
from organs.registry.catalog.engine import among, batches, limited
from organs.registry.catalog.queries.model_lists import is_composed, model_summaries
from organs.registry.catalog.queries.model_names import incomplete_models
from organs.registry.catalog.queries.organs import organs_by_prefix, places_of_organ, shape_of
from organs.registry.catalog.queries.relatives import (
    ComparedPlacement,
    changes_from,
    changes_to,
    kin_of,
    likeness_to,
    likenesses,
    likenesses_to,
)
from organs.registry.catalog.tables import RANKED_COLUMNS, Blob, Expert, Facet, Fingerprint, Model, Organ, Placement
from organs.registry.catalog.vocabulary import (
    BIN_DEGREES,
    CHIMERA,
    PARTIAL,
    THETA_MAX_DEGREES,
    UNMEASURED,
    theta_bin,
)
from organs.registry.digest import Digest
from organs.registry.entities.model import FoldedModel, FoldedModelPage, ModelPage, ModelSummary, Quantisation
from organs.registry.entities.organ import FacetCounts, OrganPage, PlacedOrgan, ThetaBin
from organs.registry.errors import BadQuery, TooSlow
from organs.registry.measures import MEASURE_NAMES, theta_caution
from organs.registry.search.experts import (
    driver_of_experts,
    experts_by_index,
    load_experts,
    ranked_experts,
)
from organs.registry.search.gains import GainFilter, gains_of_models, gains_of_organs
from organs.registry.search.language import GAIN, LIKENESS, MADE_FROM, QUANT, TAG, Bounds, NumberRange, Query, Sort
from organs.registry.search.plan import (
    ABSENT,
    BINS,
    COLUMNS,
    GAINED,
    GATHER_MAX,
    RANKINGS,
    Mask,
    Narrowed,
    Plan,
    Ranked,
    RollUp,
    after_cursor,
    base_id_of,
    by_index,
    conditions_on,
    degrees,
    gains_of,
    held_roll_up,
    known_values,
    made_from_condition,
    matches,
    model_conditions,
    narrow,
    nonfinite_condition,
    number_condition,
    placement_condition,
    plan_of,
    ranges_after,
    roll_up,
    sorted_after,
    sums,
    tag_condition,
)

UNIQUE_ROWS_MAX = 4000
"""The most placements that one statement reads to find organs that are not on the page yet. A query with `fits:` reads
as many as the bases have organs, because each statement first reads all organs of the bases."""
UNIQUE_ROWS_OF_BASES_MAX = 65_536
"""The most placements that one statement of a query with `fits:` reads."""


def ranked_placements(
    session: Session, narrowed: Narrowed, sort: Sort, unique: bool, after: Cursor | None, limit: int
) -> list[Ranked]:
    """Return the next `limit` placements of a query after `after`, as sort value and id.

    Placements without a value come last. Equal values are ordered by id, newest first if the sort is falling, so the
    order is total.
    """
    if sort.field == GAIN:
        types = plan_of(session, narrowed, None, limit).types
        return _all_sorted(session, Plan(types, GAINED), narrowed, unique, sort, after, limit)
    plan = plan_of(session, narrowed, sort, limit)
    if plan.driver is not None:
        return _all_sorted(session, plan, narrowed, unique, sort, after, limit)
    if unique:
        return _unique_in_order(session, plan, narrowed, sort, after, limit)
    return _in_order(session, plan, narrowed, sort, after, limit)


def count_matching(
    session: Session, narrowed: Narrowed, bounds: Sequence[Bounds], limit: int
) -> list[tuple[int, int, int, int]] | None:
    """Return facet id, bin of θ, number of matching placements, and number of those within `bounds`.

    A query for experts counts experts. The result is None if more than `limit` rows would have to be read.
    """
    if narrowed.finds_experts:
        driver = driver_of_experts(session, narrowed)
        if driver is None:
            return None
        rows = experts_by_index(_counted(Expert, bounds).where(Expert.visible), driver)
        rows = rows.where(*matches(narrowed, Expert))
    else:
        plan = plan_of(session, narrowed, None, limit)
        if plan.driver is None:
            return None if plan.types else []
        rows = _driven(session, _counted(Placement, bounds), plan, narrowed)
    rows = rows.limit(limit + 1).subquery()
    grouped = select(rows.c.facet, rows.c.bin, func.count(), func.sum(rows.c.inside)).group_by(rows.c.facet, rows.c.bin)
    counts = [(facet, lower, count, int(within)) for facet, lower, count, within in session.execute(grouped)]
    return counts if sum(count for _, _, count, _ in counts) <= limit else None


def _counted(entity: Any, bounds: Sequence[Bounds]) -> Any:
    """Return a SELECT of facet and bin of θ of the placements or experts `entity`, and whether they meet `bounds`."""
    conditions = [placement_condition(term, entity) for term in bounds]
    inside = case((and_(*conditions), 1), else_=0) if conditions else literal(1)
    return select(entity.facet_id.label("facet"), _bin_of(entity.theta).label("bin"), inside.label("inside"))


def _bin_of(theta: Any) -> Any:
    """Return `theta_bin` in SQL, without a division that might round."""
    uppers = {lower + BIN_DEGREES: lower for lower in range(0, THETA_MAX_DEGREES - BIN_DEGREES, BIN_DEGREES)}
    whens = [(theta < upper, lower) for upper, lower in uppers.items()]
    return case((theta.is_(None), UNMEASURED), *whens, else_=THETA_MAX_DEGREES - BIN_DEGREES)


def _sort_column(narrowed: Narrowed, sort: Sort) -> Any:
    """Return the column of placements, or the expression, that results are sorted by."""
    if sort.field == GAIN:
        assert narrowed.gains is not None
        organs = narrowed.gains.organs()
        return select(organs.c.percent).where(organs.c.id == Placement.organ_id).scalar_subquery()
    return getattr(Placement, RANKINGS[sort.field])


def _unique_in_order(
    session: Session, plan: Plan, narrowed: Narrowed, sort: Sort, after: Cursor | None, limit: int
) -> list[Ranked]:
    """Return the rows of `_in_order`, with only the first match of each organ.

    The first match is searched once for each organ. A condition on each placement would read all places of its organ,
    up to 50,000, each time.
    """
    results: list[Ranked] = []
    firsts: dict[int, int] = {}
    base_tensors = sum(base.tensors for fitting in narrowed.fitting for base in fitting.bases)
    largest = max(UNIQUE_ROWS_MAX, min(base_tensors, UNIQUE_ROWS_OF_BASES_MAX))
    size = max(2 * limit, min(base_tensors, largest) // 16)
    while len(results) < limit and (rows := _in_order(session, plan, narrowed, sort, after, size)):
        pairs = select(Placement.id, Placement.organ_id).where(among(Placement.id, [row_id for _, row_id in rows]))
        organs = dict(session.execute(pairs).all())
        if new := set(organs.values()) - firsts.keys():
            firsts |= _first_matches(session, narrowed, sorted(new))
        results += [(value, row_id) for value, row_id in rows if firsts[organs[row_id]] == row_id]
        if len(rows) < size:
            break
        after, size = Cursor(*rows[-1]), min(8 * size, largest)
    return results[:limit]


def _first_matches(session: Session, narrowed: Narrowed, organ_ids: Sequence[int]) -> dict[int, int]:
    """Return the first matching placement of each organ, in its oldest model."""
    place = aliased(Placement)
    first = select(place.id).with_hint(place, "INDEXED BY ix_placements_organ", "sqlite")
    first = first.where(place.organ_id == Organ.id, place.visible, *matches(narrowed, place))
    first = first.order_by(place.model_id, place.id).limit(1)
    statement = select(Organ.id, first.correlate(Organ).scalar_subquery()).where(among(Organ.id, organ_ids))
    return dict(session.execute(statement).all())


def _in_order(
    session: Session, plan: Plan, narrowed: Narrowed, sort: Sort, after: Cursor | None, limit: int
) -> list[Ranked]:
    results: list[Ranked] = []
    if not plan.types:
        return results
    for conditions in ranges_after(narrowed, Placement, sort, after):
        results += _merged(session, plan, conditions, sort, limit - len(results))
        if len(results) == limit:
            break
    return results


def _merged(
    session: Session, plan: Plan, conditions: Sequence[ColumnElement[bool]], sort: Sort, limit: int
) -> list[Ranked]:
    """Return the first rows of all types, each from its own range of the index."""
    measure = RANKINGS[sort.field]
    column = getattr(Placement, measure)
    order = (column.desc(), Placement.id.desc()) if sort.descending else (column, Placement.id)
    rows_by_type: list[Any] = []
    for kind in plan.types:
        rows = select(column, Placement.id).where(Placement.visible, Placement.type == kind, *conditions)
        rows_by_type.append(by_index(rows, "theta" if kind in plan.over else measure))
    # Only the first few rows of most types are read. PostgreSQL merges ranges that have an order and a limit of their
    # own. SQLite would sort each of those first, and merges ranges that have neither.
    is_postgresql = session.get_bind().dialect.name == "postgresql"
    if len(rows_by_type) == 1:
        (merged,) = rows_by_type
    else:
        merged = union_all(*(rows.order_by(*order).limit(limit) if is_postgresql else rows for rows in rows_by_type))
    return [tuple(row) for row in session.execute(merged.order_by(*order).limit(limit))]


def _all_sorted(
    session: Session,
    plan: Plan,
    narrowed: Narrowed,
    unique: bool,
    sort: Sort,
    after: Cursor | None,
    limit: int,
) -> list[Ranked]:
    gained = narrowed.gains.organs() if sort.field == GAIN and narrowed.gains is not None else None
    measure = getattr(Placement, RANKINGS[sort.field]) if gained is None else gained.c.percent
    # An organ has the same measures at all places, so its first place represents it.
    first = func.min(Placement.id) if unique else Placement.id
    matching = select(measure.label("value"), first.label("id")).select_from(Placement)
    if gained is not None:
        matching = matching.join(gained, gained.c.id == Placement.organ_id)
    matching = _driven(session, matching, plan, narrowed)
    matched = (matching.group_by(Placement.organ_id, measure) if unique else matching).subquery()
    return [tuple(row) for row in session.execute(sorted_after(matched, sort, after, limit))]


def _driven(session: Session, rows: Any, plan: Plan, narrowed: Narrowed) -> Any:
    """Return the matches among `rows`, a SELECT of placements, read through the driver of the plan."""
    assert plan.driver is not None
    others = matches(narrowed, Placement, without=_tested_columns(plan))
    if plan.driver not in RANKED_COLUMNS or session.get_bind().dialect.name != "postgresql":
        rows = rows.where(*_driver_conditions(session, plan, narrowed, Placement), *others)
        return by_index(rows, plan.driver)
    # PostgreSQL has no hints, and its estimates take filters to be independent. Here it reads the ids through the
    # index that suits the driver, and estimates their number by the limit, which is never reached.
    place = aliased(Placement)
    ids = select(place.id).where(*_driver_conditions(session, plan, narrowed, place)).cte().prefix_with("MATERIALIZED")
    driven = select(ids.c.id).limit(None if plan.rows is None else 2 * plan.rows + 1000).subquery()
    return rows.join(driven, driven.c.id == Placement.id).where(*others)


def _tested_columns(plan: Plan) -> set[str]:
    """Return the columns whose conditions `_driver_conditions` has, so that `matches` leaves them out."""
    assert plan.driver is not None
    if plan.driver in RANKED_COLUMNS:
        return {plan.driver, "facet_id", "block", "model_id", "theta"}
    columns = {"model": {"model_id"}, GAINED: set[str]()}
    return columns.get(plan.driver, {plan.driver})


def _driver_conditions(session: Session, plan: Plan, narrowed: Narrowed, entity: Any) -> list[ColumnElement[bool]]:
    """Return the conditions of the query that the index of the driver tests."""
    columns = _tested_columns(plan)
    conditions = [entity.visible]
    if plan.driver != "facet_id":
        conditions.append(entity.type.in_(plan.types))
    if plan.driver == "facet_id" or ("facet_id" in columns and narrowed.facet_filters):
        conditions.append(_facet_condition(session, narrowed, entity))
    if "model_id" in columns and narrowed.models is not None:
        conditions.append(narrowed.models.condition(entity.model_id))
    if plan.driver == "model":
        fitting = [models for term in narrowed.fitting if (models := term.models(plan.types)) is not None]
        conditions += [among(entity.model_id, list(models)) for models in fitting]
    for column in sorted(columns & set(COLUMNS.values())):
        conditions += conditions_on(column, narrowed.numbers, entity)
    return conditions


def _facet_condition(session: Session, narrowed: Narrowed, entity: Any) -> ColumnElement[bool]:
    """Return the condition that a placement has one of the facets that match, as ids, which are in the cache.

    PostgreSQL knows how frequent ids are, but not how frequent the results of a subquery are.
    """
    facets = held_roll_up(session)
    if facets is None:
        return entity.facet_id.in_(select(Facet.id).where(*narrowed.facet_conditions))  # type: ignore[no-any-return]
    return among(entity.facet_id, compress(facets.positions, facets.mask(narrowed.facet_filters)))


COMPARED_MAX = 20_000
"""The most placements that are compared. With `like:`, those of the same block come first; with a base, its kin."""
COMPARED_MODELS_TENSORS_MAX = 200_000
"""The most tensors of all models among which a search with a base looks for placements to compare. It takes about a
second."""
COMPARED_BATCH_TENSORS = 5000
"""The tensors of the models that one statement reads."""

Likeness = tuple[float, int]
"""A correlation, and the id of a placement."""


def alike_placements(
    session: Session, narrowed: Narrowed, query: Query, after: Cursor | None, limit: int
) -> tuple[list[Likeness], list[str]]:
    """Return the next `limit` placements after `after`, the most similar first, and notes for people.

    Only organs of the same slot and shape are compared. Raises NotFound; Ambiguous; BadQuery for an organ without a
    fingerprint.
    """
    assert query.like is not None
    organ, fingerprint = _organ(session, query.like)
    places = [placement for placement, _ in places_of_organ(session, organ.id)]
    same_block = [Placement.block.in_({place.block for place in places if place.block is not None})]
    slots = sorted({place.slot for place in places})
    rows = _candidates(session, narrowed, organ, slots, same_block, COMPARED_MAX + 1)
    if len(rows) <= COMPARED_MAX:
        other_blocks = [Placement.block.is_(None) | ~same_block[0]]
        rows += _candidates(session, narrowed, organ, slots, other_blocks, COMPARED_MAX + 1 - len(rows))
    notes = [f"only the first {COMPARED_MAX} organs of its slot and shape were compared: narrow the query"]
    notes = notes if len(rows) > COMPARED_MAX else []
    ranked = _ranked(fingerprint, rows[:COMPARED_MAX], query.unique)
    if after is not None:
        ranked = [row for row in ranked if row < (after.value, after.id)]
    return ranked[:limit], notes


def _organ(session: Session, prefix: str) -> tuple[Organ, bytes]:
    organ, _ = organs_by_prefix(session, prefix, visible=True)[0]
    fingerprint = session.get(Fingerprint, organ.id)
    if fingerprint is None:
        reason = "this organ has no fingerprint: it has fewer than 256 values, or a dtype that cannot be read"
        raise BadQuery(f"like:{prefix}", reason)
    return organ, fingerprint.values


def _candidates(
    session: Session,
    narrowed: Narrowed,
    organ: Organ,
    slots: Sequence[str],
    where: Sequence[ColumnElement[bool]],
    limit: int,
) -> list[tuple[int, int, bytes]]:
    """Return placement id, organ id and fingerprint of the organs to compare."""
    statement = (
        select(Placement.id, Placement.organ_id, Fingerprint.values)
        .with_hint(Placement, "INDEXED BY ix_placements_place", "sqlite")
        .join(Organ, Organ.id == Placement.organ_id)
        .join(Fingerprint, Fingerprint.organ_id == Placement.organ_id)
        .where(Placement.slot.in_(slots), Placement.visible, Organ.shape == organ.shape)
        .where(*where, *matches(narrowed, Placement))
        .limit(limit)
    )
    return [(row_id, organ_id, values) for row_id, organ_id, values in session.execute(statement)]


def _ranked(fingerprint: bytes, rows: Sequence[tuple[int, int, bytes]], unique: bool) -> list[Likeness]:
    """Return likeness and id of the placements, by falling likeness, then by falling id.

    Constant organs have no likeness and are left out.
    """
    from organs.registry.lineage import correlations  # imports numpy, which no other search needs

    organs = {organ_id: values for _, organ_id, values in rows}
    values_by_organ = dict(zip(organs, correlations(fingerprint, list(organs.values())), strict=True))
    if unique:
        rows = list(
            {organ_id: (row_id, organ_id, values) for row_id, organ_id, values in sorted(rows, reverse=True)}.values()
        )
    likeness = [(value, row_id) for row_id, organ_id, _ in rows if (value := values_by_organ[organ_id]) is not None]
    return sorted(likeness, reverse=True)


def compared_placements(
    session: Session,
    narrowed: Narrowed,
    query: Query,
    after: Cursor | None = None,
    limit: int | None = None,
    on_compared: Callable[[int], None] | None = None,
) -> tuple[list[Ranked], list[str]]:
    """Return the next placements of a query that filters or sorts by `likeness`, and notes for people.

    The order is that of `ranked_placements`. `on_compared` is called with the number of placements to compare.
    """
    if narrowed.base_id is None:
        return [], []
    measures = () if query.sort.field == LIKENESS else (_sort_column(narrowed, query.sort),)
    compared, is_complete = _compared(session, narrowed, measures, on_compared)
    ranked = [(row, values[0] if measures else likeness) for row, values, likeness in compared]
    if query.unique:
        firsts: dict[int, int] = {}
        for row, _ in ranked:
            firsts[row.organ_id] = min(row.id, firsts.get(row.organ_id, row.id))
        ranked = [(row, value) for row, value in ranked if firsts[row.organ_id] == row.id]
    notes = [] if is_complete else [_CUT_NOTE]
    return after_cursor([(value, row.id) for row, value in ranked], query.sort, after)[:limit], notes


_CUT_NOTE = f"only {COMPARED_MAX} organs were compared with the base, those of its kin first: narrow the query"


def _compared(
    session: Session, narrowed: Narrowed, columns: Sequence[Any], on_compared: Callable[[int], None] | None = None
) -> tuple[list[tuple[ComparedPlacement, tuple[Any, ...], float | None]], bool]:
    """Return the matches with the values of `columns` and their likeness, and whether all matches were compared."""
    assert narrowed.base_id is not None
    rows, is_complete = _rows_to_compare(session, narrowed, columns)
    if on_compared is not None:
        on_compared(len(rows))
    alike = likenesses_to(session, narrowed.base_id, [row for row, _ in rows])
    compared = [
        (row, values, likeness)
        for (row, values), likeness in zip(rows, alike, strict=True)
        if all(term.holds(likeness) for term in narrowed.likeness)
    ]
    return compared, is_complete


def _rows_to_compare(
    session: Session, narrowed: Narrowed, columns: Sequence[Any]
) -> tuple[list[tuple[ComparedPlacement, tuple[Any, ...]]], bool]:
    """Return the matches without the filters by likeness, with the values of `columns`, and whether these are all."""
    plan = plan_of(session, narrowed, None, COMPARED_MAX)
    if not plan.types:
        return [], True
    statement = _to_compare(columns)
    if plan.driver is not None:
        rows = _read_to_compare(session, _driven(session, statement, plan, narrowed).limit(COMPARED_MAX + 1))
        return rows[:COMPARED_MAX], len(rows) <= COMPARED_MAX
    statement = statement.where(Placement.visible, Placement.type.in_(plan.types), *matches(narrowed, Placement))
    statement = by_index(statement, "model")
    models = _models_to_compare(session, narrowed, plan)
    rows, examined = [], 0
    for batch in _model_batches(models):
        if len(rows) > COMPARED_MAX or examined >= COMPARED_MODELS_TENSORS_MAX:
            return rows[:COMPARED_MAX], False
        examined += sum(models[model_id] for model_id in batch)
        rows += _read_to_compare(session, statement.where(among(Placement.model_id, batch)))
    return rows[:COMPARED_MAX], len(rows) <= COMPARED_MAX


def _to_compare(columns: Sequence[Any]) -> Any:
    """Return a SELECT of the members of ComparedPlacement and of `columns`."""
    place = (Placement.tower, Placement.block, Placement.slot)
    statement = select(
        Placement.id, Placement.organ_id, Placement.model_id, *place, Organ.shape, Fingerprint.values, *columns
    )
    statement = statement.join(Organ, Organ.id == Placement.organ_id)
    return statement.outerjoin(Fingerprint, Fingerprint.organ_id == Placement.organ_id)


def _read_to_compare(session: Session, statement: Any) -> list[tuple[ComparedPlacement, tuple[Any, ...]]]:
    return [
        (ComparedPlacement(row_id, (tower, block, slot), organ_id, model_id, shape, fingerprint), tuple(values))
        for row_id, organ_id, model_id, tower, block, slot, shape, fingerprint, *values in session.execute(statement)
    ]


def _models_to_compare(session: Session, narrowed: Narrowed, plan: Plan) -> dict[int, int]:
    """Return the models that may have matches, with their numbers of tensors: kin of the base first, then the newest.

    Kin are in the order of their likeness.
    """
    assert narrowed.base_id is not None
    statement = select(Model.id, Model.tensors).where(Model.state == "visible")
    if narrowed.models is not None:
        statement = statement.where(narrowed.models.condition(Model.id))
    for term in narrowed.fitting:
        if (architectures := term.values("arch")) is not None:
            statement = statement.where(Model.architecture.in_(sorted(architectures)))
        if (few := term.models(plan.types)) is not None:
            statement = statement.where(among(Model.id, few))
    alike = likenesses(session, narrowed.base_id)
    kin = kin_of(session, narrowed.base_id)
    models = dict(session.execute(statement).all())
    order = sorted(models, key=lambda model_id: (model_id not in kin, -alike.get(model_id, -1.0), -model_id))
    return {model_id: models[model_id] for model_id in order}


def _model_batches(models: Mapping[int, int]) -> Iterator[list[int]]:
    """Yield the ids of `models` in parts of some thousand tensors."""
    batch: list[int] = []
    tensors = 0
    for model_id, count in models.items():
        batch.append(model_id)
        tensors += count
        if tensors >= COMPARED_BATCH_TENSORS:
            yield batch
            batch, tensors = [], 0
    if batch:
        yield batch


def _likeness_by_id(session: Session, base_id: int, ids: Sequence[int]) -> dict[int, float | None]:
    """Return the likeness of the placements `ids` to the base."""
    placements = _to_be_compared(session, ids)
    return dict(zip([row.id for row in placements], likenesses_to(session, base_id, placements), strict=True))


def _with_changes(
    session: Session, base_id: int, ids: Sequence[int], organs: Sequence[PlacedOrgan]
) -> tuple[PlacedOrgan, ...]:
    """Return the organs of the placements `ids` with their change from the base."""
    placements = _to_be_compared(session, ids)
    changes = dict(zip([row.id for row in placements], changes_to(session, base_id, placements), strict=True))
    return tuple(structs.replace(organ, change=changes.get(row_id)) for row_id, organ in zip(ids, organs, strict=True))


def _to_be_compared(session: Session, ids: Sequence[int]) -> list[ComparedPlacement]:
    if not ids:
        return []
    return [row for row, _ in _read_to_compare(session, _to_compare(()).where(among(Placement.id, ids)))]


FACET_FIELDS = ("type", "slot", "dtype", "arch", "license")
FACET_VALUES_MAX = 100
"""The most values of one field in the counts: those with the largest counts."""


@dataclass(frozen=True, slots=True)
class _PlacementCounts:
    """Exact counts of placements, for filters that the counts of facets do not cover."""

    unbounded: Mapping[tuple[int, int], int]
    """Counts by facet id and bin of θ, without the filters by θ."""
    bounded: Mapping[int, int]
    """Counts by facet id, with the filters by θ."""


def facet_counts(session: Session, narrowed: Narrowed, seconds: float | None = None) -> FacetCounts:
    """Return the counts of a query by facet.

    Filters are left out if too many placements would have to be counted for them, or if that takes longer than
    `seconds`; in the second case the result is `hurried` and must not be cached.
    """
    theta = [term for term in narrowed.numbers if term.field in ("theta", "signal")]
    other_numbers = [term for term in narrowed.numbers if term not in theta]
    remaining = replace(narrowed, facets=[], numbers=other_numbers)
    hurried = False
    try:
        counted = _count_within(session, remaining, theta, seconds)
    except TooSlow:
        counted, hurried = None, True
    uncounted: tuple[str, ...] = ()
    if counted is None:
        uncounted = (*(str(term) for term in other_numbers), *(fitting.text for fitting in narrowed.fitting))
        uncounted += ("the filter by model",) if narrowed.models is not None else ()
        uncounted += tuple(map(str, narrowed.likeness))
        uncounted += () if narrowed.gains is None else ("the filter by gain",)
    if counted is None and narrowed.finds_experts:  # the roll-up counts whole tensors
        return FacetCounts(total=None, fields={}, theta=(), exact=False, uncounted=uncounted, hurried=hurried)
    facets = roll_up(session)
    bounded = _bounded(facets, counted, theta)
    matching = facets.mask(narrowed.facets)
    total = round(sum(sums(facets.columns["type"], bounded, matching).values()))
    on_edges = all(_on_edges(term) for term in theta)
    return FacetCounts(
        total=None if uncounted else total,
        fields={name: _field_counts(name, narrowed, facets, bounded, matching) for name in FACET_FIELDS},
        theta=_histogram(facets, counted, matching),
        exact=(counted is not None or on_edges) and not uncounted,
        uncounted=uncounted,
        hurried=hurried,
    )


def _count_within(
    session: Session, remaining: Narrowed, theta: Sequence[Bounds], seconds: float | None
) -> _PlacementCounts | None:
    """Return exact counts of placements if the facets are not exact and few placements match; raises TooSlow."""
    if (
        not remaining.numbers
        and remaining.models is None
        and not remaining.fitting
        and not remaining.likeness
        and remaining.gains is None
        and all(_on_edges(term) for term in theta)
    ):
        return None
    if seconds is None:
        return _count_placements(session, remaining, theta)
    with limited(session, seconds):
        return _count_placements(session, remaining, theta)


def _count_placements(session: Session, remaining: Narrowed, theta: Sequence[Bounds]) -> _PlacementCounts | None:
    if remaining.likeness:
        return None if remaining.finds_experts else _count_compared(session, remaining, theta)
    rows = count_matching(session, remaining, theta, GATHER_MAX)
    if rows is None:
        return None
    unbounded: Counter[tuple[int, int]] = Counter()
    bounded: Counter[int] = Counter()
    for facet_id, lower, count, within in rows:
        unbounded[facet_id, lower] += count
        bounded[facet_id] += within
    return _PlacementCounts(unbounded, bounded)


def _count_compared(session: Session, remaining: Narrowed, theta: Sequence[Bounds]) -> _PlacementCounts | None:
    """Return the counts of a query that filters by likeness; None if there are too many matches to compare."""
    if remaining.base_id is None:
        return _PlacementCounts({}, {})
    compared, is_complete = _compared(session, remaining, (Placement.facet_id, Placement.theta, Placement.signal))
    if not is_complete:
        return None
    unbounded: Counter[tuple[int, int]] = Counter()
    bounded: Counter[int] = Counter()
    for _, (facet_id, theta_degrees, signal), _ in compared:
        values = {"theta": theta_degrees, "signal": signal}
        unbounded[facet_id, theta_bin(theta_degrees)] += 1
        bounded[facet_id] += all(term.holds(values[term.field]) for term in theta)
    return _PlacementCounts(unbounded, bounded)


def _bounded(facets: RollUp, counted: _PlacementCounts | None, theta: Sequence[Bounds]) -> Sequence[float]:
    """Return the number of placements within the bounds of θ for each facet; an estimate where a bound cuts a bin."""
    if counted is not None:
        return [counted.bounded.get(facet_id, 0) for facet_id in facets.positions]
    if not theta:
        return facets.counts()
    return facets.shared([_share(theta, lower) for lower in BINS])


def _histogram(facets: RollUp, counted: _PlacementCounts | None, matching: Mask) -> tuple[ThetaBin, ...]:
    if counted is None:
        counts: Mapping[int, int] = facets.histogram(matching)
    else:
        counts = Counter()
        for (facet_id, lower), count in counted.unbounded.items():
            if matching[facets.positions[facet_id]]:
                counts[lower] += count
    bins = [ThetaBin(lower=lower, count=counts[lower]) for lower in sorted(counts) if lower != UNMEASURED]
    return (*bins, *([ThetaBin(lower=None, count=counts[UNMEASURED])] if UNMEASURED in counts else []))


def _field_counts(
    name: str, narrowed: Narrowed, facets: RollUp, bounded: Sequence[float], matching: Mask
) -> dict[str, int]:
    """Return the counts of the values of one field without its own filter, the largest first."""
    other_choices = [choice for choice in narrowed.facets if choice.field != name]
    mask = matching if len(other_choices) == len(narrowed.facets) else facets.mask(other_choices)
    counts: Counter[str] = Counter()
    for value, count in sums(facets.columns[name], bounded, mask).items():
        if round(count):
            counts[value or ABSENT] += round(count)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:FACET_VALUES_MAX])


def _share(terms: Iterable[Bounds], lower: int) -> float:
    """Return the share of a bin within `terms`, on the assumption that θ is evenly distributed in the bin."""
    share = 1.0
    for term in terms:
        if lower == UNMEASURED:
            share *= term.absent is not term.negated
            continue
        covered = min(1.0, sum(_overlap(term, interval, lower) for interval in term.ranges))
        share *= 1.0 - covered if term.negated else covered
    return share


def _overlap(term: Bounds, interval: NumberRange, lower: int) -> float:
    low = 0.0 if interval.low is None else degrees(term.field, interval.low)
    high = float(THETA_MAX_DEGREES) if interval.high is None else degrees(term.field, interval.high)
    return max(0.0, min(high, lower + BIN_DEGREES) - max(low, lower)) / BIN_DEGREES


def _on_edges(term: Bounds) -> bool:
    """Return whether all bounds are edges of bins, included at the low end and excluded at the high end."""
    if term.field != "theta":
        return not term.ranges
    return all(
        (interval.low is None or _is_edge(interval.low, begins=not interval.low_open))
        and (interval.high is None or _is_edge(interval.high, begins=interval.high_open))
        for interval in term.ranges
    )


def _is_edge(bound: float, *, begins: bool) -> bool:
    """Return whether no bin has values on both sides of `bound`. The bound belongs to the upper side if `begins`."""
    if bound >= THETA_MAX_DEGREES:
        return bound > THETA_MAX_DEGREES or not begins
    return begins and bound % BIN_DEGREES == 0


def search_organs(session: Session, query: Query, limit: int, after: str | None = None) -> OrganPage:
    """Return the next `limit` organs of `query` after the cursor `after`, which is the `next` of the previous page.

    The order is total, so pages do not repeat or skip organs. Raises BadQuery for an invalid cursor; NotFound and
    Ambiguous if `like:` does not name exactly one organ.
    """
    cursor = _parse_page(query, limit, after)
    return _page(session, query, narrow(session, query), limit, cursor)


def count_organs(session: Session, query: Query, seconds: float | None = None) -> FacetCounts:
    """Return the counts of `query` by type, slot, dtype, architecture, license and θ.

    Organs are counted at all of their places, also with `like:` and `unique:`. Filters that take longer than `seconds`
    to count are left out.
    """
    return _cached_counts(session, query, narrow(session, query), seconds)


def search_and_count(
    session: Session, query: Query, limit: int, after: str | None, counts_seconds: float
) -> tuple[OrganPage, FacetCounts]:
    """Return the page and the counts, both from the same state of the catalog."""
    cursor = _parse_page(query, limit, after)
    narrowed = narrow(session, query)
    page = _page(session, query, narrowed, limit, cursor)
    return page, _cached_counts(session, query, narrowed, counts_seconds)


def _cached_counts(session: Session, query: Query, narrowed: Narrowed, seconds: float | None) -> FacetCounts:
    """Return the counts. They are cached for the next pages unless they were hurried."""
    key = ("counts", frozenset(query.terms), narrowed.gains, narrowed.models and narrowed.models.key)
    return cached(session, key, lambda: facet_counts(session, narrowed, seconds), lambda counts: not counts.hurried)


def _parse_page(query: Query, limit: int, after: str | None) -> Cursor | None:
    check_limit(limit)
    return None if after is None else parse_cursor(str(query), after, missing=query.like is None)


def _page(session: Session, query: Query, narrowed: Narrowed, limit: int, cursor: Cursor | None) -> OrganPage:
    rows: Sequence[tuple[float | None, int]]
    notes = list(narrowed.notes)
    if query.finds_experts:
        rows, expert_notes = ranked_experts(session, narrowed, query, cursor, limit + 1)
        notes += expert_notes
    elif query.like is not None:
        rows, like_notes = alike_placements(session, narrowed, query, cursor, limit + 1)
        notes += like_notes
    elif query.sort.field == LIKENESS or narrowed.likeness:
        rows, likeness_notes = compared_placements(session, narrowed, query, cursor, limit + 1)
        notes += likeness_notes
    else:
        rows = ranked_placements(session, narrowed, query.sort, query.unique, cursor, limit + 1)
    items = _load_ranked(session, query, narrowed, rows[:limit])
    if narrowed.base_id is not None and query.like is None and not query.finds_experts:
        items = _with_changes(session, narrowed.base_id, [row_id for _, row_id in rows[:limit]], items)
    last = Cursor(*rows[limit - 1]) if len(rows) > limit else None
    return OrganPage(items=items, next=cursor_text(str(query), last) if last else None, notes=tuple(notes))


def _load_ranked(
    session: Session, query: Query, narrowed: Narrowed, rows: Sequence[tuple[float | None, int]]
) -> tuple[PlacedOrgan, ...]:
    """Return the placements of `rows` with their likeness, to the organ of `like:` or to the base."""
    ids = [row_id for _, row_id in rows]
    likeness: dict[int, float | None] = {}
    is_ranked = query.like is not None or query.sort.field == LIKENESS
    if is_ranked:
        likeness = {row_id: value for value, row_id in rows}
    if query.finds_experts:
        return load_experts(session, ids, likeness)
    if not is_ranked and narrowed.base_id is not None:
        likeness = _likeness_by_id(session, narrowed.base_id, ids)
    return _load(session, ids, likeness, narrowed.gains)


def organs_in_order(
    session: Session, query: Query, size: int, on_compared: Callable[[int], None] | None = None
) -> Iterator[Sequence[PlacedOrgan]]:
    """Yield all organs of `query` in its order, `size` at a time. Raises the errors of `search_organs`.

    `on_compared` is called with the number of organs that are compared with the base before the first is yielded.
    """
    narrowed = narrow(session, query)
    is_compared = query.like is None and (query.sort.field == LIKENESS or narrowed.likeness)
    if is_compared and not query.finds_experts:
        rows, _ = compared_placements(session, narrowed, query, on_compared=on_compared)  # once, not for each page
        for batch in batches(rows, size):
            yield _load_ranked(session, query, narrowed, batch)
        return
    after = None
    while True:
        page = search_organs(session, query, size, after)
        yield page.items
        after = page.next
        if after is None:
            return


_PLACES = Placement.__table__
_ORGANS, _BLOBS, _MODELS = Organ.__table__, Blob.__table__, Model.__table__
_PLACED = ("name", "type", "tower", "block", "slot", "dtype", "size_bytes", *MEASURE_NAMES)
"""Members of PlacedOrgan that are columns of placements."""
_ROWS: Any = (
    # Columns instead of objects, because the creation of objects took half of the time of a search.
    select(
        _PLACES.c.id,
        _PLACES.c.organ_id,
        _BLOBS.c.digest,
        _MODELS.c.namespace,
        _MODELS.c.name,
        _MODELS.c.version,
        _ORGANS.c.shape,
        _MODELS.c.architecture,
        _MODELS.c.license,
        _ORGANS.c.nonfinite,
        *(_PLACES.c[name] for name in _PLACED),
    )
    .select_from(_PLACES)
    .join(_ORGANS, _ORGANS.c.id == _PLACES.c.organ_id)
    .join(_BLOBS, _BLOBS.c.id == _ORGANS.c.blob_id)
    .join(_MODELS, _MODELS.c.id == _PLACES.c.model_id)
)


def _load(
    session: Session, ids: Sequence[int], likeness: Mapping[int, float | None], gains: GainFilter | None
) -> tuple[PlacedOrgan, ...]:
    """Return the placements `ids`, in that order."""
    if not ids:
        return ()
    rows = session.execute(_ROWS.where(among(_PLACES.c.id, ids))).all()
    gained = {} if gains is None else gains_of_organs(session, gains, {row.organ_id for row in rows})
    organs = {}
    for row in rows:
        row_id, organ_id, digest, namespace, model, version, shape, architecture, license_, nonfinite, *placed = row
        values = dict(zip(_PLACED, placed, strict=True))
        sides = shape_of(shape)
        organs[row_id] = PlacedOrgan(
            digest=Digest(digest),
            model=f"{namespace}/{model}@{version}",
            shape=sides,
            architecture=architecture,
            license=license_,
            nonfinite=nonfinite,
            theta_caution=theta_caution(values["theta"], values["dtype"], math.prod(sides)),
            likeness=likeness.get(row_id),
            gain=gained.get(organ_id),
            **values,
        )
    return tuple(organs[row_id] for row_id in ids)


_COLUMNS: dict[str, Any] = {
    "new": Model.id,  # ids follow the order of registration
    "theta": Model.mean_theta,
    "signal": Model.mean_signal,
    "params": Model.parameters,
    "tensors": Model.tensors,
    "size": Model.size_bytes,
    "downloads": Model.downloads,
    "grafts": Model.grafts,
}


@dataclass(frozen=True, slots=True)
class ModelMatches:
    """A resolved query for models: all matches, without an order."""

    text: str
    """The text of the query in cursors."""
    statement: Any
    """A SELECT of model, sort value, and likeness to the base."""
    column: Any
    """The sort value."""
    sort: Sort
    gains: GainFilter | None
    is_filtered: bool
    notes: tuple[str, ...]
    base_id: int | None = None

    def rows(self, session: Session, limit: int, after: Cursor | None = None) -> list[Any]:
        """Return the next `limit` rows after the cursor. Models without a sort value come last."""
        statement, column = self.statement, self.column
        if after is not None:
            statement = _after(statement, column, self.sort, after)
        order = (column.desc(), Model.id.desc()) if self.sort.descending else (column, Model.id)
        return list(session.execute(statement.order_by(column.is_(None), *order).limit(limit)).all())

    def summaries(self, session: Session, rows: Sequence[Any]) -> tuple[ModelSummary, ...]:
        """Return `rows` as lines of a list."""
        models = [model for model, _, _ in rows]
        return model_summaries(
            session,
            models,
            likeness={model.id: alike for model, _, alike in rows},
            changes={} if self.base_id is None else changes_from(session, self.base_id) | {self.base_id: 0.0},
            gains={} if self.gains is None else gains_of_models(session, self.gains, [model.id for model in models]),
        )


def match_models(session: Session, query: Query, *, ranked: bool = False) -> ModelMatches:
    """Resolve a query for visible models; `ranked` as in `search_models`."""
    notes: list[str] = []
    base_id = base_id_of(session, query, notes)
    likeness: Any = literal(None) if base_id is None else likeness_to(base_id)
    gains = gains_of(session, query, base_id, notes)
    gained = None if gains is None else gains.models()
    columns = {**_COLUMNS, LIKENESS: likeness, GAIN: literal(None) if gained is None else gained.c.percent}
    conditions = [*model_conditions(session, query, notes), *_choices(session, query, notes)]
    conditions += [nonfinite_condition(choice, Model.nonfinite_tensors) for choice in query.choices("nonfinite")]
    conditions += [number_condition(term, columns[term.field]) for name in columns for term in query.numbers(name)]
    conditions += [Model.complete.is_(true()), Model.kind == "model", ~is_composed()] if ranked else []
    if gains is not None and gains.needs_gain:
        conditions.append(columns[GAIN].is_not(None))
    column = columns[query.sort.field]
    statement = select(Model, column, likeness).where(Model.state == "visible", *conditions)
    if gained is not None:
        statement = statement.outerjoin(gained, gained.c.id == Model.id)
    return ModelMatches(
        text=f"{'ranked ' if ranked else ''}{query}",
        statement=statement,
        column=column,
        sort=query.sort,
        gains=gains,
        is_filtered=bool(conditions),
        notes=tuple(notes),
        base_id=base_id,
    )


def search_models(
    session: Session, query: Query, limit: int, after: str | None = None, *, ranked: bool = False
) -> ModelPage:
    """Return the next `limit` visible models of `query` after the cursor `after`. Those without a sort value come last.

    With `ranked`, only complete models are returned, without adapters, vocabularies and chimeras. The first page of all
    models has a note for each of the newest incomplete models. Raises BadQuery.
    """
    check_limit(limit)
    matches = match_models(session, query, ranked=ranked)
    rows = matches.rows(session, limit + 1, None if after is None else parse_cursor(matches.text, after))
    page = rows[:limit]
    notes = matches.notes
    if not (after or ranked or matches.is_filtered):
        notes += tuple(map(str, incomplete_models(session)))
    last = Cursor(page[-1][1], page[-1][0].id) if len(rows) > limit else None
    return ModelPage(
        items=matches.summaries(session, page),
        next=cursor_text(matches.text, last) if last else None,
        notes=notes,
    )


FOLDED_ROWS_MAX = 4000
"""The most models that are read for a page of folded models."""
FOLDED_SHOWN = 40
"""The most quantisations and versions that are listed with a model."""
TAGS_SHOWN = 8
"""The most tags of a model in a list."""


def folded_models(session: Session, query: Query, limit: int, after: str | None = None) -> FoldedModelPage:
    """Return the next `limit` models of `query` as `search_models` does, with quantisations and versions folded.

    The models of a namespace whose names differ only in their quantisation are one item, at the place of the first.
    A page is shorter if `FOLDED_ROWS_MAX` models have been read for it. Raises BadQuery.
    """
    check_limit(limit)
    matches = match_models(session, query)
    cursor = None if after is None else parse_cursor(matches.text, after)
    firsts: list[Any] = []
    groups: dict[tuple[str, str], list[Any]] = {}
    examined, is_complete = 0, False
    while len(firsts) <= limit and examined < FOLDED_ROWS_MAX and not is_complete:
        rows = matches.rows(session, 2 * limit + 1, cursor)
        is_complete = len(rows) <= 2 * limit
        examined += len(rows)
        groups |= _same_models(session, matches, {_stem_key(row) for row in rows} - groups.keys())
        firsts += [row for row in rows if groups[_stem_key(row)][0][0].id == row[0].id]
        cursor = Cursor(rows[-1][1], rows[-1][0].id) if rows else None
    page = firsts[:limit]
    if len(firsts) > limit:
        cursor = Cursor(page[-1][1], page[-1][0].id)
    elif is_complete:
        cursor = None
    shown = {row[0].id: row for first in page for row in groups[_stem_key(first)][: FOLDED_SHOWN + 1]}
    by_id = dict(zip(shown, matches.summaries(session, list(shown.values())), strict=True))
    notes = matches.notes
    if after is None and not matches.is_filtered:
        notes += tuple(map(str, incomplete_models(session)))
    return FoldedModelPage(
        items=tuple(_folded(first, groups[_stem_key(first)], by_id) for first in page),
        next=cursor_text(matches.text, cursor) if cursor else None,
        notes=notes,
    )


def _stem_key(row: Any) -> tuple[str, str]:
    return row[0].namespace, row[0].stem


def _same_models(
    session: Session, matches: ModelMatches, keys: Collection[tuple[str, str]]
) -> dict[tuple[str, str], list[Any]]:
    """Return the matches with the namespaces and stems `keys`, in the order of the query."""
    groups: dict[tuple[str, str], list[Any]] = {}
    for batch in batches(sorted(keys)):
        conditions = tuple_(Model.namespace, Model.stem).in_(batch)
        for row in replace(matches, statement=matches.statement.where(conditions)).rows(session, FOLDED_ROWS_MAX):
            groups.setdefault(_stem_key(row), []).append(row)
    return groups


def _folded(first: Any, group: Sequence[Any], by_id: Mapping[int, ModelSummary]) -> FoldedModel:
    """Return a model with its other quantisations, the smallest first."""
    others = sorted((row[0] for row in group[1 : FOLDED_SHOWN + 1]), key=lambda model: (model.size_bytes, model.id))
    return FoldedModel(
        model=by_id[first[0].id],
        title=first[0].stem,
        tags=first[0].tags[:TAGS_SHOWN],
        others=tuple(Quantisation(model=by_id[other.id], label=_label(other, first[0])) for other in others),
        label=_label(first[0], None),
        left_out=max(0, len(group) - 1 - FOLDED_SHOWN),
    )


def _label(model: Model, first: Model | None) -> str:
    """Return the quantisation and the version, which tell `model` from others with the same stem."""
    label = model.quantisation or "no quantisation"
    is_version = first is not None and model.name == first.name
    return f"version {model.version}" if is_version else label


def _choices(session: Session, query: Query, notes: list[str]) -> Sequence[ColumnElement[bool]]:
    def visible(column: Any) -> Select[Any]:
        return select(column).where(Model.state == "visible")

    conditions: list[ColumnElement[bool]] = []
    kind = case((Model.complete.is_(false()), PARTIAL), (is_composed(), CHIMERA), else_=Model.kind)
    columns = {"kind": kind, "arch": Model.architecture, "license": Model.license, QUANT: Model.quantisation}
    for name, column in columns.items():
        for choice in query.choices(name):
            values = choice.values if name == "kind" else known_values(session, choice, visible(column), notes)
            text: Any = func.coalesce(column, "")
            conditions.append(text.not_in(values) if choice.negated else text.in_(values))
    conditions += [tag_condition(session, choice, notes) for choice in query.choices(TAG)]
    return conditions + [made_from_condition(session, choice, notes) for choice in query.choices(MADE_FROM)]


def _after(statement: Select[Any], column: Any, sort: Sort, after: Cursor) -> Select[Any]:
    step = Model.id < after.id if sort.descending else Model.id > after.id
    if after.value is None:
        return statement.where(column.is_(None), step)
    position, last = tuple_(column, Model.id), tuple_(after.value, after.id)
    return statement.where(or_(position < last if sort.descending else position > last, column.is_(None)))
