"""A published model: the values that its owner may change, its versions, and its chimeras."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from msgspec import Meta

from organs.registry.entities.base import (
    WHOLE_MAX,
    Bytes,
    Count,
    Digest,
    Entity,
    Items,
    ModelText,
    Page,
    RequestBody,
    Text,
    Texts,
    Time,
    Word,
)

TITLE_MAX = 200
LICENSE_MAX = 96
DESCRIPTION_MAX = 65_536
TAGS_MAX = 20
TAG_MAX = 48
BASE_MAX = 200
REASON_MAX = 1000
VERSION_MAX = 10**9 - 1
"""Limits on texts of contributors and administrators, in characters; TAGS_MAX and VERSION_MAX are numbers."""

State = Annotated[Word, Meta(description="`visible`, `quarantined`, `yanked` or `removed`.")]
Version = Annotated[int, Meta(ge=1, le=VERSION_MAX, description="The version; by default the newest visible one.")]
Reason = Annotated[str, Meta(min_length=1, max_length=REASON_MAX, pattern=r"\S", description="The reason, for people.")]
Title = Annotated[str, Meta(max_length=TITLE_MAX, description="One line.")]
Description = Annotated[str, Meta(max_length=DESCRIPTION_MAX, description="Markdown, shown without HTML.")]
License = Annotated[
    str, Meta(max_length=LICENSE_MAX, description="An SPDX expression, `LicenseRef-` and a name, or `other`.")
]
Tags = Annotated[
    tuple[Annotated[str, Meta(max_length=TAG_MAX)], ...], Meta(max_length=TAGS_MAX, description="A few words each.")
]
Base = Annotated[
    str,
    Meta(max_length=BASE_MAX, description="The model that it was made from: `namespace/name`, or its name elsewhere."),
]


ImageFormat = Literal["png", "jpeg"]
IMAGE_FORMATS: tuple[str, ...] = get_args(ImageFormat)
"""The formats in which images of cards are stored, which are also the endings of their addresses."""


class CardImage(Entity):
    """An image of a card. Its address is `/models/NAMESPACE/NAME/images/DIGEST.FORMAT`."""

    name: Annotated[Text, Meta(description="The path by which the card names it.")]
    digest: Annotated[Digest, Meta(description="SHA-256 of the stored image.")]
    format: Annotated[Word, Meta(description="`png` or `jpeg`.")]
    width: Annotated[Count, Meta(description="Pixels.")]
    height: Annotated[Count, Meta(description="Pixels.")]
    size_bytes: Bytes


class ModelStatements(RequestBody):
    """Statements about a model, in addition to its header. Null removes a text."""

    title: Title | None = None
    description: Description | None = None
    license: License | None = None
    tags: Tags | None = None
    base: Base | None = None


class PublishedModel(Entity):
    """The state of a model, and the values that its owner may change."""

    name: ModelText
    state: State
    state_reason: Text | None
    changed_at: Time | None
    title: Text | None
    description: Text | None
    license: Text | None
    tags: Texts
    base: Text | None


class VersionChanges(Entity):
    """The difference between a version and the previous version."""

    since: ModelText
    size_bytes: Annotated[
        int, Meta(ge=-WHOLE_MAX, le=WHOLE_MAX, description="How much larger it is, in bytes; may be negative.")
    ]
    changed: Annotated[Count, Meta(description="Tensors that have the same name but differ.")]
    added: Count
    gone: Count


class ModelVersion(Entity):
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
    grafts: Annotated[Count, Meta(description="Visible chimeras that have tensors of the version.")]
    created_at: Time
    changes: VersionChanges | None
    """None for the first version, and for very large versions, which are not compared."""


class ModelVersions(Entity):
    """The newest versions of a model, newest first."""

    items: Items[ModelVersion]
    left_out: Annotated[Count, Meta(description="Older versions that are not in the list.")]


class Descendant(Entity):
    """A chimera that was made from a model."""

    name: ModelText
    title: Text | None
    lock_id: Digest
    contributor: Annotated[Word, Meta(description="The account that made it.")]
    role: Annotated[Word, Meta(description="The role of the model in the chimera: `base` or `donor`.")]
    acts: Annotated[
        tuple[Word, ...],
        Meta(
            max_length=16,
            description="The acts on its tensors: `placed`, `grafted`, `merged`, `adapter`, `purified`, `pruned`.",
        ),
    ]
    organs: Annotated[Count, Meta(description="Tensors of the chimera that come from this model.")]
    created_at: Time


class DescendantPage(Page[Descendant]):
    """A page of chimeras, newest first."""


class ModelEditRequest(ModelStatements):
    """The changes. Members that are left out do not change; null removes a value."""

    version: Version | None = None


class YankRequest(RequestBody):
    """The version to yank, and the reason."""

    reason: Reason
    version: Version | None = None


class RestoreRequest(RequestBody):
    """The version to restore."""

    version: Version | None = None


class Removal(Entity):
    """What the removal of a model deletes."""

    model: ModelText
    state: Annotated[Word, Meta(description="`visible`, `quarantined`, `yanked`, `incomplete` or `removed`.")]
    reason: Text | None
    size_bytes: Annotated[Bytes, Meta(description="Bytes of its files.")]
    places: Annotated[Count, Meta(description="Places of tensors in the model.")]
    organs: Annotated[Count, Meta(description="Tensors that no other model has. They are deleted too.")]
    blobs: Annotated[Count, Meta(description="Blobs that nothing else needs. The next sweeps remove them.")]
    stored_bytes: Annotated[Bytes, Meta(description="Stored bytes of these blobs.")]
    parents: Annotated[
        Count, Meta(description="Blobs that stay: tensors of other models are stored by their difference to them.")
    ]
    parents_bytes: Annotated[Bytes, Meta(description="Stored bytes of these blobs.")]
    dependants: Annotated[Texts, Meta(description="The models with these tensors.")]
    chimeras: Annotated[
        Texts, Meta(description="Chimeras with tensors of the model, or with the model as base. They keep its tensors.")
    ]


class RemovalRequest(RequestBody):
    """The version to remove, and the reason."""

    version: Annotated[int, Meta(ge=1, le=VERSION_MAX)]
    reason: Reason
