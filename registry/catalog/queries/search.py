"""Search: from a query to a page of organs or models, ranked also by likeness, and the counts beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, case, false, func, literal, or_, select, true, tuple_
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.cursor import (
    Cursor,
    check_limit,
    cursor_text,
    parse_cursor,
)
from organs.registry.catalog.engine import limited
from organs.registry.catalog.memory import remembered
from organs.registry.catalog.queries.composing import among
from organs.registry.catalog.queries.models import composed_among, is_composed, model_summary
from organs.registry.catalog.queries.organs import organs_by_prefix, places_of_organ, shape_of
from organs.registry.catalog.queries.planning import (
    ABSENT,
    BINS,
    GATHER_MAX,
    RANKINGS,
    Mask,
    Narrowed,
    Plan,
    RollUp,
    by_index,
    degrees,
    index_conditions,
    known_values,
    model_conditions,
    narrow,
    nonfinite_condition,
    number_condition,
    placement_condition,
    plan_of,
    ranges,
    roll_up,
    stretch,
    sums,
    wants_missing_only,
)
from organs.registry.catalog.search import (
    CHIMERA,
    PARTIAL,
    Interval,
    Numbers,
    Query,
    Sort,
)
from organs.registry.catalog.tables import Blob, Facet, Fingerprint, Model, Organ, Placement
from organs.registry.catalog.vocabulary import (
    BIN_DEGREES,
    THETA_MAX_DEGREES,
    UNMEASURED,
)
from organs.registry.digest import Digest
from organs.registry.entities.model import ModelPage
from organs.registry.entities.organ import FacetCounts, OrganPage, PlacedOrgan, ThetaBin
from organs.registry.errors import BadQuery, TooSlow
from organs.registry.measures import MEASURE_NAMES

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


COMPARED_MAX = 20_000
"""Placements that are compared, those of the same block first."""

Likeness = tuple[float, int]
"""A correlation and the id of a placement."""


def alike_placements(
    session: Session, narrowed: Narrowed, query: Query, after: Cursor | None, limit: int
) -> tuple[list[Likeness], list[str]]:
    """The next `limit` placements behind `after`, the most alike first, and what should be said about it.

    Only organs of the same slot and shape are compared. Raises NotFound, Ambiguous, BadQuery for an organ that has no
    fingerprint.
    """
    assert query.like is not None
    organ, own = _organ(session, query.like)
    places = [placement for placement, _ in places_of_organ(session, organ.id)]
    same_block = [Placement.block.in_({place.block for place in places if place.block is not None})]
    slots = sorted({place.slot for place in places})
    rows = _candidates(session, narrowed, organ, slots, same_block, COMPARED_MAX + 1)
    if len(rows) <= COMPARED_MAX:
        elsewhere = [Placement.block.is_(None) | ~same_block[0]]
        rows += _candidates(session, narrowed, organ, slots, elsewhere, COMPARED_MAX + 1 - len(rows))
    notes = [f"only the first {COMPARED_MAX} organs of its slot and shape were compared: narrow the query"]
    notes = notes if len(rows) > COMPARED_MAX else []
    ranked = _ranked(own, rows[:COMPARED_MAX], query.unique)
    if after is not None:
        ranked = [row for row in ranked if row < (after.value, after.id)]
    return ranked[:limit], notes


def _organ(session: Session, prefix: str) -> tuple[Organ, bytes]:
    organ, _ = organs_by_prefix(session, prefix, visible=True)[0]
    own = session.get(Fingerprint, organ.id)
    if own is None:
        raise BadQuery(f"like:{prefix}", "this organ has no fingerprint: it has fewer than 256 values, or no kernel")
    return organ, own.values


def _candidates(
    session: Session,
    narrowed: Narrowed,
    organ: Organ,
    slots: Sequence[str],
    where: Sequence[ColumnElement[bool]],
    limit: int,
) -> list[tuple[int, int, bytes]]:
    """Placement, organ and fingerprint."""
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


def _ranked(own: bytes, rows: Sequence[tuple[int, int, bytes]], unique: bool) -> list[Likeness]:
    """The most alike first, equal ones by falling id; organs that are constant are like nothing."""
    from organs.registry.lineage import correlations  # loads numpy, which no other search needs

    different = {organ_id: values for _, organ_id, values in rows}
    found = dict(zip(different, correlations(own, list(different.values())), strict=True))
    if unique:
        rows = list(
            {organ_id: (row_id, organ_id, values) for row_id, organ_id, values in sorted(rows, reverse=True)}.values()
        )
    alike = [(value, row_id) for row_id, organ_id, _ in rows if (value := found[organ_id]) is not None]
    return sorted(alike, reverse=True)


SHOWN_FIELDS = ("type", "slot", "dtype", "arch", "license")
VALUES_SHOWN = 100
"""Of each field, the values with the largest counts."""


@dataclass(frozen=True, slots=True)
class _OneByOne:
    """What the filters that facets do not know leave, counted from the placements themselves."""

    everywhere: Mapping[tuple[int, int], int]
    """By facet id and bin of θ, the filters by θ left out."""
    bounded: Mapping[int, int]
    """By facet id, with the filters by θ."""


def facet_counts(session: Session, narrowed: Narrowed, seconds: float | None = None) -> FacetCounts:
    """How what the query finds is spread. What would have to be counted one by one, past a cap, is left out.

    So is what takes longer than `seconds` to be counted one by one; the answer then is `hurried`, not to be kept.
    """
    theta = [term for term in narrowed.numbers if term.field in ("theta", "signal")]
    others = [term for term in narrowed.numbers if term not in theta]
    rest = replace(narrowed, facets=[], numbers=others)
    hurried = False
    try:
        counted = _in_time(session, rest, theta, seconds)
    except TooSlow:
        counted, hurried = None, True
    uncounted: tuple[str, ...] = ()
    if counted is None:
        uncounted = (*(str(term) for term in others), *(one.text for one in narrowed.fitting))
        uncounted += ("the filter by model",) if narrowed.models is not None else ()
    held = roll_up(session)
    bounded = _bounded(held, counted, theta)
    matching = held.mask(narrowed.facets)
    total = round(sum(sums(held.columns["type"], bounded, matching).values()))
    on_edges = all(_on_edges(term) for term in theta)
    return FacetCounts(
        total=None if uncounted else total,
        fields={name: _field_counts(name, narrowed, held, bounded, matching) for name in SHOWN_FIELDS},
        theta=_histogram(held, counted, matching),
        exact=(counted is not None or on_edges) and not uncounted,
        uncounted=uncounted,
        hurried=hurried,
    )


def _in_time(session: Session, rest: Narrowed, theta: Sequence[Numbers], seconds: float | None) -> _OneByOne | None:
    """What facets cannot tell exactly, when the other filters leave few placements: those; raises TooSlow."""
    if not rest.numbers and rest.models is None and not rest.fitting and all(_on_edges(term) for term in theta):
        return None
    if seconds is None:
        return _counted_one_by_one(session, rest, theta)
    with limited(session, seconds):
        return _counted_one_by_one(session, rest, theta)


def _counted_one_by_one(session: Session, rest: Narrowed, theta: Sequence[Numbers]) -> _OneByOne | None:
    found = spread_of_matching(session, rest, theta, GATHER_MAX)
    if found is None:
        return None
    everywhere: Counter[tuple[int, int]] = Counter()
    bounded: Counter[int] = Counter()
    for facet_id, lower, count, within in found:
        everywhere[facet_id, lower] += count
        bounded[facet_id] += within
    return _OneByOne(everywhere, bounded)


def _bounded(held: RollUp, counted: _OneByOne | None, theta: Sequence[Numbers]) -> Sequence[float]:
    """By the position of a facet, how many placements the bounds on θ leave: a share of them where one cuts a bin."""
    if counted is not None:
        return [counted.bounded.get(facet_id, 0) for facet_id in held.positions]
    if not theta:
        return held.counts()
    return held.shared([_share(theta, lower) for lower in BINS])


def _histogram(held: RollUp, counted: _OneByOne | None, matching: Mask) -> tuple[ThetaBin, ...]:
    if counted is None:
        found: Mapping[int, int] = held.histogram(matching)
    else:
        found = Counter()
        for (facet_id, lower), count in counted.everywhere.items():
            if matching[held.positions[facet_id]]:
                found[lower] += count
    bins = [ThetaBin(lower=lower, count=found[lower]) for lower in sorted(found) if lower != UNMEASURED]
    return (*bins, *([ThetaBin(lower=None, count=found[UNMEASURED])] if UNMEASURED in found else []))


def _field_counts(
    name: str, narrowed: Narrowed, held: RollUp, bounded: Sequence[float], matching: Mask
) -> dict[str, int]:
    """The counts of one field's values, its own filter left out, the largest first."""
    others = [one for one in narrowed.facets if one.field != name]
    mask = matching if len(others) == len(narrowed.facets) else held.mask(others)
    counts: Counter[str] = Counter()
    for value, count in sums(held.columns[name], bounded, mask).items():
        if round(count):
            counts[value or ABSENT] += round(count)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:VALUES_SHOWN])


