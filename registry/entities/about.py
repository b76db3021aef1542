"""The registry as a whole: its version, its figures, and where to continue."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from organs.registry.entities.base import Bytes, Count, Entity, Text


class Figures(Entity, frozen=True, kw_only=True):
    """The public numbers of the registry, which count only visible models.

    The size of everything that is stored is not public. It would disclose how large a model in quarantine is, and its
    growth would disclose whether the bytes of an upload are registered already.
    """

    models: Count
    placements: Annotated[Count, Meta(description="Places of organs in these models.")]
    organs: Annotated[Count, Meta(description="Different organs at these places.")]
    size_bytes: Annotated[Bytes, Meta(description="Bytes of the files of these models.")]


class RegistryTotals(Entity, frozen=True):
    """The totals of everything that is stored, for administrators. Blobs that will be removed do not count."""

    models: Annotated[Count, Meta(description="Visible models.")]
    placements: Annotated[Count, Meta(description="Places of organs in these models.")]
    organs: Annotated[Count, Meta(description="Different organs at these places.")]
    blobs: Count
    size_bytes: Annotated[Bytes, Meta(description="Plain bytes of the blobs.")]
    stored_bytes: Annotated[Bytes, Meta(description="Bytes of the blobs as they are stored.")]


class Root(Entity, frozen=True, kw_only=True):
    """The root of the API."""

    name: Text
    version: Annotated[Text, Meta(description="The version of the program.")]
    figures: Figures
    links: Annotated[dict[Text, Text], Meta(max_length=100, description="Addresses by name.")]
