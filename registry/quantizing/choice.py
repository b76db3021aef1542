"""The choice of a tensor type for each organ: the smallest estimated divergence for a size.

The divergence of a file from its source is estimated as the sum of what each organ adds in its type. For a price of a
byte, each organ then has a best type of its own: the one with the smallest divergence plus price. A higher price gives
smaller files, so the price for a size is found by bisection (Everett 1963, "Generalized Lagrange multiplier method for
solving problems of optimum allocation of resources"). Only types on the lower convex hull of an organ are ever best;
what is left of the size is then spent on the next step of the hull that gains most for its bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from organs.registry.gguf.types import DType

PRICES = 200
"""The halvings of the range of prices: more than the digits of a float."""


@dataclass(frozen=True, slots=True)
class Option:
    """A type in which an organ may be written."""

    dtype: DType
    size_bytes: int
    """What it takes: of a file with padding, or of memory."""
    divergence: float
    """What it adds, in nats per token."""


def chosen(options: Mapping[str, Sequence[Option]], size_bytes: int) -> dict[str, Option] | None:
    """Return the option of each organ with the smallest sum of divergences, of at most `size_bytes` together.

    None if even the smallest options are larger. The result is best for its own size, and at most one step of a hull
    away from the best for `size_bytes`.
    """
    hulls = {name: hull(own) for name, own in options.items()}
    smallest = {name: own[0] for name, own in hulls.items()}
    if total_bytes(smallest) > size_bytes:
        return None
    low, high = 0.0, max((_slope(*pair) for own in hulls.values() for pair in pairwise(own)), default=0.0) * 2
    if total_bytes(_at_price(hulls, low)) <= size_bytes:
        return _at_price(hulls, low)
    for _ in range(PRICES):
        price = (low + high) / 2
        if total_bytes(_at_price(hulls, price)) <= size_bytes:
            high = price
        else:
            low = price
    best = _at_price(hulls, high)
    room = size_bytes - total_bytes(best)
    while True:
        steps = [
            (_slope(best[name], after), name, after)
            for name, own in hulls.items()
            for after in own[own.index(best[name]) + 1 :][:1]
            if after.size_bytes - best[name].size_bytes <= room
        ]
        if not steps:
            return best
        _, name, after = max(steps, key=lambda step: step[:2])
        room -= after.size_bytes - best[name].size_bytes
        best[name] = after


def hull(options: Sequence[Option]) -> list[Option]:
    """Return the options on the lower convex hull of divergence over size, the smallest first."""
    kept: list[Option] = []
    for option in sorted(options, key=lambda item: (item.size_bytes, item.divergence)):
        if kept and option.divergence >= kept[-1].divergence:
            continue
        while len(kept) > 1 and _slope(kept[-2], kept[-1]) <= _slope(kept[-1], option):
            kept.pop()
        kept.append(option)
    return kept


def total_bytes(choice: Mapping[str, Option]) -> int:
    """Return the bytes of all organs together."""
    return sum(option.size_bytes for option in choice.values())


def _at_price(hulls: Mapping[str, Sequence[Option]], price: float) -> dict[str, Option]:
    return {
        name: min(own, key=lambda option: (option.divergence + price * option.size_bytes, option.size_bytes))
        for name, own in hulls.items()
    }


def _slope(before: Option, after: Option) -> float:
    """Return by how much the divergence falls for a byte."""
    return (before.divergence - after.divergence) / (after.size_bytes - before.size_bytes)
