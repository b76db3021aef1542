"""Estimates of what each organ adds to the divergence in each type, from measured groups and rounding errors.

For small changes of weights the divergence grows with their square, so it is proportional to the sum of the squared
rounding errors of a group: what was measured in one type gives the others. Inside of a group the organs share the
divergence in proportion to their own errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from organs.registry.gguf.types import dtype_by_name
from organs.registry.quantizing.choice import Option
from organs.registry.quantizing.groups import OrganGroup
from organs.registry.quantizing.layouts import Weigh

Errors = Mapping[str, Mapping[str, float]]
"""By the name of a tensor and of a type: the sum of the squared rounding errors."""


def options_of(
    groups: Sequence[OrganGroup],
    errors: Errors,
    measured: Mapping[tuple[str, str], float],
    weigh: Weigh,
) -> dict[str, list[Option]]:
    """Return the types of each organ, with what it takes and adds to the divergence, by the names of the tensors.

    `measured` has the divergence of groups in types, in nats per token. A group without any is taken to be as sensitive
    as the others together. If `measured` is empty, the divergence is in units of the errors: then only errors count.
    """
    options: dict[str, list[Option]] = {}
    usual_rate = _usual_rate(groups, errors, measured)
    for group in groups:
        own = {dtype: value for (key, dtype), value in measured.items() if key == group.key}
        by_error = sorted((_total(errors, group, dtype), value) for dtype, value in own.items())
        for part in group.parts:
            options_of_part = [
                Option(
                    dtype_by_name(dtype),
                    int(weigh(part, dtype_by_name(dtype))),
                    error * (_for_error(by_error, _total(errors, group, dtype)) if by_error else usual_rate),
                )
                for dtype, error in errors[part.name].items()
            ]
            options[part.name] = [*options_of_part, Option(part.dtype, int(weigh(part, part.dtype)), 0.0)]
    return options


def _usual_rate(groups: Sequence[OrganGroup], errors: Errors, measured: Mapping[tuple[str, str], float]) -> float:
    """Return the divergence for each unit of squared error of all measurements together; 1 without any."""
    by_key = {group.key: group for group in groups}
    known = [(_total(errors, by_key[key], dtype), value) for (key, dtype), value in measured.items() if key in by_key]
    total = sum(error for error, _ in known)
    return sum(value for _, value in known) / total if total > 0 else 1.0


def _total(errors: Errors, group: OrganGroup, dtype: str) -> float:
    return sum(errors[part.name].get(dtype, 0.0) for part in group.parts)


def _for_error(known: Sequence[tuple[float, float]], error: float) -> float:
    """Return the divergence for each unit of squared error, when all of the group has `error`.

    Between two measurements it is interpolated on logarithmic scales, outside of them it is that of the nearest one.
    """
    rates = [(total, value / total) for total, value in known if total > 0 and value > 0]
    if not rates or error <= 0:
        return 0.0
    for (low, low_rate), (high, high_rate) in pairwise(rates):
        if low < high and low <= error <= high:
            share = math.log(error / low) / math.log(high / low)
            return math.exp((1 - share) * math.log(low_rate) + share * math.log(high_rate))
    return rates[0][1] if error <= rates[0][0] else rates[-1][1]
