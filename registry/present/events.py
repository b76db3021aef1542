"""The event log as plain values."""

from __future__ import annotations

from organs.registry.catalog.queries.events import EventPage
from organs.registry.present.values import Values

EVENT_KEYS = ("id", "at", "contributor", "action", "model", "text")
"""Of each, in the order of the columns of a sheet."""


def events_values(page: EventPage) -> Values:
    """A page of events, newest first."""
    return {
        "items": [
            {
                "id": event.id,
                "at": event.at.isoformat(),
                "contributor": contributor,
                "action": event.action,
                "model": None if namespace is None else f"{namespace}/{name}@{version}",
                "text": event.text,
            }
            for event, contributor, namespace, name, version in page.items
        ],
        "next": page.next,
    }
