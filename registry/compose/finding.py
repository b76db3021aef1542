"""Findings: everything that is to be said about a composition before a byte moves, all of it at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding weighs."""

    REFUSE = "refuse"
    """It cannot be made like this."""
    WARN = "warn"
    """It can be made by whoever accepts the finding by its code."""
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found. `code` names its kind for `accept:` and for programs; `sentence` is for people."""

    severity: Severity
    code: str
    sentence: str
    field: str = ""
    """What of the models or of the recipe it is about: a metadata key, or a path such as `grafts[1].blocks`."""
    base: str = ""
    donor: str = ""
    organs: tuple[str, ...] = ()
    """Names of the tensors that it is about."""


def refusals(findings: Iterable[Finding]) -> list[Finding]:
    """Those of `findings` that nobody can accept."""
    return [finding for finding in findings if finding.severity is Severity.REFUSE]


def unaccepted(findings: Iterable[Finding], accepted: Iterable[str]) -> list[Finding]:
    """The warnings among `findings` whose code is not in `accepted`."""
    codes = set(accepted)
    return [finding for finding in findings if finding.severity is Severity.WARN and finding.code not in codes]
