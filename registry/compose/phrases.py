"""Parts of sentences: a few names of many, a count with its word, block numbers as runs."""

from __future__ import annotations

from collections.abc import Sequence

NAMES_SHOWN = 3


def listed(names: Sequence[str]) -> str:
    """The first three of `names`, of which there is at least one, and how many more there are."""
    more = [f"{len(names) - NAMES_SHOWN} more"] if len(names) > NAMES_SHOWN else []
    shown = [*names[:NAMES_SHOWN], *more]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def counted(count: int, one: str, many: str) -> str:
    """`1 place`, `12 places`."""
    return f"{count:,} {one if count == 1 else many}"


def runs(numbers: Sequence[int]) -> str:
    """Sorted numbers as people write them: `0-3 and 7`; the first three runs."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] + 1 == number:
            found[-1][1] = number
        else:
            found.append([number, number])
    return listed([str(first) if first == last else f"{first}-{last}" for first, last in found])
