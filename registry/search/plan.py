"""Plan a search: resolve its query to filters, and choose the index that answers it.

Organs at their places are rows of `placements`, the experts of stacks are rows of `experts`. Both tables have the
columns that filters test, so `Filters.table` is the only difference between their searches.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from typing import Any

from sqlalchemy import ColumnElement, Select, func, not_, or_, select
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.cache import cached
from organs.registry.catalog.cursor import PageEnd
from organs.registry.catalog.rows import among
from organs.registry.catalog.tables import RANKED_COLUMNS, Expert, Facet, FacetCount, ModelRow, OrganRow, Placement
from organs.registry.catalog.vocabulary import ORGAN_TYPES
from organs.registry.measures import MEASURES
from organs.registry.search.facets import BINS, FACET_COLUMNS, FacetFilter, held_roll_up, sums
from organs.registry.search.fitting import FitBase, FitFilter, base_of, fitting, same_models
from organs.registry.search.gains import GainFilter
from organs.registry.search.language import EXPERT, GAIN, LIKENESS, YES, Bounds, Choice, Query, Sort
from organs.registry.search.terms import (
    NAMES_MAX,
    NOTES_MAX,
    Names,
    facet_is_counted,
    nonfinite_condition,
    number_condition,
)

COLUMNS = {measure.field: measure.name for measure in MEASURES.values()} | {
    "size": "size_bytes",
    "block": "block",
    EXPERT: EXPERT,
}
"""The column of placements, or of experts, for each field."""
RANKINGS = {measure.field: measure.ranked_as or measure.name for measure in MEASURES.values()} | {"size": "size_bytes"}
"""The column of the index that sorts by each field. The signal is the sine of θ, so it has the same order."""
CLOSED_FIELDS = ("type", "tower")
"""The fields whose values are the same in every registry."""
MODEL_FIELDS = ("model", "by", "kin", "nonfinite")
"""The fields that filter the model of an organ, beside words."""
MODELS_LISTED_MAX = 5000
"""The most models whose ids are read before a search. A page needs up to seven statements, each of which would evaluate
a SELECT of the models again."""
SAME_SHOWN = 3
"""The most names of models in the note that they are the same model as a base."""


@dataclass(frozen=True, slots=True)
class ModelFilter:
    """The models to search."""

    statement: Select[int]
    """A SELECT of their ids."""
    key: Hashable
    """A key for caches. Filters with equal keys have the same models."""
    ids: Sequence[int] | None
    """Their ids; None if there are more than MODELS_LISTED_MAX."""
    tensors: int
    """Their number of tensors."""

    def condition(self, column: Any) -> ColumnElement[bool]:
        """Return the condition that `column` is the id of one of the models."""
        return column.in_(self.statement) if self.ids is None else among(column, self.ids)


@dataclass(slots=True)
class Filters:
    """A resolved query. A matching placement, or expert, meets all of its conditions."""

    table: Any = Placement
    """The table of the results: Placement or Expert."""
    facets: list[FacetFilter] = field(default_factory=list)
    models: ModelFilter | None = None
    """The models to search; None for all."""
    fits: list[FitFilter] = field(default_factory=list)
    numbers: list[Bounds] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    nonfinite: list[Choice] = field(default_factory=list)
    """The filters by NaN and infinite values; `models` already excludes models without matching organs."""
    base_id: int | None = None
    """The model that `likeness` compares with; None without a base."""
    likeness: list[Bounds] = field(default_factory=list)
    """The filters by likeness. They are not part of the conditions in SQL."""
    gains: GainFilter | None = None
    """The gains that the query filters or sorts by; None if it does not mention them."""

    @property
    def all_facets(self) -> list[FacetFilter]:
        """The filters on facets, including those that follow from `fits:`."""
        implied = [(name, term.values(name)) for term in self.fits for name in ("arch", "type", "slot")]
        return [*self.facets, *(FacetFilter(name, values) for name, values in implied if values is not None)]

    def facet_condition(self, entity: Any, facet_ids: Sequence[int] | None) -> ColumnElement[bool]:
        """Return the condition that the facet of `entity` matches; `facet_ids` are those that do, if they are known."""
        if facet_ids is not None:  # PostgreSQL knows how frequent ids are, but not the results of a subquery
            return among(entity.facet_id, facet_ids)
        return entity.facet_id.in_(select(Facet.id).where(*(own.condition for own in self.all_facets)))  # type: ignore[no-any-return]

    def tests(self, entity: Any, facet_ids: Sequence[int] | None = None) -> Iterator[tuple[str, ColumnElement[bool]]]:
        """Yield the conditions on `entity`, the table or an alias of it, each with the column that it tests.

        The column is empty for conditions that no index tests.
        """
        for condition in theta_conditions(self.numbers, entity):
            yield "theta", condition
        for number in self.numbers:
            yield COLUMNS[number.field], placement_condition(number, entity)
        facets = self.all_facets
        types = [own for own in facets if own.field == "type"]
        for own in types:
            yield "", entity.type.not_in(own.values) if own.negated else entity.type.in_(own.values)
        if len(types) < len(facets):
            yield "facet_id", self.facet_condition(entity, facet_ids)
        if self.models is not None:
            yield "model_id", self.models.condition(entity.model_id)
        for choice in self.nonfinite:
            organ = aliased(OrganRow)
            counted = select(organ.id).where(organ.id == entity.organ_id, nonfinite_condition(choice, organ.nonfinite))
            yield "", counted.exists()
        if self.gains is not None:
            organs = self.gains.organs()
            if self.gains.needs_gain:
                yield "", entity.organ_id.in_(select(organs.c.id))
            for term in self.gains.terms:
                outside = select(organs.c.id).where(not_(number_condition(term, organs.c.percent)))
                yield "", entity.organ_id.not_in(outside)
        for fit in self.fits:
            yield "", fit.condition(entity)

    def conditions(self, entity: Any = None, *, without: str = "") -> list[ColumnElement[bool]]:
        """Return the conditions on `entity`, by default the table, except those on the column `without`."""
        return [condition for column, condition in self.tests(entity or self.table) if not column or column != without]


def resolve(session: Session, query: Query) -> Filters:
    """Resolve `query`. An unknown name matches nothing; a note reports it and suggests the nearest name."""
    filters = Filters(
        table=Expert if query.finds_experts else Placement,
        numbers=[term for term in query.terms if isinstance(term, Bounds) and term.field not in (LIKENESS, GAIN)],
        nonfinite=query.choices("nonfinite"),
        likeness=query.numbers(LIKENESS),
    )
    names = Names(session, filters.notes)
    for choice in (choice for name in FACET_COLUMNS for choice in query.choices(name)):
        values = choice.values
        if choice.field not in CLOSED_FIELDS:
            facets = held_roll_up(session)
            if facets is None or len(facets.different[choice.field]) > NAMES_MAX:
                values = names.values(choice, select(FACET_COLUMNS[choice.field]).where(facet_is_counted()))
            else:
                values = names.chosen(choice, facets.different[choice.field])
        filters.facets.append(FacetFilter(choice.field, frozenset(values), choice.negated))
    named = [choice for name in MODEL_FIELDS for choice in query.choices(name)]
    if named or query.words or query.excluded_words:
        key = (tuple(named), query.words, query.excluded_words)  # the order matters to the notes
        filters.models, notes = cached(session, ("models", key), lambda: _models_of(session, query, key))
        filters.notes += notes[: max(0, NOTES_MAX - len(filters.notes))]
    for choice in query.choices("fits"):
        bases: dict[int, FitBase] = {}
        for value, ids in names.models(choice).items():
            known = {model_id: base for model_id in ids if (base := base_of(session, model_id)) is not None}
            bases |= known
            if ids and not known and not choice.negated and len(filters.notes) < NOTES_MAX:
                filters.notes.append(f"{value} states no architecture, so no organ is known to fit it")
        filters.fits.append(fitting(session, choice, list(bases.values())))
    for base_id in dict.fromkeys(base.id for own in filters.fits if not own.negated for base in own.bases):
        model = session.get_one(ModelRow, base_id)
        if same := same_models(session, model):  # models with the same organs do not fit
            more = f", and {len(same) - SAME_SHOWN} more" if len(same) > SAME_SHOWN else ""
            shown = ", ".join(same[:SAME_SHOWN])
            filters.notes.append(f"the same model as {model.full_name}, organ by organ: {shown}{more}")
    filters.base_id = names.base_id(query)
    filters.gains = names.gains(query, filters.base_id)
    return filters


def _models_of(session: Session, query: Query, key: Hashable) -> tuple[ModelFilter, list[str]]:
    """Return the models that `query` names, and notes."""
    notes: list[str] = []
    conditions = Names(session, notes).model_conditions(query)
    for choice in query.choices("nonfinite"):
        # Only `nonfinite:yes` excludes models. The count of a model is unknown if some of its organs were not counted;
        # its other organs may still have NaN or infinite values.
        if set(choice.values) == {YES} and not choice.negated:
            conditions.append(or_(ModelRow.nonfinite_tensors > 0, ModelRow.nonfinite_tensors.is_(None)))
    statement = select(ModelRow.id).where(ModelRow.state == "visible", *conditions)
    rows = session.execute(statement.add_columns(ModelRow.tensors).limit(MODELS_LISTED_MAX + 1)).all()
    if len(rows) <= MODELS_LISTED_MAX:
        ids = array("q", [model_id for model_id, _ in rows])
        return ModelFilter(statement, key, ids, sum(tensors for _, tensors in rows)), notes
    tensors = select(func.coalesce(func.sum(ModelRow.tensors), 0)).where(ModelRow.id.in_(statement))
    return ModelFilter(statement, key, None, int(session.scalar(tensors) or 0)), notes


def placement_condition(term: Bounds, entity: Any = Placement) -> ColumnElement[bool]:
    """Return `term` as a condition on the placements or experts `entity`."""
    return number_condition(term, getattr(entity, COLUMNS[term.field]))


SIGNAL_SLACK_DEGREES = 1e-6
"""The number of degrees by which a bound on the signal is widened when the index tests it on θ. The exact bound is then
tested on the signal."""


def theta_conditions(numbers: Sequence[Bounds], entity: Any) -> list[ColumnElement[bool]]:
    """Return bounds on θ from those on θ and the signal. Each index has θ, so rows outside of them are not fetched."""
    low, high = limits(numbers, "theta")
    return [*([entity.theta >= low] if low is not None else []), *([entity.theta <= high] if high is not None else [])]


def _limiting(numbers: Iterable[Bounds], column: str) -> list[Bounds]:
    """Return the terms that limit `column` to ranges and exclude rows without a number."""
    terms = [term for term in numbers if RANKINGS.get(term.field) == column]
    return [term for term in terms if term.ranges and not term.negated and not term.absent]


def limits(numbers: Iterable[Bounds], column: str) -> tuple[float | None, float | None]:
    """Return the least and the greatest value of `column` that its terms allow; None for no limit."""
    lows, highs = [], []
    for term in _limiting(numbers, column):
        slack = SIGNAL_SLACK_DEGREES if term.field == "signal" else 0.0
        term_lows = [own.low for own in term.ranges if own.low is not None]
        term_highs = [own.high for own in term.ranges if own.high is not None]
        if len(term_lows) == len(term.ranges):
            lows.append(degrees(term.field, min(term_lows)) - slack)
        if len(term_highs) == len(term.ranges):
            highs.append(degrees(term.field, max(term_highs)) + slack)
    return max(lows, default=None), min(highs, default=None)


def degrees(name: str, value: float) -> float:
    """Return a value of the field `name` in the unit of its index: a signal as its θ in degrees."""
    return math.degrees(math.asin(min(max(value, 0.0), 1.0))) if name == "signal" else value


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
    if _limiting(numbers, "theta"):
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
        if column == "theta" or not _limiting(filters.numbers, column):
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


def ranges_after(filters: Filters, sort: Sort, after: PageEnd | None) -> Iterator[list[ColumnElement[bool]]]:
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
    if not _limiting(filters.numbers, measure):
        yield [column.is_(None), *(step if after is not None and after.value is None else []), *filters.conditions()]