def _share(terms: Iterable[Numbers], lower: int) -> float:
    """The share of a bin of θ that `terms` leave, if θ is spread evenly in it."""
    share = 1.0
    for term in terms:
        if lower == UNMEASURED:
            share *= term.absent is not term.negated
            continue
        covered = min(1.0, sum(_overlap(term, interval, lower) for interval in term.intervals))
        share *= 1.0 - covered if term.negated else covered
    return share


def _overlap(term: Numbers, interval: Interval, lower: int) -> float:
    low = 0.0 if interval.low is None else degrees(term.field, interval.low)
    high = float(THETA_MAX_DEGREES) if interval.high is None else degrees(term.field, interval.high)
    return max(0.0, min(high, lower + BIN_DEGREES) - max(low, lower)) / BIN_DEGREES


def _on_edges(term: Numbers) -> bool:
    """Whether the bounds are edges of bins: from an edge on, or up to but without one; the last has its end too."""
    if term.field != "theta":
        return not term.intervals
    return all(
        (one.low is None or _is_edge(one.low, begins=not one.low_open))
        and (one.high is None or _is_edge(one.high, begins=one.high_open))
        for one in term.intervals
    )


def _is_edge(bound: float, *, begins: bool) -> bool:
    """Whether no bin has values on both sides of `bound`, which itself belongs to what `begins` with it, or not."""
    if bound >= THETA_MAX_DEGREES:
        return bound > THETA_MAX_DEGREES or not begins
    return begins and bound % BIN_DEGREES == 0


