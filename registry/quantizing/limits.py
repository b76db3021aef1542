"""What a file may take: bytes of the file, or bytes of memory by the runtime's own count."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from organs.registry.amounts import size_text
from organs.registry.entities.memory import MemoryCount
from organs.registry.quantizing.layouts import Dtypes

TRIES = 8
"""Sizes that are tried until little is left of a limit."""
MEMORY_SLACK = 0.005
"""The share of a memory that may be left: less is not worth another count."""


@dataclass(frozen=True, slots=True)
class Limit:
    """The most bytes that something of a file may take."""

    most_bytes: int
    taken: Callable[[Dtypes], int]
    """Return what a file with these types takes."""
    described: Callable[[Dtypes], str]
    """Return what a file with these types takes, as the end of a sentence."""
    what: str
    """What is limited, after which "of" and its size stand in a sentence."""
    slack_bytes: int

    @classmethod
    def of_file(cls, most_bytes: int, size_bytes: Callable[[Dtypes], int]) -> Limit:
        """Return the limit of the size of a file; the first choice within it is taken, which leaves little of it."""
        return cls(most_bytes, size_bytes, lambda dtypes: f"has {size_text(size_bytes(dtypes))}", "a file", most_bytes)

    @classmethod
    def of_memory(cls, most_bytes: int, memory: Callable[[Dtypes], MemoryCount]) -> Limit:
        """Return the limit of the memory that the runtime takes."""

        def described(dtypes: Dtypes) -> str:
            count = memory(dtypes)
            again = f", {size_text(count.repacked_bytes)} of them a second time" if count.repacked_bytes else ""
            return (
                f"takes {size_text(count.total_bytes)} with a context of {count.context_tokens:,} tokens: "
                f"{size_text(count.weights_bytes)} weights{again}, "
                f"{size_text(count.cache_bytes)} cache, {size_text(count.compute_bytes)} compute (less with a smaller "
                "--context, --cache-type q8_0 or --micro-batch 64)"
            )

        slack_bytes = int(MEMORY_SLACK * most_bytes)
        return cls(most_bytes, lambda dtypes: memory(dtypes).total_bytes, described, "a memory", slack_bytes)

    def allows(self, dtypes: Dtypes) -> bool:
        """Return whether a file with these types is within the limit."""
        return self.taken(dtypes) <= self.most_bytes

    def closest(self, choose: Callable[[int], tuple[Dtypes, int] | None], smallest: Dtypes, first_bytes: int) -> Dtypes:
        """Return the types for the largest size of files that is within the limit; `smallest` are within it.

        `choose` returns the types for a size of the file, and the size that it expects of them; None for a size that is
        too small. What a file takes is not only its size, and grows with it; so sizes are tried until little is left,
        beginning with `first_bytes`.
        """
        best, low, high = smallest, 0, None
        size_bytes = first_bytes
        for _ in range(TRIES):
            found = choose(size_bytes)
            if found is None:
                low, size_bytes = size_bytes, size_bytes + self.most_bytes // TRIES
            else:
                dtypes, expected_bytes = found
                left = self.most_bytes - self.taken(dtypes)
                if left >= 0:
                    best, low, size_bytes = dtypes, size_bytes, size_bytes + left
                    if left <= self.slack_bytes:
                        break
                else:
                    high, size_bytes = expected_bytes, expected_bytes + left
            if high is not None and not low < size_bytes < high:
                size_bytes = (low + high) // 2
        return best

    def below(self, source: str, smallest: Dtypes, why: str) -> str:
        """Return the sentence that the limit is below the smallest file of a model."""
        most = size_text(self.most_bytes)
        return f"{self.what} of {most} is too small: the smallest file of {source} {self.described(smallest)}{why}"

    def above(self, source: str) -> str:
        """Return the sentence that the source itself is within the limit."""
        most = size_text(self.most_bytes)
        return f"{source} itself {self.described({})}: it is within {most}, and no other file is needed"
