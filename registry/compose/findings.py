"""The codes of warnings, and what texts and lists of findings have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from organs.registry.entities.finding import Finding, Severity


def refusals(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that nobody can accept."""
    return [finding for finding in findings if finding.severity is Severity.REFUSE]


def unaccepted(findings: Iterable[Finding], accepted: Iterable[str]) -> list[Finding]:
    """Return the warnings whose code is not in `accepted`."""
    codes = set(accepted)
    return [finding for finding in findings if finding.severity is Severity.WARN and finding.code not in codes]


WARNINGS = {
    "unrelated-lineage": "the organs are no more alike than those of strangers",
    "lineage-unknown": "there is nothing by which the two could be compared",
    "likely-degraded": "by the prediction the result will not be usable",
    "adapter-base-differs": "the adapter says that it was made for another model",
    "other-scale": "a model of the same family and another size",
    "rope-base-differs": "the donor was trained with another base of positions",
    "rope-scaling-differs": "the donor was trained with positions scaled otherwise",
    "epsilon-differs": "the donor was trained with another epsilon of its norms",
    "context-differs": "the donor was trained for another context length",
    "activation-differs": "the donor's feed-forward was trained with another activation",
    "tokenizer-differs": "tokens are numbered otherwise",
    "parent-yanked": "a model that its publisher or an administrator has yanked",
    "non-finite-weights": "weights that are NaN or infinite, which spread to everything that the model computes",
    "licences-conflict": "licences that do not go together, or allow no derivatives",
}


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
