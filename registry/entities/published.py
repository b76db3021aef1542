"""A model after it was published: what its owner may change, its versions, and the chimeras made of it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry.entities.base import (
    ITEMS_MAX,
    WHOLE_MAX,
    Bytes,
    Count,
    Digest,
    Entity,
    ModelText,
    Page,
    Request,
    Text,
    Texts,
    Time,
    Word,
)

TITLE_MAX = 200
LICENSE_MAX = 96
DESCRIPTION_MAX = 4096
TAGS_MAX = 20
TAG_MAX = 48
BASE_MAX = 200
REASON_MAX = 1000
VERSION_MAX = 10**9 - 1
"""Limits on what contributors and administrators write, in characters, but for TAGS_MAX and VERSION_MAX."""

State = Annotated[Word, Meta(description="`visible`, `quarantined`, `yanked` or `removed`.")]
Version = Annotated[int, Meta(ge=1, le=VERSION_MAX, description="The version; by default the newest visible one.")]
Reason = Annotated[str, Meta(min_length=1, max_length=REASON_MAX, pattern=r"\S", description="Why, for people.")]
Title = Annotated[str, Meta(max_length=TITLE_MAX, description="One line.")]
Description = Annotated[str, Meta(max_length=DESCRIPTION_MAX, description="Markdown, shown without HTML and images.")]
License = Annotated[
    str, Meta(max_length=LICENSE_MAX, description="An SPDX expression, `LicenseRef-` and a name, or `other`.")
]
Tags = Annotated[
    tuple[Annotated[str, Meta(max_length=TAG_MAX)], ...],
    Meta(max_length=TAGS_MAX, description="A few words each."),
]
Base = Annotated[
    str,
    Meta(
        max_length=BASE_MAX,
        description="The model that it was made from: `namespace/name`, or its name elsewhere.",
    ),
]


class ModelStatements(Request, frozen=True, kw_only=True):
    """What people may state of a model, in addition to its header. Null removes a text."""

    title: Title | None = None
    description: Description | None = None
    license: License | None = None
    tags: Tags | None = None
    base: Base | None = None


class PublishedModel(Entity, frozen=True, kw_only=True):
    """What the owner of a model may change, and its state."""

    name: ModelText
    state: State
    state_reason: Text | None
    changed_at: Time | None
    title: Text | None
    description: Text | None
    license: Text | None
    tags: Texts
    base: Text | None


class VersionChanges(Entity, frozen=True, kw_only=True):
    """How a version differs from the one before."""

    since: ModelText
    size_bytes: Annotated[
        int, Meta(ge=-WHOLE_MAX, le=WHOLE_MAX, description="How much larger it is, in bytes; may be negative.")
    ]
    changed: Annotated[Count, Meta(description="Organs that differ under the same names.")]
    added: Count
    gone: Count


class ModelVersion(Entity, frozen=True, kw_only=True):
    """One version of a model."""

    name: ModelText
    version: Annotated[int, Meta(ge=1, le=VERSION_MAX)]
    state: State
    state_reason: Annotated[Text, Meta(description="Why it was yanked.")] | None
    title: Text | None
    digest: Digest
    size_bytes: Bytes
    tensors: Count
    downloads: Count
    grafts: Annotated[Count, Meta(description="Visible chimeras that have organs of it.")]
    created_at: Time
    changes: VersionChanges | None
    """None for the first version, and where very large ones were not compared."""


class ModelVersions(Entity, frozen=True, kw_only=True):
    """The newest versions of a model, newest first."""

    items: Annotated[tuple[ModelVersion, ...], Meta(max_length=ITEMS_MAX)]
    left_out: Annotated[Count, Meta(description="Older versions that are not in the list.")]


class Descendant(Entity, frozen=True, kw_only=True):
    """A chimera that was made of a model."""

    name: ModelText
    title: Text | None
    lock_id: Digest
    contributor: Annotated[Word, Meta(description="Who made it.")]
    role: Annotated[Word, Meta(description="`base` or `donor`: what the model is to the chimera.")]
    acts: Annotated[
        tuple[Word, ...],
        Meta(max_length=16, description="What was done with its organs: `grafted`, `adapter`, `purified`."),
    ]
    organs: Annotated[Count, Meta(description="Organs of the chimera that come from this model.")]
    created_at: Time


class DescendantPage(Page[Descendant], frozen=True, kw_only=True):
    """A page of chimeras, newest first."""


class ModelEditRequest(ModelStatements, frozen=True, kw_only=True):
    """What to change. Members that are left out do not change, null removes."""

    version: Version | None = None


class YankRequest(Request, frozen=True, kw_only=True):
    """Which version to yank, and why."""

    reason: Reason
    version: Version | None = None


class RestoreRequest(Request, frozen=True, kw_only=True):
    """Which version to restore."""

    version: Version | None = None
