"""What belongs together, as it turns out pair by pair. Pure."""

from __future__ import annotations

from collections.abc import Hashable


class Groups:
    """Disjoint sets of anything that can be a key; whatever was never joined is a set of its own."""

    def __init__(self) -> None:
        self._above: dict[Hashable, Hashable] = {}

    def leader(self, one: Hashable) -> Hashable:
        """The one that stands for the whole set: two are in one set when they have the same leader."""
        above = self._above
        while (other := above.get(one, one)) != one:
            above[one] = one = above.get(other, other)  # each look shortens the way for the next one
        return one

    def join(self, first: Hashable, second: Hashable) -> None:
        """Make one set of the two that these are in."""
        above, below = self.leader(first), self.leader(second)
        if above != below:
            self._above[below] = above
