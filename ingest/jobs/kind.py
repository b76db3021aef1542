"""What a kind of job is, and how its arguments are checked: they come from outside as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from organs.registry.errors import BadInput
from organs.registry.local import LocalRegistry

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


def as_they_are(_registry: LocalRegistry, arguments: Values, _contributor: str) -> Values:
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
    run: Callable[[LocalRegistry, Values, Tell, str], Values]
    """Does it for the contributor whose name comes last, and gives a result that is JSON. A name of a model under
    `model`, or names under `models`, and a digest of an organ under `organ`, or digests under `organs`, become links.
    Raises OrganError where it cannot be done. It calls its third argument every second or so: between two calls nobody
    can cancel it."""
    settle: Callable[[LocalRegistry, Values, str], Values] = as_they_are
    """The checked arguments held against the registry before they are kept: what is not there, cannot be done, or may
    not be by the contributor of that name is told at once. Raises OrganError; it must be quick, and read no more than
    the catalog and headers."""


def check_members(arguments: Values, known: Sequence[str]) -> None:
    """Raise BadInput for members that are not `known`, which would otherwise be ignored."""
    strange = sorted(repr(name[:80]) for name in arguments if name not in known)
    if strange:
        takes = ", ".join(known) or "none"
        raise BadInput(f"there is no argument {', '.join(strange[:10])} here; there is {takes}")


def text_or_none(arguments: Values, name: str, most: int) -> str | None:
    """The text `name`, of at most `most` characters; None where it is left out. Raises BadInput."""
    value = arguments.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value) <= most:
        raise BadInput(f"{name} is to be a text of 1 to {most:,} characters")
    return value


def whole_number(arguments: Values, name: str, default: int, least: int, most: int) -> int:
    """The whole number `name`, `default` where it is left out. Raises BadInput."""
    value = arguments.get(name)
    if value is None:
        return default
    if type(value) is not int or not least <= value <= most:
        raise BadInput(f"{name} is to be a whole number from {least:,} to {most:,}")
    return value
