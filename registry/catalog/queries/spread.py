"""How what a query finds is spread over facets and θ: from the counts, or from the few placements that are left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from organs.registry.catalog.bins import BIN_DEGREES, THETA_MAX_DEGREES, UNMEASURED
from organs.registry.catalog.limits import limited
from organs.registry.catalog.queries.bounds import degrees
from organs.registry.catalog.queries.narrow import ABSENT, Narrowed
from organs.registry.catalog.queries.planning import GATHER_MAX
from organs.registry.catalog.queries.ranking import spread_of_matching
from organs.registry.catalog.queries.rollup import BINS, Mask, RollUp, roll_up, sums
from organs.registry.catalog.search import FacetCounts, Interval, Numbers
from organs.registry.errors import TooSlow

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
        fields={name: _counts(name, narrowed, held, bounded, matching) for name in SHOWN_FIELDS},
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


def _histogram(held: RollUp, counted: _OneByOne | None, matching: Mask) -> dict[int | None, int]:
    if counted is None:
        found: Mapping[int, int] = held.histogram(matching)
    else:
        found = Counter()
        for (facet_id, lower), count in counted.everywhere.items():
            if matching[held.positions[facet_id]]:
                found[lower] += count
    rising: dict[int | None, int] = {lower: found[lower] for lower in sorted(found) if lower != UNMEASURED}
    return rising | ({None: found[UNMEASURED]} if UNMEASURED in found else {})


def _counts(name: str, narrowed: Narrowed, held: RollUp, bounded: Sequence[float], matching: Mask) -> dict[str, int]:
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
