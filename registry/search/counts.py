"""Counts of the results of a search by facet: how many organs, experts or models each filter would leave.

Counts of organs come from the roll-up where it is exact, else from the matches. The values of all visible models are
kept in memory until the catalog changes, so a count of models reads no more than ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import and_, case, func, literal, select
from sqlalchemy.orm import Session, aliased

from organs.registry.catalog.cache import cached
from organs.registry.catalog.engine import limited
from organs.registry.catalog.queries.chimeras import is_composed
from organs.registry.catalog.tables import ContributorRow, Expert, Lineage, ModelRow, ModelTag
from organs.registry.catalog.vocabulary import (
    BIN_DEGREES,
    CHIMERA,
    PARTIAL,
    REACHABLE_STATES,
    THETA_MAX_DEGREES,
    UNMEASURED,
    theta_bin,
)
from organs.registry.entities.organ import FacetCounts, OrganPage, ThetaBin
from organs.registry.errors import TooSlow
from organs.registry.search.facets import BINS, Mask, RollUp, held_roll_up, read_roll_up, sums
from organs.registry.search.filters import Filters, degrees, placement_condition, resolve
from organs.registry.search.language import ABSENT, MADE_FROM, QUANT, TAG, Bounds, Query
from organs.registry.search.likeness import compare_with_base
from organs.registry.search.models import match_models
from organs.registry.search.plan import GATHER_MAX, driven, plan_of
from organs.registry.search.rows import parse_page, read_page

FACET_FIELDS = ("type", "slot", "dtype", "arch", "license")
FACET_VALUES_MAX = 100
"""The most values of one field in the counts: those with the largest counts."""


def count_organs(session: Session, query: Query, seconds: float | None = None) -> FacetCounts:
    """Return the counts of `query` by type, slot, dtype, architecture, license and θ.

    Organs are counted at all of their places, also with `like:` and `unique:`. Filters that take longer than `seconds`
    to count are left out.
    """
    return _cached_counts(session, query, resolve(session, query), seconds)


def search_and_count(
    session: Session, query: Query, limit: int, after: str | None, counts_seconds: float
) -> tuple[OrganPage, FacetCounts]:
    """Return the page and the counts, both from the same state of the catalog."""
    cursor = parse_page(query, limit, after)
    filters = resolve(session, query)
    page = read_page(session, query, filters, limit, cursor)
    return page, _cached_counts(session, query, filters, counts_seconds)


def _cached_counts(session: Session, query: Query, filters: Filters, seconds: float | None) -> FacetCounts:
    """Return the counts. They are cached for the next pages unless they were hurried."""
    key = ("counts", frozenset(query.terms), filters.gains, filters.models and filters.models.key)
    return cached(session, key, lambda: _count(session, filters, seconds), lambda counts: not counts.hurried)


CountedRow = tuple[int, int, int, int]
"""Facet id, bin of θ, number of matches without the filters by θ, and number of matches with them."""


def _count(session: Session, filters: Filters, seconds: float | None) -> FacetCounts:
    """Return the counts of a query by facet.

    Filters are left out if too many placements would have to be counted for them, or if that takes longer than
    `seconds`; in the second case the result is `hurried` and must not be cached.
    """
    theta = [term for term in filters.numbers if term.field in ("theta", "signal")]
    other_numbers = [term for term in filters.numbers if term not in theta]
    remaining = replace(filters, facets=[], numbers=other_numbers)
    on_edges = all(map(_on_edges, theta))
    is_in_roll_up = on_edges and not (
        other_numbers or filters.models or filters.fits or filters.likeness or filters.gains
    )
    counted: list[CountedRow] | None = None
    hurried = False
    try:
        if not is_in_roll_up:
            with nullcontext() if seconds is None else limited(session, seconds):
                counted = _count_matches(session, remaining, theta)
    except TooSlow:
        hurried = True
    uncounted: tuple[str, ...] = ()
    if counted is None:
        uncounted = (*(str(term) for term in other_numbers), *(own.text for own in filters.fits))
        uncounted += ("the filter by model",) if filters.models is not None else ()
        uncounted += tuple(map(str, filters.likeness))
        uncounted += () if filters.gains is None else ("the filter by gain",)
    if counted is None and filters.table is Expert:  # the roll-up counts whole tensors
        return FacetCounts(total=None, fields={}, theta=(), exact=False, uncounted=uncounted, hurried=hurried)
    facets = held_roll_up(session) or read_roll_up(session)
    matching = facets.mask(filters.facets)
    if counted is None:
        bins: Mapping[int, int] = facets.histogram(matching)
        within = facets.shared([_share(theta, lower) for lower in BINS]) if theta else facets.counts()
    else:
        bins, by_facet = Counter[int](), Counter[int]()
        for facet_id, lower, count, inside in counted:
            by_facet[facet_id] += inside
            if matching[facets.positions[facet_id]]:
                bins[lower] += count
        within = [by_facet[facet_id] for facet_id in facets.positions]
    histogram = [ThetaBin(lower=lower, count=bins[lower]) for lower in sorted(bins) if lower != UNMEASURED]
    histogram += [ThetaBin(lower=None, count=bins[UNMEASURED])] if UNMEASURED in bins else []
    return FacetCounts(
        total=None if uncounted else round(sum(sums(facets.columns["type"], within, matching).values())),
        fields={name: _field_counts(name, filters, facets, within, matching) for name in FACET_FIELDS},
        theta=tuple(histogram),
        exact=(counted is not None or on_edges) and not uncounted,
        uncounted=uncounted,
        hurried=hurried,
    )


def _count_matches(session: Session, filters: Filters, theta: Sequence[Bounds]) -> list[CountedRow] | None:
    """Return exact counts of the matches and of those within `theta`; None if more than `GATHER_MAX` would be read."""
    table: Any = filters.table
    if filters.likeness:
        if table is Expert:
            return None
        columns = (table.facet_id, table.theta, table.signal)
        compared, is_complete = compare_with_base(session, filters, columns)
        counts: Counter[tuple[int, int]] = Counter()
        inside: Counter[tuple[int, int]] = Counter()
        for row, _ in compared:
            facet_id, *numbers = row.values
            values = dict(zip(("theta", "signal"), numbers, strict=True))
            counts[facet_id, theta_bin(values["theta"])] += 1
            inside[facet_id, theta_bin(values["theta"])] += all(term.holds(values[term.field]) for term in theta)
        return [(*key, count, inside[key]) for key, count in counts.items()] if is_complete else None
    plan = plan_of(session, filters, None, GATHER_MAX)
    if plan.driver is None:
        return [] if plan.types == () else None
    # `theta_bin` in SQL, without a division that might round.
    uppers = {lower + BIN_DEGREES: lower for lower in range(0, THETA_MAX_DEGREES - BIN_DEGREES, BIN_DEGREES)}
    whens = [(table.theta < upper, lower) for upper, lower in uppers.items()]
    lower_edge = case((table.theta.is_(None), UNMEASURED), *whens, else_=THETA_MAX_DEGREES - BIN_DEGREES)
    within = case((and_(*(placement_condition(term, table) for term in theta)), 1), else_=0) if theta else literal(1)
    matching = select(table.facet_id.label("facet"), lower_edge.label("bin"), within.label("inside"))
    rows = driven(session, matching, plan, filters).limit(GATHER_MAX + 1).subquery()
    grouped = select(rows.c.facet, rows.c.bin, func.count(), func.sum(rows.c.inside)).group_by(rows.c.facet, rows.c.bin)
    found = [(facet, lower, count, int(number)) for facet, lower, count, number in session.execute(grouped)]
    return found if sum(count for _, _, count, _ in found) <= GATHER_MAX else None


def _field_counts(
    name: str, filters: Filters, facets: RollUp, within: Sequence[float], matching: Mask
) -> dict[str, int]:
    """Return the counts of the values of one field without its own filter, the largest first."""
    others = [own for own in filters.facets if own.field != name]
    mask = matching if len(others) == len(filters.facets) else facets.mask(others)
    counts: Counter[str] = Counter()
    for value, count in sums(facets.columns[name], within, mask).items():
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
        covered = 0.0
        for own in term.ranges:
            low = 0.0 if own.low is None else degrees(term.field, own.low)
            high = float(THETA_MAX_DEGREES) if own.high is None else degrees(term.field, own.high)
            covered += max(0.0, min(high, lower + BIN_DEGREES) - max(low, lower)) / BIN_DEGREES
        share *= 1.0 - min(1.0, covered) if term.negated else min(1.0, covered)
    return share


def _on_edges(term: Bounds) -> bool:
    """Return whether all bounds are edges of bins, included at the low end and excluded at the high end."""
    if term.field != "theta":
        return not term.ranges
    return all(
        (own.low is None or _is_edge(own.low, begins=not own.low_open))
        and (own.high is None or _is_edge(own.high, begins=own.high_open))
        for own in term.ranges
    )


def _is_edge(bound: float, *, begins: bool) -> bool:
    """Return whether no bin has values on both sides of `bound`. The bound belongs to the upper side if `begins`."""
    if bound >= THETA_MAX_DEGREES:
        return bound > THETA_MAX_DEGREES or not begins
    return begins and bound % BIN_DEGREES == 0


MODEL_FACETS = ("kind", "arch", "license", QUANT, MADE_FROM, TAG, "by")
"""The fields of models that are counted by value."""
SIZES = (0, 100_000_000, 1_000_000_000, 4_000_000_000, 10_000_000_000, 40_000_000_000)
"""The lower bounds of the classes of models by their number of parameters."""
PARAMS = "params"
COUNTED_MAX = 20_000
"""The most models that are counted, the newest. Their values take about 400 bytes each."""
MODEL_VALUES_MAX = 60
"""The most values of one field in the counts of models: those with the largest counts."""


@dataclass(frozen=True, slots=True)
class _ModelValues:
    """The values of visible models, by field and model."""

    by_field: Mapping[str, Mapping[int, Sequence[str]]]
    parameters: Mapping[int, int]
    is_complete: bool
    """Whether these are all visible models."""


def model_counts(session: Session, query: Query) -> FacetCounts:
    """Return how many models of `query` have each value of each facet; classes of size are counted as `params`.

    The counts of a field ignore the filters on that field. They are exact for up to COUNTED_MAX models; with more
    models, only the newest are counted.
    """
    key = ("model counts", frozenset(query.terms), query.words, query.excluded_words, query.mentions_gains)
    return cached(session, key, lambda: _count_models(session, query))


def _count_models(session: Session, query: Query) -> FacetCounts:
    values = cached(session, "values of models", lambda: _read_model_values(session))
    own = [term for term in query.terms if term.field in MODEL_FACETS or term.field == PARAMS]
    others = replace(query, terms=tuple(term for term in query.terms if term not in own))
    remaining = set(values.parameters)
    if others.terms or others.words or others.excluded_words or others.mentions_gains:
        remaining &= _model_ids(session, others)
    alone = replace(query, words=(), excluded_words=(), base=None, sort=replace(query.sort, field="new"))
    matching = {term: _model_ids(session, replace(alone, terms=(term,))) for term in own}
    fields = {}
    for name in (*MODEL_FACETS, PARAMS):
        ids = remaining.intersection(*(found for term, found in matching.items() if term.field != name))
        if name == PARAMS:
            sizes = Counter(size_class(values.parameters[model_id]) for model_id in ids)
            fields[name] = {str(lower): sizes[lower] for lower in SIZES if sizes[lower]}
        else:
            fields[name] = _by_value(values.by_field[name], ids)
    return FacetCounts(
        total=len(remaining.intersection(*matching.values())),
        fields=fields,
        theta=(),
        exact=values.is_complete,
        uncounted=(),
        hurried=False,
    )


def size_class(parameters: int) -> int:
    """Return the lower bound of the class of a model with this number of parameters."""
    return max(lower for lower in SIZES if lower <= parameters)


def _model_ids(session: Session, query: Query) -> set[int]:
    statement = match_models(session, query).statement.with_only_columns(ModelRow.id).order_by(ModelRow.id.desc())
    return set(session.scalars(statement.limit(COUNTED_MAX + 1)))


def _by_value(values: Mapping[int, Sequence[str]], ids: Collection[int]) -> dict[str, int]:
    """Return the counts by value, the largest first; models without a value come last, as `none`.

    Values that differ only in case count as one, because queries ignore case.
    """
    counts: Counter[str] = Counter()
    spellings: dict[str, str] = {}
    for model_id in sorted(ids):
        folded = {value.casefold(): value for value in values.get(model_id) or (ABSENT,)}
        counts.update(folded.keys())
        for key, value in folded.items():
            spellings.setdefault(key, value)
    ordered = sorted(counts.items(), key=lambda item: (item[0] == ABSENT, -item[1], item[0]))
    return {spellings[key]: count for key, count in ordered[:MODEL_VALUES_MAX]}


def _read_model_values(session: Session) -> _ModelValues:
    columns = (
        ModelRow.id,
        ModelRow.kind,
        ModelRow.complete,
        ModelRow.architecture,
        ModelRow.license,
        ModelRow.quantisation,
    )
    statement = select(*columns, ContributorRow.name, is_composed(), ModelRow.parameters)
    statement = statement.join(ContributorRow, ContributorRow.id == ModelRow.contributor_id)
    statement = statement.where(ModelRow.state == "visible").order_by(ModelRow.id.desc()).limit(COUNTED_MAX + 1)
    rows = session.execute(statement).all()
    by_field: dict[str, dict[int, list[str]]] = {name: {} for name in MODEL_FACETS}
    for model_id, kind, complete, architecture, license_, quantisation, contributor, composed, _ in rows[:COUNTED_MAX]:
        shown_kind = PARTIAL if not complete else CHIMERA if composed else kind
        values = (shown_kind, architecture, license_, quantisation, contributor)
        for name, value in zip(("kind", "arch", "license", QUANT, "by"), values, strict=True):
            by_field[name][model_id] = [value] if value else []
    least = min((row[0] for row in rows), default=0)
    for model_id, tag in session.execute(select(ModelTag.model_id, ModelTag.tag).where(ModelTag.model_id >= least)):
        by_field[TAG].setdefault(model_id, []).append(tag)
    parent = aliased(ModelRow)
    edges = select(Lineage.child_model_id, parent.namespace, parent.name).distinct()
    edges = edges.join(parent, parent.id == Lineage.parent_model_id).where(parent.state.in_(REACHABLE_STATES))
    edges = edges.where(Lineage.child_model_id >= least, Lineage.evidence != "measured")
    for child, namespace, name in session.execute(edges):
        by_field[MADE_FROM].setdefault(child or 0, []).append(f"{namespace}/{name}")
    return _ModelValues(by_field, {row[0]: row[-1] for row in rows[:COUNTED_MAX]}, len(rows) <= COUNTED_MAX)
