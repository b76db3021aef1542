"""Kinds of jobs, and the checks of their arguments, which come from outside as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from organs.registry.entities.base import Entity
from organs.registry.errors import BadInput
from organs.registry.local import LocalRegistry

WORK, VALIDATE, INTAKE, UPKEEP = "work", "validate", "intake", "upkeep"
LANES = (WORK, VALIDATE, INTAKE, UPKEEP)
"""A runner runs one job of each lane at a time."""
ALONE = (VALIDATE, UPKEEP)
"""Lanes in which all runners of a registry together run one job at a time: a validation can fill a machine's memory,
and two repacks would do the same work."""

Inputs = Mapping[str, object]
"""Arguments from outside: JSON that is not checked yet."""
A = TypeVar("A")
ReportProgress = Callable[[float, str], None]
"""Called with the progress, from 0 to 1, and the current step. Raises WorkCancelled when the job was cancelled."""


def unchanged(_registry: LocalRegistry, arguments: A, _contributor: str) -> A:
    """Return the arguments unchanged: they do not depend on the registry."""
    return arguments


@dataclass(frozen=True, slots=True)
class JobKind(Generic[A]):
    """A kind of job with arguments of the class `A`, an entity."""

    name: str
    """At most 32 characters."""
    lane: str
    arguments: type[A]
    """The class of the arguments, which wait in the queue as JSON."""
    check: Callable[[Inputs], A]
    """Check arguments from outside. Raises BadInput, or another OrganError with the problem. It must be quick, and
    must not read the registry."""
    run: Callable[[LocalRegistry, A, ReportProgress, str], Entity]
    """Do the job for the contributor whose name comes last, and return its result. The name of a model under `model`,
    or names under `models`, and the digest of an organ under `organ`, or digests under `organs`, become links. Raises
    OrganError if it fails. It must call its third argument about every second: only these calls can cancel the job."""
    settle: Callable[[LocalRegistry, A, str], A] = unchanged
    """Check the arguments against the registry before the job is queued, for the contributor of that name. Raises
    OrganError for models that do not exist, and for requests that the contributor is not allowed to make. It must be
    quick, and must read only the catalog and headers."""


def check_members(arguments: Inputs, known: Sequence[str]) -> None:
    """Raise BadInput for members that are not `known`, which would otherwise be ignored."""
    unknown = sorted(repr(name[:80]) for name in arguments if name not in known)
    if unknown:
        allowed = ", ".join(known) or "none"
        raise BadInput(f"unknown argument {', '.join(unknown[:10])}; use {allowed}")


def text_or_none(arguments: Inputs, name: str, most: int) -> str | None:
    """Return the text `name`, of at most `most` characters; None if it is absent. Raises BadInput."""
    value = arguments.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise BadInput(f"{name} must be a text of 1 to {most:,} characters")
    return value


def whole_number(arguments: Inputs, name: str, default: int, least: int, most: int) -> int:
    """Return the whole number `name`; `default` if it is absent. Raises BadInput."""
    value = arguments.get(name)
    if value is None:
        return default
    if type(value) is not int or not least <= value <= most:
        raise BadInput(f"{name} must be a whole number from {least:,} to {most:,}")
    return value
