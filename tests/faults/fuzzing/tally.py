"""What came of some cases, in a form that adds up and that travels as JSON from a worker to the one who watches it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that must not have ended as it did; `kind` is what went wrong in a word or two."""

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
    unheard: set[str] | None = None
    """Sentences that nobody has heard; None before anybody has listened."""

    @property
    def cases(self) -> int:
        return self.outcomes.total() + len(self.failures)

    @property
    def accepted_share(self) -> float:
        return self.outcomes[ACCEPTED] / max(1, self.cases)

    def time(self, case: int, seconds: float) -> None:
        """Remember the slowest case."""
        if seconds > self.slowest_seconds:
            self.slowest_case, self.slowest_seconds = case, seconds

    def add(self, other: Tally) -> None:
        """What is in `other`, too."""
        self.outcomes.update(other.outcomes)
        self.failures.extend(other.failures)
        self.time(other.slowest_case, other.slowest_seconds)
        self.extra_bytes = max(self.extra_bytes, other.extra_bytes)
        if other.unheard is not None:
            self.unheard = other.unheard if self.unheard is None else self.unheard & other.unheard

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return {
            "outcomes": dict(self.outcomes),
            "failures": [asdict(failure) for failure in self.failures],
            "slowest_case": self.slowest_case,
            "slowest_seconds": self.slowest_seconds,
            "extra_bytes": self.extra_bytes,
            "unheard": None if self.unheard is None else sorted(self.unheard),
        }

    @classmethod
    def from_json(cls, values: dict[str, object]) -> Tally:
        """What `as_json` gave."""
        fresh = cls(**values)  # type: ignore[arg-type]
        fresh.outcomes = Counter(fresh.outcomes)
        fresh.failures = [Failure(**failure) for failure in fresh.failures]  # type: ignore[arg-type]
        fresh.unheard = None if fresh.unheard is None else set(fresh.unheard)
        return fresh

    def refused(self, most: int) -> Iterable[tuple[str, int]]:
        """The most frequent outcomes but acceptance."""
        return [pair for pair in self.outcomes.most_common(most + 1) if pair[0] != ACCEPTED][:most]
