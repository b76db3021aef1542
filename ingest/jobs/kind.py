"""What a kind of job is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from organs.registry.registry import Registry

WORK, VALIDATE, INTAKE = "work", "validate", "intake"
LANES = (WORK, VALIDATE, INTAKE)
"""A runner works at one job of each lane at a time."""
ALONE = (VALIDATE,)
"""Lanes in which one job at a time is worked at by all runners of a registry together: they fill a machine's memory."""

Values = dict[str, Any]
"""What JSON takes, by name."""
Tell = Callable[[float, str], None]
"""Told of the progress, from 0 to 1, and of what is being done. Raises Cancelled when the job is to be left."""


class Cancelled(Exception):
    """The job is not to be done any more, or not by this runner: raised by `Tell`, to be let through."""


def as_they_are(_registry: Registry, arguments: Values, _contributor: str) -> Values:
    """Nothing is to be asked of the registry."""
    return arguments


@dataclass(frozen=True, slots=True)
class JobKind:
    """A kind of job."""

    name: str
    """At most 32 characters."""
    lane: str
    check: Callable[[Values], Values]
    """Arguments from outside to those that are kept; raises BadInput, or another OrganError that says what is wrong.
    It must be quick, and reads nothing."""
    run: Callable[[Registry, Values, Tell, str], Values]
    """Does it for the contributor whose name comes last, and gives a result that is JSON. A name of a model under
    `model`, or names under `models`, and a digest of an organ under `organ`, or digests under `organs`, become links.
    Raises OrganError where it cannot be done. It calls its third argument every second or so: between two calls nobody
    can cancel it."""
    settle: Callable[[Registry, Values, str], Values] = as_they_are
    """The checked arguments held against the registry before they are kept: what is not there, cannot be done, or may
    not be by the contributor of that name is told at once. Raises OrganError; it must be quick, and read no more than
    the catalog and headers."""
