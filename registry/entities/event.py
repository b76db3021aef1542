"""The event log: who did what."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry.entities.base import WHOLE_MAX, Entity, ModelText, Page, Text, Time, Word


class Event(Entity, frozen=True, kw_only=True):
    """Something that was done."""

    id: Annotated[int, Meta(ge=1, le=WHOLE_MAX)]
    at: Annotated[Time, Meta(description="In UTC.")]
    contributor: Annotated[Word, Meta(description="Who did it; `local` is a person at the registry's machine.")]
    action: Annotated[Word, Meta(description="A few words: `yank`.")]
    model: ModelText | None
    text: Annotated[Text, Meta(description="The object of the action, and the reason. Never a token or an address.")]


class EventPage(Page[Event], frozen=True, kw_only=True):
    """A page of the event log, newest first."""
