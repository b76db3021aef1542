"""Kinds of jobs: what each takes, and the function that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from organs.registry.documents import BadDocument, convert
from organs.registry.entities.base import Entity
from organs.registry.errors import BadInput
from organs.registry.local import LocalRegistry

WORK, VALIDATE, INTAKE, UPKEEP = "work", "validate", "intake", "upkeep"
LANES = (WORK, VALIDATE, INTAKE, UPKEEP)
"""A runner runs one job of each lane at a time."""
ALONE = (VALIDATE, UPKEEP)
"""Lanes in which all runners of a registry together run one job at a time: a validation can fill a machine's memory,
and two repacks would do the same work."""

A = TypeVar("A", bound=Entity)
ReportProgress = Callable[[float, str], None]
"""Called with the progress, from 0 to 1, and the current step. Raises WorkCancelled when the job was cancelled."""


def unchanged(_registry: LocalRegistry, arguments: A, _contributor: str) -> A:
    """Return the arguments unchanged: they do not depend on the registry."""
    return arguments


@dataclass(frozen=True, slots=True)
class JobKind(Generic[A]):
    """A kind of job with arguments of the class `A`."""

    name: str
    """At most 32 characters."""
    lane: str
    arguments: type[A]
    """The class of the arguments, which wait in the queue as JSON."""
    run: Callable[[LocalRegistry, A, ReportProgress, str], Entity]
    """Do the job for the contributor whose name comes last, and return its result. The name of a model under `model`,
    or names under `models`, and the digest of an organ under `organ`, or digests under `organs`, become links. Raises
    OrganError if it fails. It must call its third argument about every second: only these calls can cancel the job."""
    settle: Callable[[LocalRegistry, Any, str], A] = unchanged
    """Check a request against the registry before the job is queued, for the contributor of that name, and return the
    arguments. Raises OrganError for models that do not exist, and for requests that the contributor is not allowed to
    make. It must be quick, and must read only the catalog and headers."""
    request: type[Entity] | type[dict[str, object]] | None = None
    """The class of requests, by default that of the arguments; a dictionary is read by `settle`."""

    def settled(self, registry: LocalRegistry, inputs: Mapping[str, object], contributor: str) -> A:
        """Return the arguments of a job for `inputs`, JSON from outside. Raises BadInput, and as `settle`."""
        if self.request is dict:
            return self.settle(registry, inputs, contributor)
        try:
            request = convert(dict(inputs), self.request or self.arguments)
        except BadDocument as error:
            raise BadInput(str(error)) from error
        return self.settle(registry, request, contributor)
