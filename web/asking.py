"""Jobs into the queue, for who asks."""

from __future__ import annotations

from organs.ingest.jobs.asking import ask_for
from organs.registry.catalog.register.accounts import LOCAL
from organs.registry.present.values import Values
from organs.web.answers import registry
from organs.web.identity import identity


def ask(kind: str, arguments: Values) -> int:
    """Put a job of who asks, who may write, at the end of the queue; its id. Raises what `ask_for` does."""
    asker = identity().name
    assert asker is not None, "nobody in particular was let in"
    return ask_for(registry(), kind, arguments, asker)


def planner() -> str:
    """In whose namespace a chimera would be that who asks were to make: their own, or `local` of anybody."""
    return identity().name or LOCAL
