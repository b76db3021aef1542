"""What a query says of numbers, as conditions on columns, and the stretch of an index that it leaves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, and_, not_, or_

from organs.registry.catalog.search import Interval, Numbers
from organs.registry.catalog.tables import Placement

COLUMNS = {
    "theta": "theta",
    "signal": "signal",
    "z": "magnitude",
    "spectral": "spectral_signal",
    "rank": "stable_rank",
    "size": "size_bytes",
    "block": "block",
}
"""Field to the placement's column."""
RANKINGS = {field: column for field, column in COLUMNS.items() if field != "block"} | {"signal": "theta"}
"""Field to the column of the index that ranks by it: the signal is the sine of θ, and ranks alike."""
SIGNAL_SLACK_DEGREES = 1e-6
"""A bound on the signal is tested on the signal; the bound on θ beside it is for the index and must not cut."""


def placement_condition(term: Numbers, entity: Any = Placement) -> ColumnElement[bool]:
    """`term` as a condition on the placements `entity`."""
    return number_condition(term, getattr(entity, COLUMNS[term.field]))


def number_condition(term: Numbers, column: Any) -> ColumnElement[bool]:
    """`term` as a condition on `column`. A minus means the exact opposite: what has no number is then in."""
    allowed = [_within(interval, column) for interval in term.intervals]
    allowed += [column.is_(None)] if term.absent else []
    condition = or_(*allowed)
    if not term.negated:
        return condition
    return not_(condition) if term.absent else or_(not_(condition), column.is_(None))


def index_conditions(numbers: Sequence[Numbers], entity: Any = Placement) -> list[ColumnElement[bool]]:
    """What bounds on θ and the signal say of θ, which every ranking's index holds: rows that fail are never fetched."""
    low, high = stretch(numbers, "theta")
    return [*([entity.theta >= low] if low is not None else []), *([entity.theta <= high] if high is not None else [])]


def ranges(numbers: Iterable[Numbers], column: str) -> list[Numbers]:
    """The terms that leave a stretch of the ranking by `column`, and nothing without a number."""
    found = [term for term in numbers if RANKINGS.get(term.field) == column]
    return [term for term in found if term.intervals and not term.negated and not term.absent]


def wants_missing_only(numbers: Iterable[Numbers], column: str) -> bool:
    """Whether a term asks for no number in `column`, and nothing else."""
    found = [term for term in numbers if RANKINGS.get(term.field) == column and not term.negated]
    return any(term.absent and not term.intervals for term in found)


def stretch(numbers: Iterable[Numbers], column: str) -> tuple[float | None, float | None]:
    """The least and the greatest value of `column` that `ranges` leave; None where there is no bound."""
    low: float | None = None
    high: float | None = None
    for term in ranges(numbers, column):
        lows = [one.low for one in term.intervals]
        highs = [one.high for one in term.intervals]
        least = None if None in lows else min(_ranked(term, one, -1) for one in lows if one is not None)
        most = None if None in highs else max(_ranked(term, one, 1) for one in highs if one is not None)
        low = least if low is None else low if least is None else max(low, least)
        high = most if high is None else high if most is None else min(high, most)
    return low, high


def degrees(field: str, value: float) -> float:
    """The θ that `value` of the field `theta` or `signal` means."""
    return value if field == "theta" else math.degrees(math.asin(min(max(value, 0.0), 1.0)))


def _ranked(term: Numbers, value: float, direction: int) -> float:
    """`value` in the unit of the ranking's column."""
    return degrees("signal", value) + direction * SIGNAL_SLACK_DEGREES if term.field == "signal" else value


def _within(interval: Interval, column: Any) -> ColumnElement[bool]:
    conditions = []
    if interval.low is not None:
        conditions.append(column > interval.low if interval.low_open else column >= interval.low)
    if interval.high is not None:
        conditions.append(column < interval.high if interval.high_open else column <= interval.high)
    return and_(*conditions)
