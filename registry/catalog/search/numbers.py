"""Numbers in a query: comparisons, ranges, sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal

from organs.registry.catalog.search.fields import Field, Kind
from organs.registry.catalog.search.terms import Interval
from organs.registry.errors import BadQuery

NUMBER_MAX = 2**63 - 1
"""Databases hold no larger whole numbers."""
ABSENT = "none"

_NUMBER = re.compile(r"(?P<digits>[0-9]{1,19}(\.[0-9]{0,40})?|\.[0-9]{1,40})(?P<unit>[A-Za-z]{0,2})°?", re.ASCII)
_RANGE = re.compile(r"(?P<low>[^-–]*)[-–](?P<high>[^-–]*)")
_UNITS = {"": 1, "b": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}


def parse_bound(token: str, field: Field, operator: str, text: str) -> Interval:
    """The interval that a comparison such as `>=45` leaves; raises BadQuery."""
    value = _parse_number(token, field, text)
    if operator == "=":
        return Interval(value, value)
    if operator.startswith(">"):
        return Interval(low=value, low_open=operator == ">")
    return Interval(high=value, high_open=operator == "<")


def parse_numbers(token: str, field: Field, values: Sequence[str]) -> tuple[tuple[Interval, ...], bool]:
    """The intervals that values such as `5-20` and `3` name, and whether `none` is among them; raises BadQuery."""
    intervals = []
    for value in values:
        if value.lower() == ABSENT:
            continue
        match = _RANGE.fullmatch(value)
        low, high = (match["low"], match["high"]) if match and value.strip("-–") else (value, value)
        interval = Interval(
            _parse_number(token, field, low) if low else None, _parse_number(token, field, high) if high else None
        )
        if interval.low is not None and interval.high is not None and interval.low > interval.high:
            raise BadQuery(token, f"a range goes from the smaller number to the larger: {high}-{low}")
        intervals.append(interval)
    return tuple(intervals), len(intervals) < len(values)


def _parse_number(token: str, field: Field, text: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    unit = match["unit"].lower() if match else ""
    if match is None or (unit and field.kind is not Kind.SIZE) or unit.removesuffix("b") not in _UNITS:
        raise BadQuery(token, f"{text[:30]!r} is no number for {field.name}; {_example(field)}")
    value = float(Decimal(match["digits"]) * _UNITS[unit.removesuffix("b")])  # exact: 4.1k is 4100
    if not math.isfinite(value) or value > NUMBER_MAX:
        raise BadQuery(token, f"{text[:30]!r} is too large")
    if field.kind is Kind.WHOLE and not value.is_integer():
        raise BadQuery(token, f"{field.name} is a whole number; {_example(field)}")
    return value


def _example(field: Field) -> str:
    if field.kind is Kind.WHOLE:
        return f"write {field.name}:5-20 or {field.name}>=5"
    if field.kind is Kind.SIZE:
        return f"write {field.name}>=10M"
    return f"write {field.example}"
