"""What administrators see: events, the registry in numbers, and the effects of a removal."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry.entities.base import (
    WHOLE_MAX,
    Bytes,
    Count,
    Counts,
    Entity,
    ModelText,
    Page,
    RequestBody,
    Text,
    Texts,
    Time,
    Word,
)
from organs.registry.entities.published import VERSION_MAX, Reason


class Event(Entity, frozen=True, kw_only=True):
    """An action in the event log."""

    id: Annotated[int, Meta(ge=1, le=WHOLE_MAX)]
    at: Annotated[Time, Meta(description="In UTC.")]
    contributor: Annotated[
        Word, Meta(description="The account that did it; `local` is a user of the registry's machine.")
    ]
    action: Annotated[Word, Meta(description="A few words: `yank`.")]
    model: ModelText | None
    text: Annotated[Text, Meta(description="The object of the action, and the reason. Never a token or an address.")]


class EventPage(Page[Event], frozen=True, kw_only=True):
    """A page of the event log, newest first."""


class AdminOverview(Entity, frozen=True, kw_only=True):
    """The registry in numbers, with the newest events, for administrators."""

    waiting: Annotated[Count, Meta(description="Submissions that wait for review.")]
    models: Annotated[Counts, Meta(description="Models by state.")]
    contributors: Annotated[Counts, Meta(description="Contributors by state.")]
    uploads: Annotated[Count, Meta(description="Uploads that are open, or not published yet.")]
    upload_bytes: Annotated[Bytes, Meta(description="The sum of the declared sizes of the uploads.")]
    events: Annotated[tuple[Event, ...], Meta(max_length=1000)]


class Removal(Entity, frozen=True, kw_only=True):
    """What the removal of a model deletes."""

    model: ModelText
    state: Annotated[Word, Meta(description="`visible`, `quarantined`, `yanked`, `incomplete` or `removed`.")]
    reason: Text | None
    size_bytes: Annotated[Bytes, Meta(description="Bytes of its files.")]
    places: Annotated[Count, Meta(description="Places of organs in the model.")]
    organs: Annotated[Count, Meta(description="Organs that no other model has. They are deleted too.")]
    blobs: Annotated[Count, Meta(description="Blobs that nothing else needs. The next sweeps remove them.")]
    stored_bytes: Annotated[Bytes, Meta(description="Stored bytes of these blobs.")]
    parents: Annotated[
        Count, Meta(description="Blobs that stay: organs of other models are stored by their difference to them.")
    ]
    parents_bytes: Annotated[Bytes, Meta(description="Stored bytes of these blobs.")]
    dependants: Annotated[Texts, Meta(description="The models with these organs.")]
    chimeras: Annotated[
        Texts, Meta(description="Chimeras with organs of the model, or with the model as base. They keep its organs.")
    ]


class RemovalRequest(RequestBody, frozen=True, kw_only=True):
    """The version to remove, and the reason."""

    version: Annotated[int, Meta(ge=1, le=VERSION_MAX)]
    reason: Reason
