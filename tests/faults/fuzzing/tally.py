"""The results of cases, which can be added."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

ACCEPTED = "accepted"
WORDS = 5
VALUES = re.compile(r"""b?(['"]).*\1|\([^)]*\)|\S*[\d/]\S*""")
"""Texts, shapes, numbers, digests and paths."""


def outcome_of(refusal: str) -> str:
    """Return the first words of a refusal, without its values."""
    return " ".join(re.findall(r"[a-z]+", VALUES.sub("", refusal))[:WORDS])


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed case; `kind` is the fault in a word or two."""

    case: int
    kind: str
    text: str


@dataclass(slots=True)
class Tally:
    """Counts by outcome, failures, the slowest case in seconds of processor time, the peak of extra memory."""

    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)
    slowest_case: int = -1
    slowest_seconds: float = 0.0
    extra_bytes: int = 0

    @property
    def cases(self) -> int:
        return self.outcomes.total() + len(self.failures)

    @property
    def accepted_share(self) -> float:
        return self.outcomes[ACCEPTED] / max(1, self.cases)

    def time(self, case: int, seconds: float) -> None:
        """Record the time if the case is the slowest."""
        if seconds > self.slowest_seconds:
            self.slowest_case, self.slowest_seconds = case, seconds

    def add(self, other: Tally) -> None:
        """Add the results of `other`."""
        self.outcomes.update(other.outcomes)
        self.failures.extend(other.failures)
        self.time(other.slowest_case, other.slowest_seconds)
        self.extra_bytes = max(self.extra_bytes, other.extra_bytes)

    def refused(self, most: int) -> Iterable[tuple[str, int]]:
        """Return the most frequent outcomes except acceptance."""
        return [pair for pair in self.outcomes.most_common(most + 1) if pair[0] != ACCEPTED][:most]