def search_organs(session: Session, query: Query, limit: int, after: str | None = None) -> OrganPage:
    """The next `limit` organs that `query` finds behind `after`, which is the `next` of the page before.

    The order is total, so that pages neither repeat nor skip. Raises BadQuery for an `after` that is no such text,
    NotFound, Ambiguous for a `like:` that names no organ.
    """
    cursor = _place(query, limit, after)
    return _page(session, query, narrow(session, query), limit, cursor)


def count_organs(session: Session, query: Query, seconds: float | None = None) -> FacetCounts:
    """How what `query` finds is spread over type, slot, dtype, architecture, licence and θ.

    Organs are counted at all of their places: `like:` and `unique:` change nothing. What takes longer than `seconds` to
    count is left out.
    """
    return _remembered_counts(session, query, narrow(session, query), seconds)


def search_and_count(
    session: Session, query: Query, limit: int, after: str | None, counts_seconds: float
) -> tuple[OrganPage, FacetCounts]:
    """Both at once, of one state of the catalog."""
    cursor = _place(query, limit, after)
    narrowed = narrow(session, query)
    page = _page(session, query, narrowed, limit, cursor)
    return page, _remembered_counts(session, query, narrowed, counts_seconds)


def _remembered_counts(session: Session, query: Query, narrowed: Narrowed, seconds: float | None) -> FacetCounts:
    """The counts, remembered for the pages that follow unless they were hurried."""
    key = ("counts", frozenset(query.terms), narrowed.models_asked)
    return remembered(session, key, lambda: facet_counts(session, narrowed, seconds), lambda made: not made.hurried)


def _place(query: Query, limit: int, after: str | None) -> Cursor | None:
    check_limit(limit)
    return None if after is None else parse_cursor(str(query), after, missing=query.like is None)


def _page(session: Session, query: Query, narrowed: Narrowed, limit: int, cursor: Cursor | None) -> OrganPage:
    rows: Sequence[tuple[float | None, int]]
    notes = list(narrowed.notes)
    if query.like is not None:
        rows, more_notes = alike_placements(session, narrowed, query, cursor, limit + 1)
        notes += more_notes
    else:
        rows = ranked_placements(session, narrowed, query.sort, query.unique, cursor, limit + 1)
    shown = rows[:limit]
    likeness = {row_id: value for value, row_id in shown} if query.like is not None else {}
    items = _found(session, [row_id for _, row_id in shown], likeness)
    place = Cursor(*shown[-1]) if len(rows) > limit else None
    return OrganPage(items=items, next=cursor_text(str(query), place) if place else None, notes=tuple(notes))


