"""How what a query finds is spread over facets and θ: from the counts, or from the few placements that are left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.orm import Session

from registry.catalog.bins import BIN_DEGREES, THETA_MAX_DEGREES, UNMEASURED, theta_bin
from registry.catalog.queries.bounds import degrees
from registry.catalog.queries.narrow import ABSENT, FACET_COLUMNS, Narrowed
from registry.catalog.queries.ranking import GATHER_MAX, spread_of_matching
from registry.catalog.queries.tallies import all_counts
from registry.catalog.search import FacetCounts, Interval, Numbers
from registry.catalog.tables import Facet

SHOWN_FIELDS = ("type", "slot", "dtype", "arch", "license")
VALUES_SHOWN = 100
"""Of each field, the values with the largest counts."""

_Spread = Sequence[tuple[int, int, int]]
"""Facet, bin of θ, and how many placements are in both."""
_Bounded = Mapping[int, float]
"""By facet, how many placements the bounds on θ leave; a share of them where a bound cuts a bin."""
_Facets = Mapping[int, Mapping[str, str]]


def facet_counts(session: Session, narrowed: Narrowed) -> FacetCounts:
    """How what the query finds is spread. What would have to be counted one by one, past a cap, is left out."""
    theta = [term for term in narrowed.numbers if term.field in ("theta", "signal")]
    others = [term for term in narrowed.numbers if term not in theta]
    counted = _counted_one_by_one(session, replace(narrowed, facets=[], numbers=others), theta)
    uncounted: tuple[str, ...] = ()
    exact = counted is not None or all(_on_edges(term) for term in theta)
    if counted is None:
        uncounted = (*(str(term) for term in others), *(["the filter by model"] if narrowed.models is not None else []))
        counted = _counted_by_facets(session, theta)
    everywhere, bounded = counted
    facets = _facets(session)
    matching = {facet_id for facet_id, values in facets.items() if _takes(narrowed, values)}
    histogram: Counter[int | None] = Counter()
    for facet_id, lower, count in everywhere:
        if facet_id in matching:
            histogram[None if lower == UNMEASURED else lower] += count
    total = round(sum(count for facet_id, count in bounded.items() if facet_id in matching))
    return FacetCounts(
        total=None if uncounted else total,
        fields={name: _counts(name, narrowed, facets, bounded) for name in SHOWN_FIELDS},
        theta=dict(sorted(histogram.items(), key=lambda item: (item[0] is None, item[0] or 0))),
        exact=exact and not uncounted,
        uncounted=uncounted,
    )


def _counted_one_by_one(session: Session, rest: Narrowed, theta: Sequence[Numbers]) -> tuple[_Spread, _Bounded] | None:
    """What facets cannot tell exactly, when the other filters leave few placements: those."""
    if not rest.numbers and rest.models is None and all(_on_edges(term) for term in theta):
        return None
    found = spread_of_matching(session, rest, GATHER_MAX)
    if found is None:
        return None
    everywhere = Counter((facet_id, theta_bin(value)) for facet_id, value in found)
    spread = [(facet_id, lower, count) for (facet_id, lower), count in everywhere.items()]
    if theta:
        found = spread_of_matching(session, replace(rest, numbers=[*rest.numbers, *theta]), GATHER_MAX) or []
    return spread, Counter(facet_id for facet_id, _ in found)


def _counted_by_facets(session: Session, theta: Sequence[Numbers]) -> tuple[_Spread, _Bounded]:
    """Everything, and the share of it that the bounds on θ leave."""
    spread = all_counts(session)
    shares = {lower: _share(theta, lower) for lower in {lower for _, lower, _ in spread}}
    bounded: dict[int, float] = {}
    for facet_id, lower, count in spread:
        bounded[facet_id] = bounded.get(facet_id, 0.0) + count * shares[lower]
    return spread, bounded


def _facets(session: Session) -> _Facets:
    rows = session.execute(select(Facet.id, *FACET_COLUMNS.values()))
    return {facet_id: dict(zip(FACET_COLUMNS, values, strict=True)) for facet_id, *values in rows}


def _takes(narrowed: Narrowed, values: Mapping[str, str], but: str | None = None) -> bool:
    """Whether a facet matches all filters but those on the field `but`."""
    return all(one.field == but or one.takes(values[one.field]) for one in narrowed.facets)


def _counts(name: str, narrowed: Narrowed, facets: _Facets, bounded: _Bounded) -> dict[str, int]:
    """The counts of one field's values, its own filter left out, the largest first."""
    counts: Counter[str] = Counter()
    taken = {facet_id: values[name] for facet_id, values in facets.items() if _takes(narrowed, values, name)}
    exact: dict[str, float] = {}
    for facet_id, count in bounded.items():
        value = taken.get(facet_id)
        if value is not None:
            exact[value] = exact.get(value, 0) + count
    for value, count in exact.items():
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