_PLACES = Placement.__table__
_ORGANS, _BLOBS, _MODELS = Organ.__table__, Blob.__table__, Model.__table__
_PLACED = ("name", "type", "tower", "block", "slot", "dtype", "size_bytes", *MEASURE_NAMES)
"""Members of PlacedOrgan that are columns of placements."""
_FOUND: Any = (
    # Columns, not objects: half of a search's time went into making those.
    select(
        _PLACES.c.id,
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
    .where(_PLACES.c.id.in_(bindparam("ids", expanding=True)))
)


def _found(session: Session, ids: Sequence[int], likeness: Mapping[int, float | None]) -> tuple[PlacedOrgan, ...]:
    """The placements `ids`, in that order."""
    if not ids:
        return ()
    found = {}
    for row in session.execute(_FOUND, {"ids": list(ids)}):
        row_id, digest, namespace, model, version, shape, architecture, license_, nonfinite, *placed = row
        found[row_id] = PlacedOrgan(
            digest=Digest(digest),
            model=f"{namespace}/{model}@{version}",
            shape=shape_of(shape),
            architecture=architecture,
            license=license_,
            nonfinite=nonfinite,
            likeness=likeness.get(row_id),
            **dict(zip(_PLACED, placed, strict=True)),
        )
    return tuple(found[row_id] for row_id in ids)


_COLUMNS: dict[str, Any] = {
    "new": Model.id,  # ids are given in the order of registration
    "theta": Model.mean_theta,
    "signal": Model.mean_signal,
    "params": Model.parameters,
    "tensors": Model.tensors,
    "size": Model.size_bytes,
    "downloads": Model.downloads,
    "grafts": Model.grafts,
}


def search_models(
    session: Session, query: Query, limit: int, after: str | None = None, *, ranked: bool = False
) -> ModelPage:
    """The next `limit` visible models that `query` finds behind `after`; those without the sort's value last.

    With `ranked` only what is compared in rankings: complete models, no adapters and no vocabularies. Raises BadQuery.
    """
    check_limit(limit)
    text = f"{'ranked ' if ranked else ''}{query}"
    notes: list[str] = []
    conditions = [*model_conditions(session, query, notes), *_choices(session, query, notes)]
    conditions += [nonfinite_condition(choice, Model.nonfinite_tensors) for choice in query.choices("nonfinite")]
    conditions += [number_condition(term, _COLUMNS[term.field]) for name in _COLUMNS for term in query.numbers(name)]
    conditions += [Model.complete.is_(true()), Model.kind == "model", ~is_composed()] if ranked else []
    statement = select(Model).where(Model.state == "visible", *conditions)
    column = _COLUMNS[query.sort.field]
    if after is not None:
        statement = _behind(statement, column, query.sort, parse_cursor(text, after))
    order = (column.desc(), Model.id.desc()) if query.sort.descending else (column, Model.id)
    rows = session.scalars(statement.order_by(column.is_(None), *order).limit(limit + 1)).all()
    shown = tuple(rows[:limit])
    place = Cursor(getattr(shown[-1], column.key), shown[-1].id) if len(rows) > limit else None
    composed = composed_among(session, [model.id for model in shown])
    return ModelPage(
        items=tuple(model_summary(model, composed=model.id in composed) for model in shown),
        next=cursor_text(text, place) if place else None,
        notes=tuple(notes),
    )


def _choices(session: Session, query: Query, notes: list[str]) -> Sequence[ColumnElement[bool]]:
    def shown(column: Any) -> Select[Any]:
        return select(column).where(Model.state == "visible")

    conditions: list[ColumnElement[bool]] = []
    kind = case((Model.complete.is_(false()), PARTIAL), (is_composed(), CHIMERA), else_=Model.kind)
    for name, column in (("kind", kind), ("arch", Model.architecture), ("license", Model.license)):
        for choice in query.choices(name):
            values = choice.values if name == "kind" else known_values(session, choice, shown(column), notes)
            stated: Any = func.coalesce(column, "")
            conditions.append(stated.not_in(values) if choice.negated else stated.in_(values))
    return conditions


def _behind(statement: Select[Model], column: Any, sort: Sort, after: Cursor) -> Select[Model]:
    step = Model.id < after.id if sort.descending else Model.id > after.id
    if after.value is None:
        return statement.where(column.is_(None), step)
    here, there = tuple_(column, Model.id), tuple_(after.value, after.id)
    return statement.where(or_(here < there if sort.descending else here > there, column.is_(None)))
